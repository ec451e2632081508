"""Kill `gidd correct --in-place` and resume it, and compare the files with undisturbed ones.

    PYTHONPATH=tests python -m support.kill_correct --kills 200 --json

The command corrects two files and is killed (SIGKILL) at a random moment: half of the times at a
random time, otherwise at a flush of a file to disk, before or after it. Each time both files must
hold their old or their new text. The command resumes and is killed again, or ends: then both must
be corrected, and the old texts are restored. Prints one JSON object.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch

from gidd.cli import main
from gidd.cli.model_options import ModelOptions
from gidd.common import files
from gidd.pipeline import from_pretrained
from support.small_proofreader import cut_into_small_parts, write_proofreader

NAMES = ("a.txt", "b.txt")
WORDS = ["correct", *NAMES, "--error-rate", "0.05", "--in-place"]


def kill_often(kills: int, seed: int = 0) -> dict:
    """Kill the command in the current folder; return what happened."""
    moments, seen, other = random.Random(seed), Counter(), 0
    old = {
        name: f"the peopel of the union, and {name[0]}\nof the sattes".encode() for name in NAMES
    }
    restore(old)
    start = time.monotonic()
    assert child(lambda: main(WORDS)) == 0
    seconds = time.monotonic() - start
    new = contents()
    assert all(new[name] != old[name] for name in NAMES)
    restore(old)
    same_bytes = True
    for number in range(kills):
        pid = fork(lambda: main(WORDS)) if number % 2 else stopped_at_flush(moments)
        if number % 2:
            time.sleep(moments.uniform(0, 1.2 * seconds))
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        found = contents()
        for name in NAMES:
            is_old, is_new = found[name] == old[name], found[name] == new[name]
            seen["old" if is_old else "new"] += 1
            other += not (is_old or is_new)
        if os.WIFSIGNALED(status) and number % 3 == 2:  # others are resumed and killed again
            status = child(lambda: main(WORDS))
        if not os.WIFSIGNALED(status):
            assert status == 0
            same_bytes &= contents() == new
            restore(old)
    assert child(lambda: main(WORDS)) == 0
    return {
        "kills": kills,
        "old": seen["old"],
        "new": seen["new"],
        "other_content": other,
        "same_bytes": same_bytes,
        "leftovers": sorted({*os.listdir(), *os.listdir("cache/gidd/correct")} - {*NAMES, "cache"}),
    }


def stopped_at_flush(moments: random.Random) -> int:
    """Start the command; return its process when it stops before or after a flush to disk."""
    flush, is_after = moments.randint(1, 4), moments.random() < 0.5

    def attempt() -> None:
        stop_at_flush(flush, is_after)
        main(WORDS)

    pid = fork(attempt)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    return pid


def stop_at_flush(number: int, is_after: bool) -> None:
    """Make this process stop itself before or after the n-th file that it flushes to disk."""
    fsync, seen = files._fsync, 0

    def stopping(path: Path) -> None:
        nonlocal seen
        seen += 1
        if seen == number and not is_after:
            os.kill(os.getpid(), signal.SIGSTOP)
        fsync(path)
        if seen == number and is_after:
            os.kill(os.getpid(), signal.SIGSTOP)

    files._fsync = stopping


def restore(old: dict[str, bytes]) -> None:
    """Begin again, without a journal of what was done."""
    for name, content in old.items():
        Path(name).write_bytes(content)
    for journal in Path("cache/gidd/correct").glob("*"):
        journal.unlink()


def contents() -> dict[str, bytes]:
    return {name: Path(name).read_bytes() for name in NAMES}


def child(function: Callable[[], object]) -> int:
    """Run a function in a child process and return its exit code."""
    _, status = os.waitpid(fork(function), 0)
    return os.waitstatus_to_exitcode(status)


def fork(function: Callable[[], object]) -> int:
    """Start a child process; this one has loaded the model and computed nothing."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        function()
        code = 0
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        pipe = from_pretrained(write_proofreader(Path(name) / "model"))
        ModelOptions.load = lambda self, model: pipe
        cut_into_small_parts()
        (Path(name) / "texts").mkdir()
        os.chdir(Path(name) / "texts")
        os.environ["XDG_CACHE_HOME"] = str(Path(name) / "texts" / "cache")
        print(json.dumps(kill_often(given.kills)))
