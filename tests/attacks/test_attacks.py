"""Hostile and damaged folders: one message or no harm, within limits on memory and time.

Each attack changes a copy of an honest folder; each command that reads such a folder runs on it in
a child process, on a pseudo-terminal. A command may succeed (the damage is harmless) or end in one
message with status 2. It must not print a traceback or control characters, hang, take more than
1 GB more than on the honest folder, or execute anything.

CI runs a third of the attacks: some on every field and file, and all that bring code. `make
test-long` runs all of them. Each folder is read by one of the commands that interpret what was
damaged, in turn. `make attacks` runs every command on every folder.
"""

import os
import shutil
from itertools import groupby

import pytest
from support.attacks import data, models, runs, sources, tokenizers
from support.attacks.honest import COMMANDS, readers

ATTACKS = {
    "model": models.ATTACKS,
    "published": models.PUBLISHED_ATTACKS,
    "tokenizer": tokenizers.ATTACKS,
    "sources": sources.ATTACKS,
    "data": data.ATTACKS,
    "run": runs.ATTACKS,
}
ALL = "ATTACK_ALL" in os.environ
BRINGS_CODE = ("code", "pickle", "a zip", "tags", "a module", "auto_map", "is unknown")


def group(name: str) -> str:
    """The field of `FIELD #NUMBER`, the file of `FILE is SO`, the subject of `SUBJECT: WHAT`."""
    return name.partition(" #")[0] if " #" in name else name.partition(":")[0].split()[0]


def third(names: list[str]) -> list[str]:
    """Every third attack of each group, from the first, second or third in turn; and all code."""
    kept = {name for name in names if any(word in name for word in BRINGS_CODE)}
    for number, (_, members) in enumerate(groupby(names, group)):
        listed = list(members)
        kept.update(listed[number % min(3, len(listed)) :: 3])
    return [name for name in names if name in kept]


def test_there_are_enough_attacks_of_every_kind():
    assert all(len(attacks) >= 60 for attacks in ATTACKS.values())
    assert sum(map(len, ATTACKS.values())) >= 500


@pytest.mark.parametrize("kind", ATTACKS)
def test_every_group_of_attacks_and_every_command_is_met_in_ci(kind):
    names = list(ATTACKS[kind])
    assert {group(name) for name in third(names)} == {group(name) for name in names}
    assert len(third(names)) >= len(names) / 3
    met = [command(kind, number, name) for number, name in enumerate(third(names))]
    assert all(words in met for words in COMMANDS[kind])


def command(kind: str, number: int, name: str) -> list[str]:
    """The command that reads the folder of the n-th attack."""
    words = readers(kind, name)
    return words[number % len(words)]


def failures(kind: str, names: list[str], honest, folder) -> list[str]:
    """Attack copies of the honest folder; return what must not happen."""
    wrong: list[str] = []
    for number, name in enumerate(names):
        for words in COMMANDS[kind] if ALL else [command(kind, number, name)]:
            folder.mkdir()
            ATTACKS[kind][name](honest.copy(kind, folder))
            result, found = honest.attack(words, folder)
            if found:
                wrong.append(f"{name}: gidd {words[0]}: {', '.join(found)}: {result.text[-400:]}")
            shutil.rmtree(folder)
    return wrong


@pytest.mark.slow
@pytest.mark.parametrize("kind", ATTACKS)
def test_a_hostile_folder_ends_in_one_message_or_does_no_harm(kind, honest, tmp_path):
    names = list(ATTACKS[kind])
    found = failures(kind, names if ALL else third(names), honest, tmp_path / "case")
    assert not found, f"{len(found)} failures\n\n" + "\n\n".join(found)


@pytest.mark.long
@pytest.mark.parametrize("kind", ATTACKS)
def test_every_hostile_folder_ends_in_one_message_or_does_no_harm(kind, honest, tmp_path):
    found = failures(kind, list(ATTACKS[kind]), honest, tmp_path / "case")
    assert not found, f"{len(found)} failures\n\n" + "\n\n".join(found)
