"""Help: shown at once, without torch, examples before options."""

import os
import re
import resource
import subprocess
import sys
from subprocess import CompletedProcess

import pytest
from support.one_process import run_each

from gidd.cli import COMMANDS
from gidd.cli.eval import EVALUATIONS
from gidd.cli.run_options import parse_run
from gidd.cli.train import TrainOptions
from gidd.runs.presets import PRESETS

HELP = [[], ["--help"], *([command, "--help"] for command in COMMANDS)]
HELP += [["train", "nano", "--help"], ["plan", "nano", "--help"]]
HELP += [["eval", command, "--help"] for command in EVALUATIONS]
HELP += [["data", command, "--help"] for command in ("tokenizer", "prepare", "show", "verify")]

IMPORTED = ("python", "import sys; print('torch' in sys.modules)")


@pytest.fixture(scope="module")
def printed() -> dict[tuple[str, ...], tuple[CompletedProcess[str], bool]]:
    """What each command prints, and whether torch was imported then; all in one process."""
    commands = [tuple(words) for words in HELP]
    each_and_check = [words for command in commands for words in (command, IMPORTED)]
    done = run_each(each_and_check, os.environ | {"COLUMNS": "100"})
    checks = (check.stdout == "True\n" for check in done[1::2])
    return dict(zip(commands, zip(done[::2], checks, strict=True), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("words", HELP, ids=" ".join)
def test_help_is_shown_without_torch(words, printed):
    done, has_torch = printed[tuple(words)]
    assert (done.returncode, done.stderr) == (0, "")
    assert not has_torch
    assert "{None}" not in done.stdout
    if words[:1] not in (["data"], []):
        command = r"\w+" if words == ["--help"] else rf"{words[0]}( \w+|$)"
        line = rf"^ *(Example: )?gidd {command}"
        example = re.search(line, done.stdout, re.M)
        options = done.stdout.find("─ options")
        assert example is not None
        assert options == -1 or example.start() < options


def cpu_seconds(command: list[str]) -> float:
    """User and system time of a process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.perf
@pytest.mark.parametrize("start", range(0, len(HELP), 10))
def test_help_takes_less_than_half_the_time_of_importing_torch(start):
    """CPU time, the least of three: a busy machine only adds to it."""
    torch = min(cpu_seconds([sys.executable, "-c", "import torch"]) for _ in range(3))
    for words in HELP[start : start + 10]:
        command = [sys.executable, "-m", "gidd.cli", *words]
        assert any(cpu_seconds(command) < 0.5 * torch for _ in range(3)), words


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["nano", "proof", "small-mdm", "10b"])
def test_the_command_line_keeps_every_setting_of_a_preset(preset):
    run = parse_run(TrainOptions, [preset], "gidd train", "")[1].run
    assert run == PRESETS[preset]
