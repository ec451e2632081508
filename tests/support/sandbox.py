"""Run commands of `gidd` on hostile files, each in a child process with limits, on a pty.

    with Sandbox() as sandbox:
        sandbox.run(["sample", "honest_model"], folder, warm_up=True)
        result = sandbox.run(["sample", "hostile_model"], folder)
        assert result.violations(honest_peak=...) == []

One server process imports everything and forks a child for each command: starting Python and torch
for each would take seconds. The child's memory, CPU time and file sizes are limited, and an audit
hook reports what a hostile file could make it execute.
"""

import base64
import json
import os
import pty
import resource
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

MEMORY_BYTES = 4 << 30  # RLIMIT_DATA: far above what is allowed, so that a failure is measured
CPU_SECONDS = 20
WALL_SECONDS = 120  # for a command that waits; a busy machine does not reach it
FILE_BYTES = 1 << 28
ALLOWED_EXTRA_BYTES = 10**9

EXECUTIONS = {"os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "pickle.find_class"}
EXECUTIONS |= {"socket.connect", "ctypes.dlopen", "code.__new__", "webbrowser.open"}
MARK = b"@@executed "

ENVIRONMENT = {
    "TERM": "dumb",  # rich writes no escape sequences of its own
    "COLUMNS": "200",
    "OMP_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "",
}


@dataclass(frozen=True)
class Result:
    """What a command did."""

    words: list[str]
    status: int
    """Exit status; negative: the signal that ended it."""

    output: bytes
    """Everything that it wrote to the terminal."""

    peak: int
    """Peak resident memory in bytes."""

    cpu: float
    hung: bool

    @property
    def text(self) -> str:
        return self.output.decode(errors="replace").replace("\r\n", "\n")

    def violations(self, honest_peak: int) -> list[str]:
        """Return what must never happen, whatever the files are."""
        found: list[str] = []
        if self.hung or self.cpu > CPU_SECONDS or self.status == -signal.SIGXCPU:
            found.append(f"hangs ({self.cpu:.0f} s of CPU)")
        elif self.status not in (0, 2):
            found.append(f"status {self.status}")
        if "Traceback" in self.text:
            found.append("traceback")
        if self.status == 2 and "gidd: " not in self.text:
            found.append("no message")
        if self.peak > honest_peak + ALLOWED_EXTRA_BYTES:
            found.append(f"{self.peak / 2**20:.0f} MiB")
        if MARK in self.output:
            found.append("executes " + self.text.split(MARK.decode())[1].split("\n")[0])
        if b"\x1b" in self.output or any(0x80 <= ord(c) < 0xA0 for c in self.text):
            found.append("control characters")
        return found


class Sandbox:
    """A server that forks a child for each command."""

    def __enter__(self) -> "Sandbox":
        self._server = subprocess.Popen(
            [sys.executable, "-m", "support.sandbox"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[1],
            env=os.environ | ENVIRONMENT,
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()

    def run(self, words: list[str], folder: Path, *, warm_up: bool = False) -> Result:
        """Run `gidd WORDS...` in a folder; with `warm_up` first in the server, for its imports."""
        assert self._server.stdin is not None and self._server.stdout is not None
        names = [os.fsencode(word).decode("latin-1") for word in words]
        request = {"words": names, "folder": str(folder), "warm_up": warm_up}
        self._server.stdin.write(json.dumps(request).encode() + b"\n")
        self._server.stdin.flush()
        answer = json.loads(self._server.stdout.readline())
        output = base64.b64decode(answer.pop("output"))
        return Result(words=words, output=output, **answer)


def serve() -> None:
    """Answer requests, one JSON object per line."""
    import_everything()
    for line in sys.stdin.buffer:
        request = json.loads(line)
        words = [os.fsdecode(word.encode("latin-1")) for word in request["words"]]
        if request["warm_up"]:
            run_here(words, request["folder"])
        print(json.dumps(run_child(words, request["folder"])), flush=True)


def import_everything() -> None:
    import importlib

    import torch

    from gidd.cli import COMMANDS

    torch.set_num_threads(1)
    for command in COMMANDS:
        importlib.import_module(f"gidd.cli.{command}")


def run_here(words: list[str], folder: str) -> None:
    """Run a command on honest files in this process, so that its children need not import."""
    from gidd.cli import main

    os.chdir(folder)
    streams = sys.stdout, sys.stderr
    with open(os.devnull, "w") as null:
        sys.stdout = sys.stderr = null
        try:
            main(words)
        except SystemExit as ending:
            assert not ending.code, f"gidd {words}: status {ending.code}"
        finally:
            sys.stdout, sys.stderr = streams


def run_child(words: list[str], folder: str) -> dict[str, object]:
    sys.stdout.flush()
    pid, terminal = pty.fork()
    if pid == 0:
        try:
            os.chdir(folder)
            limit()
            run_command(words)
        finally:
            os._exit(99)
    output, hung = read(terminal, pid)
    _, status, usage = os.wait4(pid, 0)
    os.close(terminal)
    return {
        "status": os.waitstatus_to_exitcode(status),
        "output": base64.b64encode(output).decode(),
        "peak": usage.ru_maxrss * 1024,
        "cpu": usage.ru_utime + usage.ru_stime,
        "hung": hung,
    }


def read(terminal: int, pid: int) -> tuple[bytes, bool]:
    """Read what a child writes until it ends; kill it if it takes too long."""
    output, deadline = bytearray(), time.monotonic() + WALL_SECONDS
    while time.monotonic() < deadline:
        if not select.select([terminal], [], [], 1.0)[0]:
            continue
        try:
            part = os.read(terminal, 1 << 16)
        except OSError:  # the other side is closed
            return bytes(output), False
        if not part:
            return bytes(output), False
        if len(output) < 1 << 22:
            output += part
    os.killpg(pid, signal.SIGKILL)
    return bytes(output), True


def limit() -> None:
    """Limit this process, which will read hostile files."""
    for kind, amount in (
        (resource.RLIMIT_DATA, MEMORY_BYTES),
        (resource.RLIMIT_CPU, CPU_SECONDS + 2),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (amount, amount))

    def report(event: str, arguments: tuple[object, ...]) -> None:
        is_torch = event == "pickle.find_class" and str(arguments[0]).startswith("torch")
        if event in EXECUTIONS and not is_torch:  # its ranks exchange their plans of a save
            os.write(1, MARK + f"{event} {arguments}"[:200].encode(errors="replace") + b"\n")

    sys.addaudithook(report)


def run_command(words: list[str]) -> None:
    """Run the command and exit as Python would."""
    from gidd.cli import main

    # rich and logging keep the streams that they first saw; these are the pty's
    for number, name in ((0, "stdin"), (1, "stdout"), (2, "stderr")):
        stream = os.fdopen(os.dup(number), "r" if number == 0 else "w", encoding="utf-8")
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    status = 0
    try:
        main(words)
    except SystemExit as ending:
        status = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
        if isinstance(ending.code, str):
            print(ending.code, file=sys.stderr)
    except BaseException:
        import traceback

        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    serve()
