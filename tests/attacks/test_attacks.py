"""Hostile and damaged folders: one message or no harm, within limits on memory and time.

Each attack changes a copy of an honest folder; each command that reads such a folder runs on it in
a child process, on a pseudo-terminal. A command may succeed (the damage is harmless) or end in one
message with status 2. It must not print a traceback or control characters, hang, take more than
1 GB more than on the honest folder, or execute anything. `make attacks` runs every command on
every folder; otherwise each folder is read by one of the commands, in turn.
"""

import os
import shutil

import pytest
from support.attacks import data, models, runs, sources, tokenizers
from support.attacks.honest import COMMANDS

ATTACKS = {
    "model": models.ATTACKS,
    "published": models.PUBLISHED_ATTACKS,
    "tokenizer": tokenizers.ATTACKS,
    "sources": sources.ATTACKS,
    "data": data.ATTACKS,
    "run": runs.ATTACKS,
}


def test_there_are_enough_attacks_of_every_kind():
    assert all(len(attacks) >= 60 for attacks in ATTACKS.values())
    assert sum(map(len, ATTACKS.values())) >= 500


@pytest.mark.slow
@pytest.mark.parametrize("kind", ATTACKS)
def test_a_hostile_folder_ends_in_one_message_or_does_no_harm(kind, honest, tmp_path):
    failures = []
    commands = COMMANDS[kind]
    for number, (name, attack) in enumerate(ATTACKS[kind].items()):
        one = number % len(commands)
        for words in commands if "ATTACK_ALL" in os.environ else commands[one : one + 1]:
            folder = tmp_path / "case"
            folder.mkdir()
            attack(honest.copy(kind, folder))
            result, found = honest.attack(words, folder)
            if found:
                failures.append(
                    f"{name}: gidd {words[0]}: {', '.join(found)}: {result.text[-400:]}"
                )
            shutil.rmtree(folder)
    assert not failures, f"{len(failures)} failures\n\n" + "\n\n".join(failures)
