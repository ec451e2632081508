"""Hostile and damaged folders: one message or no harm, within limits on memory and time.

Each attack changes a copy of an honest folder; each command that reads such a folder runs on it in
a child process, on a pseudo-terminal. A command may succeed (the damage is harmless) or end in one
message with status 2. It must not print a traceback or control characters, hang, take more than
1 GB more than on the honest folder, or execute anything.

CI runs one attack of each kind, `make attacks` every command on every folder.
"""

import os
import shutil

import pytest
from support.attacks import chats, data, foreign, models, runs, sources, tokenizers
from support.attacks.honest import COMMANDS, readers

ATTACKS = {
    "model": models.ATTACKS,
    "published": models.PUBLISHED_ATTACKS,
    "sharded": foreign.SHARDED_ATTACKS,
    "gemma": foreign.GEMMA_ATTACKS,
    "tokenizer": tokenizers.ATTACKS,
    "sources": sources.ATTACKS,
    "data": data.ATTACKS,
    "chats": chats.ATTACKS,
    "run": runs.ATTACKS,
    "lora": runs.LORA_ATTACKS,
}
FIRST = {
    "model": "pickle as safetensors",
    "published": "code",
    "sharded": "index: a tensor in file #0",
    "gemma": "config text_config.head_dim #3",
    "tokenizer": "id of 2^32 - 1",
    "sources": "zst: one line of 6 GB",
    "data": "tokens are wide",
    "chats": "chat: special tokens in the last answer",
    "run": "run is tags",
    "lora": "lora rank #4",
}
"""The attack of each kind that CI runs."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ATTACKS)
def test_a_hostile_folder_ends_in_one_message_or_does_no_harm(kind, honest, tmp_path):
    every = "ATTACK_ALL" in os.environ
    wrong: list[str] = []
    for name in ATTACKS[kind] if every else [FIRST[kind]]:
        for words in COMMANDS[kind] if every else readers(kind, name)[:1]:
            folder = tmp_path / "case"
            folder.mkdir()
            ATTACKS[kind][name](honest.copy(kind, folder))
            result, found = honest.attack(words, folder)
            if found:
                wrong.append(f"{name}: gidd {words[0]}: {', '.join(found)}: {result.text[-400:]}")
            shutil.rmtree(folder)
    assert not wrong, f"{len(wrong)} failures\n\n" + "\n\n".join(wrong)
