"""Hostile tokenizers in a model folder."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from support.attacks.tools import (
    ESCAPE,
    HOSTILE,
    Attack,
    become_link,
    become_pipe,
    nested,
    put,
    replace,
    write_json,
)

FILE, SETTINGS = "tokenizer.json", "tokenizer_config.json"


def _change(change: Callable[[dict[str, Any]], dict[str, Any]], folder: Path) -> None:
    write_json(folder / FILE, change(json.loads((folder / FILE).read_text())))


def _set(**fields: Any) -> Attack:
    return partial(_change, lambda record: record | fields)


def _model(**fields: Any) -> Attack:
    return partial(_change, lambda record: put(record, ("model",), record["model"] | fields))


def _sequence(*parts: Any) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(parts)}


def _added(**fields: Any) -> Attack:
    entry = {"content": "x", "id": 300, "lstrip": False, "normalized": False, "rstrip": False}
    entry |= {"single_word": False, "special": True} | fields
    return partial(
        _change, lambda record: record | {"added_tokens": [*record["added_tokens"], entry]}
    )


def _ids(value: int) -> Attack:
    def change(record: dict[str, Any]) -> dict[str, Any]:
        vocab = dict(record["model"]["vocab"])
        vocab[next(iter(vocab))] = value
        return put(record, ("model", "vocab"), vocab)

    return partial(_change, change)


def _settings(value: Any, folder: Path) -> None:
    write_json(folder / SETTINGS, value)


_PADDING = {"strategy": {"Fixed": 10**9}, "direction": "Right", "pad_to_multiple_of": None}
_PADDING |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}

ATTACKS: dict[str, Attack] = {
    "id of 2^32 - 1": _ids(2**32 - 1),
    "id of -1": _ids(-1),
    "id of 10^30": _ids(10**30),
    "id of an added token": _added(id=4_000_000_000),
    "id of an added token is a string": _added(id="x"),
    "added token of 10 MB": _added(content="x" * 10**7),
    "added token is an escape": _added(content=ESCAPE),
    "vocabulary is empty": _model(vocab={}, merges=[]),
    "vocabulary of 10^6": _model(vocab={f"x{k}": k for k in range(10**6)}, merges=[]),
    "vocabulary of long tokens": _model(
        vocab={"x" * 10**6 + str(k): k for k in range(20)}, merges=[]
    ),
    "merges of unknown tokens": _model(merges=[["zz", "yy"]]),
    "merges is a string": _model(merges="x"),
    "suffix of 1 MB": _model(end_of_word_suffix="x" * 10**6),
    "model is unknown": _set(model={"type": "os.system"}),
    "unigram": _set(model={"type": "Unigram", "unk_id": 5, "vocab": [["x", -1e308], ["y", 1e308]]}),
    "unigram of NaN": _set(model={"type": "Unigram", "unk_id": 0, "vocab": [["x", None]]}),
    "word level": _set(model={"type": "WordLevel", "vocab": {"x": 0}, "unk_token": "[NOPE]"}),
    "normalizer is unknown": _set(normalizer={"type": "os.system"}),
    "normalizer is an escape": _set(normalizer={"type": ESCAPE}),
    "normalizer prepends 10 MB": _set(normalizer={"type": "Prepend", "prepend": "x" * 10**7}),
    "normalizer of 10^5 parts": _set(normalizer=_sequence(*[{"type": "NFKD"}] * 10**5)),
    "charsmap is broken": _set(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
    "decoder is unknown": _set(decoder={"type": "x"}),
    "decoder writes escapes": _set(
        decoder={"type": "Replace", "pattern": {"Regex": "."}, "content": "\x1b[2J"}
    ),
    "padding to 10^9": _set(padding=_PADDING),
    **{f"file: model is {k}": _set(model=value) for k, value in enumerate(HOSTILE[:6])},
    "file is nested": lambda folder: replace(folder / FILE, nested(10**6, "{")),
    "file is not UTF-8": lambda folder: replace(folder / FILE, b"\xff" * 1000),
    "file is a pipe": lambda folder: become_pipe(folder / FILE),
    "file is /dev/zero": lambda folder: become_link(folder / FILE, "/dev/zero"),
    "file is missing": lambda folder: (folder / FILE).unlink(),
    "file of 70 MB": lambda folder: replace(folder / FILE, '{"a": "' + "x" * 70_000_000 + '"}'),
    "file of 10^7 values": lambda folder: replace(folder / FILE, '{"a": [' + "0," * 10**7 + "0]}"),
    **{
        f"settings {name} #{number}": partial(_settings, {name: value})
        for name in ("eos_token", "pad_token", "mask_token")
        for number, value in enumerate((5, {"content": []}, ESCAPE, "x" * 10**6))
    },
    "settings run code": partial(_settings, {"auto_map": {"AutoTokenizer": ["evil.Evil", None]}}),
    "settings are nested": lambda folder: replace(folder / SETTINGS, nested(10**5, "{")),
    "settings are a pipe": lambda folder: become_pipe(folder / SETTINGS),
}
