"""Run several commands of `gidd` in one process, which imports torch once.

    sampled, scored = run_each([["sample", "model"], ["score", "model", "text.txt"]])

A list that starts with "python" holds code to execute in place of a command.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

MARK = "@@ended "
DRIVER = f"""
import json, sys
from gidd.cli import main

for words in json.loads(sys.argv[1]):
    sys.argv, status = ["gidd", *words], 0
    try:
        if words[:1] == ["python"]:
            exec(words[1], {{}})
        else:
            main()
    except SystemExit as ending:
        status = ending.code or 0
    for stream in (sys.stdout, sys.stderr):
        print("{MARK}", status, sep="", file=stream, flush=True)
"""


def command(commands: Sequence[Sequence[str]]) -> list[str]:
    """Return the command line of a process that runs these, one after the other."""
    return [sys.executable, "-c", DRIVER, json.dumps([list(words) for words in commands])]


def split(commands: Sequence[Sequence[str]], stdout: str, stderr: str):
    """Return what each command printed, and its status."""
    printed = [stream.split(MARK) for stream in (stdout, stderr)]
    assert all(len(parts) == len(commands) + 1 for parts in printed), stderr
    results: list[subprocess.CompletedProcess[str]] = []
    for number, words in enumerate(commands):
        status = int(printed[0][number + 1].partition("\n")[0])
        # every part but the first begins with the status of the command before it
        texts = [parts[number].partition("\n")[2] if number else parts[0] for parts in printed]
        results.append(subprocess.CompletedProcess(list(words), status, *texts))
    return results


def run_each(
    commands: Sequence[Sequence[str]],
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> list[subprocess.CompletedProcess[str]]:
    """Run the commands; return for each its status and what it printed."""
    done = subprocess.run(
        command(commands), env=environment or os.environ, cwd=cwd, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return split(commands, done.stdout, done.stderr)
