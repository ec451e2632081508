"""Runs many commands without importing torch for each: they are forks of one process.

`command_server` writes small programs into a folder for PATH (`gidd`, `python`, `torchrun`, ...).
Each sends its arguments, folder, environment and standard streams to the server, which forks and
calls what the program of this name would call; the program waits for the exit code and passes
signals on. `pip install` installs nothing: it checks that the distribution, its version and its
extras exist.
"""

import atexit
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import tomllib
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

PROGRAMS = ("gidd", "gidd-proof", "lm_eval", "pip", "pytest", "python", "torchrun")
PRELOADED = (
    "torch",
    "torch._dynamo",
    "torch.distributed.run",
    "tokenizers",
    "tyro.constructors",
    "typeguard",
) + (
    "gidd.cli.sample",
    "gidd.cli.train",
    "gidd.pipeline",
    "gidd.runs.fit",
    "rich.progress",
    "transformers.models.auto.modeling_auto",
)
CLIENT = """\
#!{python} -SE
import json, os, signal, socket, sys

with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    words = [os.path.basename(sys.argv[0]), *sys.argv[1:]]
    request = json.dumps([words, os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(server, [len(request).to_bytes(4, "big")], [0, 1, 2])
    server.sendall(request)
    pid = int.from_bytes(server.recv(4), "big")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _frame: os.kill(pid, number))
    code = server.recv(1)
sys.exit(code[0] if code else 1)
"""


@contextmanager
def command_server(folder: Path, site: Path) -> Iterator[Path]:
    """Yield a folder of programs that import what is in `site` first; what still runs is killed."""
    folder.mkdir()
    address = str(folder / "socket")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen(16)
        server = subprocess.Popen(
            [sys.executable, "-m", "support.command_server", str(listening.fileno())],
            pass_fds=[listening.fileno()],
            process_group=0,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(site), *sys.path])},
        )
    for name in PROGRAMS:
        program = folder / name
        program.write_text(CLIENT.format(python=sys.executable, address=address))
        program.chmod(0o755)
    try:
        yield folder
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def next_command(listening: socket.socket) -> list[str]:
    """Return in a fork for each command, in its folder and with its environment and streams."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the first forks are reaped by the system
    while True:
        client, _ = listening.accept()
        if os.fork():
            client.close()
            continue
        listening.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        size, streams, _, _ = socket.recv_fds(client, 4, 3)
        with client.makefile("rb") as received:
            words, cwd, environment = json.loads(received.read(int.from_bytes(size, "big")))
        if pid := os.fork():  # this one reports the exit code of the other
            client.sendall(pid.to_bytes(4, "big"))
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            client.sendall(bytes([code if code >= 0 else 128 - code]))
            os._exit(0)
        client.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(environment)
        sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
        return words


def run(words: list[str]) -> None:
    """Call what the program calls that is installed under this name."""
    program, *arguments = words
    if program == "pip":
        check_requirements(arguments)
    elif program == "python":
        run_python(arguments)
    else:
        sys.argv = words
        (script,) = metadata.entry_points(group="console_scripts", name=program)
        sys.exit(script.load()())


def exit_code(words: list[str]) -> int:
    """Run a command as a process of its own would, up to its exit."""
    try:
        run(words)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
    return 0


def run_python(words: list[str]) -> None:
    """Run `python -c CODE`, `python -m MODULE ...` or `python FILE ...`."""
    if words[:1] == ["-u"]:
        words = words[1:]
    sys.path.insert(0, "")
    if words[0] == "-c":
        sys.argv = words[:1] + words[2:]
        exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
    elif words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path[0] = str(Path(words[0]).resolve().parent)
        runpy.run_path(words[0], run_name="__main__")


def check_requirements(words: list[str]) -> None:
    """Check the arguments of `pip install`: projects of this repository, or what is installed."""
    from packaging.requirements import Requirement

    projects = map(read_project, (ROOT, *sorted((ROOT / "packages").iterdir())))
    own = {project["name"]: project for project in projects}
    for word in words[1:]:
        if word in ("-e", "--no-deps"):
            continue
        if word.startswith((".", "packages/", "examples/")):
            folder, _, extras = word.rstrip("]").partition("[")
            extras, project = set(filter(None, extras.split(","))), read_project(ROOT / folder)
        else:
            requirement = Requirement(word)
            extras, project = requirement.extras, own.get(requirement.name)
        if project is None:
            version = metadata.version(requirement.name)
            assert not extras and requirement.specifier.contains(version), (word, version)
        else:
            assert extras <= set(project.get("optional-dependencies", ())), word


def read_project(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text())["project"]


if __name__ == "__main__":
    for name in PRELOADED:
        import_module(name)
    command = next_command(socket.socket(fileno=int(sys.argv[1])))
    os._exit(exit_code(command))  # without freeing objects one by one, which takes a second
