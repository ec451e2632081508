"""Completion of commands, options and values: what bash offers, without torch."""

import os
import subprocess
import sys

import pytest
from support.one_process import run_each

from gidd.cli import COMMANDS
from gidd.cli.completion import next_words

BASH = """
eval "$(gidd completion bash)"
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_gidd
printf "%s\\n" "${COMPREPLY[@]}"
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "words, offered",
    [
        (["sam"], ["sample"]),
        (["sample", "my model", "--num"], ["--num-samples"]),
        (["train", "nano", "--parallel", ""], ["ddp", "fsdp"]),
        (["sample", ""], [""]),  # bash offers files then
    ],
)
def test_bash_offers_commands_options_and_values(words, offered, tmp_path):
    script = tmp_path / "gidd"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gidd.cli "$@"\n')
    script.chmod(0o755)
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = ["bash", "--norc", "-c", BASH, "bash", "gidd", *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout[:-1].split("\n")) == offered


@pytest.mark.slow
def test_words_are_found_without_torch():
    lines = [["eval", "sel"], ["train", "na"], ["data", "pre"], ["nothing", "--a"]]
    lines += [["train", "nano", "--noise", "hybrid", "--noise.p"], ["sample", "m", "--steps", ""]]
    commands = [["completion", "words", *line] for line in lines]
    check = ["python", "import sys; print('torch' in sys.modules)"]
    *done, has_torch = run_each([*commands, check])
    offered = ["self-correction", "nano", "prepare", "", "--noise.p-uniform", ""]
    assert [each.stdout.strip() for each in done] == offered
    assert has_torch.stdout == "False\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [c for c in COMMANDS if c not in ("eval", "data", "train", "plan")]
)
def test_every_command_has_options(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert "--help" in next_words([command], "--")
