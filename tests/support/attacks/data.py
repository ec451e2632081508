"""Hostile folders of token shards."""

import hashlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from support.attacks.tools import (
    ESCAPE,
    Attack,
    become_link,
    become_pipe,
    edit_json,
    nested,
    replace,
    write_json,
)

MANIFEST, TOKENS, INDEX = "manifest.json", "train/00000.ds", "train/00000.ds.index"
_SHARD = ("splits", "train", "shards", 0)


def sign_data(folder: Path) -> None:
    """Make the counts and digests of the manifest fit the files."""
    record = json.loads((folder / MANIFEST).read_text())
    item = np.dtype(record["dtype"]).itemsize
    for split in record["splits"].values():
        for shard in split["shards"]:
            tokens, index = folder / shard["file"], folder / (shard["file"] + ".index")
            shard["tokens"] = tokens.stat().st_size // item
            shard["documents"] = index.stat().st_size // 8
            shard["tokens_sha256"] = hashlib.sha256(tokens.read_bytes()).hexdigest()
            shard["index_sha256"] = hashlib.sha256(index.read_bytes()).hexdigest()
        for total in ("documents", "tokens"):
            split[total] = sum(shard[total] for shard in split["shards"])
    write_json(folder / MANIFEST, record)


def _edit(path: tuple[Any, ...], value: Any, folder: Path) -> None:
    edit_json(folder / MANIFEST, path, value)


def _count(name: str, value: Any, folder: Path) -> None:
    """A count of the first shard, with totals that fit."""
    record = json.loads((folder / MANIFEST).read_text())
    split = record["splits"]["train"]
    split["shards"][0][name] = value
    split[name] = sum(shard[name] for shard in split["shards"])
    write_json(folder / MANIFEST, record)


def _tokens(change: Callable[[Any], Any], folder: Path) -> None:
    tokens = np.fromfile(folder / TOKENS, dtype="<u2")
    change(tokens).astype("<u2").tofile(folder / TOKENS)
    sign_data(folder)


def _ends(change: Callable[[Any], Any], folder: Path) -> None:
    ends = np.fromfile(folder / INDEX, dtype="<u8")
    change(ends).astype("<u8").tofile(folder / INDEX)
    sign_data(folder)


def _put(at: int, value: int) -> Callable[[Any], Any]:
    def change(values: Any) -> Any:
        values[at] = value
        return values

    return change


def _wide(folder: Path) -> None:
    """Tokens of 32 bits, far beyond the vocabulary: counting them would take 32 GB."""
    record = json.loads((folder / MANIFEST).read_text())
    for split in record["splits"].values():
        for shard in split["shards"]:
            path = folder / shard["file"]
            wide = np.fromfile(path, dtype="<u2").astype("<u4")
            wide[0] = 2**32 - 1
            wide.tofile(path)
    write_json(folder / MANIFEST, record | {"dtype": "uint32"})
    sign_data(folder)


def _swap(folder: Path) -> None:
    (folder / TOKENS).rename(folder / "x")
    (folder / INDEX).rename(folder / TOKENS)
    (folder / "x").rename(folder / INDEX)
    sign_data(folder)


_FIELDS: dict[tuple[Any, ...], tuple[Any, ...]] = {
    ("format",): (0, 2, None, ESCAPE),
    ("tokenizer",): (None, 5, "x", ESCAPE, []),
    ("vocab",): (None, [], {}, 300, {"size": 300, "evil": 1}),
    ("vocab", "size"): (-1, 1, 2, 10**10, 10**30, 300.0, "x", None, True),
    ("vocab", "mask_id"): (-1, 299.0, 10**30, "x", 5),
    ("vocab", "pad_id"): (-1, 10**30, "x"),
    ("end_id",): (-1, 10**30, "x", None, 300),
    ("dtype",): ("uint8", "float64", "O", "object", None, 5, "uint32", ESCAPE, ["uint16"]),
    ("splits",): (None, [], {}, 5, {"train": None}, {"train": {"shards": []}}),
    ("splits", "train"): (None, [], {}, ESCAPE),
    ("splits", "train", "documents"): (-1, 10**30, "x", None),
    ("splits", "train", "shards"): (None, {}, [None], ["x"], [[]], [{}]),
    (*_SHARD, "file"): (None, 5, "", "x", "../x.ds", "/etc/passwd", ESCAPE, ["x"], "train/../x.ds"),
    (*_SHARD, "tokens_sha256"): (None, 5, ESCAPE),
    (*_SHARD, "index_sha256"): (None, "x"),
    ("sources",): (None, 5, "x", [None], [ESCAPE]),
    ("command",): (None, 5, [], ESCAPE),
    ("known",): (None, [], {"x": "y"}, {ESCAPE: 1.0}, {"x": None}, {"x": 1e999}),
}

ATTACKS: dict[str, Attack] = {
    **{
        f"manifest {'.'.join(map(str, path))} #{number}": partial(_edit, path, value)
        for path, options in _FIELDS.items()
        for number, value in enumerate(options)
    },
    **{
        f"{name} of the first shard is {value}": partial(_count, name, value)
        for name in ("documents", "tokens")
        for value in (-1, 0, 1, 10**9, 10**18, 10**30, 1.5, True)
    },
    "manifest names a split by an escape": partial(
        lambda folder: _edit(
            ("splits",),
            {ESCAPE: json.loads((folder / MANIFEST).read_text())["splits"]["train"]},
            folder,
        )
    ),
    "manifest is nested": lambda folder: replace(folder / MANIFEST, nested(10**5, "{")),
    "manifest is a pipe": lambda folder: become_pipe(folder / MANIFEST),
    "manifest is /dev/zero": lambda folder: become_link(folder / MANIFEST, "/dev/zero"),
    "manifest has 10^7 values": lambda folder: replace(
        folder / MANIFEST, '{"a": [' + "0," * 10**7 + "0]}"
    ),
    "manifest names 10^5 shards": lambda folder: _edit(
        ("splits", "train", "shards"),
        json.loads((folder / MANIFEST).read_text())["splits"]["train"]["shards"] * 20_000,
        folder,
    ),
    "tokens are beyond the vocabulary": partial(_tokens, _put(0, 65535)),
    "tokens are masks": partial(_tokens, _put(0, 299)),
    "tokens are escapes": partial(_tokens, lambda t: np.full_like(t, 155)),
    "tokens are missing": lambda folder: (folder / TOKENS).unlink(),
    "tokens have an odd size": lambda folder: replace(
        folder / TOKENS, (folder / TOKENS).read_bytes()[:-1]
    ),
    "tokens are a pipe": lambda folder: become_pipe(folder / TOKENS),
    "tokens are wide": _wide,
    "tokens and index are swapped": _swap,
    "ends decrease": partial(_ends, lambda ends: ends[::-1]),
    "ends are 2^63": partial(_ends, _put(0, 2**63)),
    "ends are zero": partial(_ends, lambda ends: ends * 0),
    "index is empty": partial(_ends, lambda ends: ends[:0]),
    "index is missing": lambda folder: (folder / INDEX).unlink(),
    "folder has code": lambda folder: replace(folder / "gidd.py", "import os; os.system('x')"),
}
