"""A preparation that is killed at any moment can be resumed and writes the same files."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.preparing import contents, lines, texts

from gidd.data.manifest import verify
from gidd.data.preparation.prepare import prepare
from gidd.data.tokenizers import Tokenizer, train_tokenizer
from gidd.errors import DataError

REASON = 'needs `pip install "gidd[data]"`'
pytest.importorskip("fsspec", reason=REASON)

RUN = """
import os, signal, sys
from gidd.common import files
from gidd.data import Tokenizer, prepare

left, real = int(sys.argv[5]), files.fsync

def fsync(path):  # also in worker processes, which import this file
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    real(path)

files.fsync = fsync
if __name__ == "__main__":
    prepare([sys.argv[1]], Tokenizer.load(sys.argv[2]), sys.argv[3], validation=20, tasks=40,
            workers=int(sys.argv[4]), quiet=True)
"""


class Runs:
    """A preparation of many small tasks in a process of its own, which may be killed."""

    def __init__(self, folder: Path, tokenizer: Tokenizer):
        self.folder = folder
        (folder / "run.py").write_text(RUN)
        (folder / "source.jsonl").write_bytes(lines(texts(400)))
        tokenizer.save(folder / "tokenizer")

    def start(self, out: str, workers: int, kill_at: int = 0) -> subprocess.Popen:
        """Start it; a process is killed by SIGKILL before its fsync number `kill_at`."""
        words = ["run.py", "source.jsonl", "tokenizer", out, str(workers), str(kill_at)]
        return subprocess.Popen([sys.executable, *words], cwd=self.folder, stderr=subprocess.PIPE)

    def finish(self, out: str, workers: int) -> dict[str, bytes]:
        process = self.start(out, workers)
        _, errors = process.communicate(timeout=600)
        assert process.returncode == 0, errors
        return contents(self.folder / out)

    def kill(self, out: str, workers: int, kill_at: int) -> None:
        process = self.start(out, workers, kill_at)
        _, errors = process.communicate(timeout=600)
        assert process.returncode == -signal.SIGKILL or b"worker process was killed" in errors


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(texts(100), 300)


@pytest.fixture
def runs(tmp_path, tokenizer) -> Runs:
    return Runs(tmp_path, tokenizer)


@pytest.mark.slow
def test_a_killed_and_resumed_preparation_writes_the_same_files(runs):
    for kill_at in (1, 6, 7, 40):  # the plan, a shard, its index, and after some tasks
        runs.kill("out", 1, kill_at)
    assert runs.finish("out", 2) == runs.finish("undisturbed", 1)
    verify(runs.folder / "out")


@pytest.mark.long
def test_a_preparation_killed_at_fifty_moments_writes_the_same_files(runs):
    expected, rng = runs.finish("undisturbed", 2), random.Random(0)
    for number in range(50):
        runs.kill(f"out{number}", rng.choice([1, 2]), rng.randrange(1, 80))
        assert runs.finish(f"out{number}", rng.choice([1, 2])) == expected


def test_leftovers_of_a_killed_run_are_removed(runs, tokenizer):
    out = runs.folder / "out"
    (out / "train").mkdir(parents=True)
    (out / "train" / ".00003.ds.123.tmp").write_bytes(b"half")
    prepare([runs.folder / "source.jsonl"], tokenizer, out, quiet=True)
    assert not [name for name in contents(out) if ".tmp" in name]


@pytest.mark.slow
def test_workers_exit_with_their_parent(runs):
    process = runs.start("out", 2)
    pattern = f"parent_pid={process.pid},"
    children: list[int] = []
    begin = time.monotonic()
    while not children and process.poll() is None and time.monotonic() - begin < 300:
        children = [pid for pid in processes() if pattern in command_of(pid)]
    process.kill()
    process.communicate()
    while any(command_of(pid) for pid in children):
        assert time.monotonic() - begin < 600, "a worker outlived its parent"
        time.sleep(0.01)


def processes() -> list[int]:
    if not Path("/proc/self").exists():
        pytest.skip("processes are looked up in /proc")
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def test_two_runs_at_once_are_refused(runs, tokenizer):
    import fcntl

    source, out = [runs.folder / "source.jsonl"], runs.folder / "out"
    (out / "tasks").mkdir(parents=True)
    with (out / "tasks" / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="another `gidd data prepare`"):
            prepare(source, tokenizer, out, quiet=True)
    prepare(source, tokenizer, out, quiet=True)
