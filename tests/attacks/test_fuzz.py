"""Damage at random, by hypothesis: 3 folders for each of six kinds of file, 500 by `make attacks`.

Damage is structured: a value of a record is replaced, removed or repeated; a header, an index or a
table of tokens is changed and the digests made to fit, so that the damage passes the first check;
or bytes are flipped, removed and inserted anywhere.
"""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings, strategies as st
from support.attacks.data import sign_data
from support.attacks.honest import COMMANDS
from support.attacks.runs import checkpoint
from support.attacks.tools import (
    HOSTILE,
    at,
    leaves,
    put,
    read_tensors,
    sign_checkpoint,
    sign_model,
    write_json,
    write_tensors,
)

Draw = Callable[[st.SearchStrategy[Any]], Any]

SCALARS = st.one_of(
    st.sampled_from(HOSTILE),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=20),
    st.booleans(),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


def damage_json(draw: Draw, value: Any) -> Any:
    """Replace, remove, repeat or move values of a record, once to three times."""
    for _ in range(draw(st.integers(1, 3))):
        paths = list(leaves(value))
        path = paths[draw(st.integers(0, len(paths) - 1))]
        kind = draw(st.sampled_from(("replace", "replace", "remove", "nudge", "copy", "add")))
        old = at(value, path)
        if kind == "remove" and path:
            parent = at(value, path[:-1])
            keep = (
                {key: child for key, child in parent.items() if key != path[-1]}
                if isinstance(parent, dict)
                else [child for number, child in enumerate(parent) if number != path[-1]]
            )
            value = put(value, path[:-1], keep)
        elif kind == "nudge" and isinstance(old, int | float):
            value = put(
                value, path, draw(st.sampled_from((old + 1, old - 1, -old, old * 1000, old / 2)))
            )
        elif kind == "copy":
            value = put(value, path, at(value, paths[draw(st.integers(0, len(paths) - 1))]))
        elif kind == "add" and isinstance(old, dict):
            value = put(value, (*path, draw(st.text(max_size=8))), draw(VALUES))
        else:
            value = put(value, path, draw(VALUES))
    return value


def damage_bytes(draw: Draw, data: bytes) -> bytes:
    """Flip, remove, insert or repeat bytes."""
    result = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, max(0, len(result) - 1)))
        length = draw(st.integers(1, 16))
        kind = draw(st.sampled_from(("flip", "cut", "insert", "repeat", "end")))
        if kind == "flip" and result:
            result[start] ^= draw(st.integers(1, 255))
        elif kind == "cut":
            del result[start : start + length]
        elif kind == "insert":
            result[start:start] = draw(st.binary(min_size=1, max_size=16))
        elif kind == "repeat":
            result[start:start] = result[start : start + length] * 20
        else:
            del result[start:]
    return bytes(result)


def damage_file(draw: Draw, path: Path) -> None:
    """Damage a JSON file by its values, or by its bytes."""
    if draw(st.integers(0, 3)):
        write_json(path, damage_json(draw, json.loads(path.read_text())))
    else:
        path.write_bytes(damage_bytes(draw, path.read_bytes()))


def damage_record(draw: Draw, folder: Path) -> None:
    damage_file(draw, folder / "gidd.json")


def damage_tokenizer(draw: Draw, folder: Path) -> None:
    name = draw(st.sampled_from(("tokenizer.json", "tokenizer.json", "tokenizer_config.json")))
    damage_file(draw, folder / name)


def damage_header(draw: Draw, folder: Path) -> None:
    """The weights: the header by its values, or any bytes; the digest fits."""
    path = folder / "model.safetensors"
    header, data = read_tensors(path)
    if draw(st.integers(0, 3)):
        write_tensors(path, json.dumps(damage_json(draw, header)).encode(), data)
    else:
        path.write_bytes(damage_bytes(draw, path.read_bytes()))
    sign_model(folder)


def damage_manifest(draw: Draw, folder: Path) -> None:
    damage_file(draw, folder / "manifest.json")


def damage_shards(draw: Draw, folder: Path) -> None:
    """Tokens or index; mostly, the counts and digests of the manifest fit."""
    path = folder / "train" / draw(st.sampled_from(("00000.ds", "00000.ds.index")))
    if draw(st.booleans()):
        dtype = "<u8" if path.suffix == ".index" else "<u2"
        values = np.fromfile(path, dtype=dtype)
        place = draw(st.integers(0, len(values) - 1))
        values[place] = draw(st.integers(0, np.iinfo(dtype).max))
        values.tofile(path)
    else:
        path.write_bytes(damage_bytes(draw, path.read_bytes()))
    if draw(st.integers(0, 3)):
        sign_data(folder)


def damage_run(draw: Draw, folder: Path) -> None:
    """run.yaml or the record of a checkpoint; the digests fit."""
    path = checkpoint(folder) / draw(st.sampled_from(("run.yaml", "run.yaml", "record.json")))
    if path.name == "record.json":
        damage_file(draw, path)
    elif draw(st.integers(0, 3)):
        value = damage_json(draw, yaml.safe_load(path.read_text()))
        text = yaml.safe_dump(value, allow_unicode=draw(st.booleans()))
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
    else:
        path.write_bytes(damage_bytes(draw, path.read_bytes()))
    sign_checkpoint(checkpoint(folder))


DAMAGES = [
    ("model", damage_record),
    ("tokenizer", damage_tokenizer),
    ("model", damage_header),
    ("data", damage_manifest),
    ("data", damage_shards),
    ("run", damage_run),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "damage"), DAMAGES)
@settings(
    max_examples=500 if "ATTACK_ALL" in os.environ else 3,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_a_damaged_folder_ends_in_one_message_or_does_no_harm(
    kind, damage, data, honest, tmp_path_factory
):
    draw = data.draw
    commands = [words for words in COMMANDS[kind] if words[0] != "plot"]  # it reads the log alone
    words = commands[draw(st.integers(0, len(commands) - 1))]
    folder = tmp_path_factory.getbasetemp() / "case"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    damage(draw, honest.copy(kind, folder))
    result, found = honest.attack(words, folder)
    assert not found, f"gidd {' '.join(words)}: {', '.join(found)}\n{result.text[-2000:]}"
