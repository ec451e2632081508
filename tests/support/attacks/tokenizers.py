"""Hostile tokenizers in a model folder."""

import base64
import json
import struct
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


def _replace(pattern: Any, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _sequence(*parts: Any, key: str = "normalizers") -> dict[str, Any]:
    return {"type": "Sequence", key: list(parts)}


def _split(pattern: str) -> dict[str, Any]:
    split = {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }
    level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    return _sequence(split, level, key="pretokenizers")


def _charsmap(growth: int) -> str:
    """SentencePiece's compiled map: a trie (not a valid one) and the replacements."""
    return base64.b64encode(struct.pack("<I", 8) + bytes(8) + b"x" * growth + b"\0").decode()


def _deep(depth: int) -> Any:
    value: Any = {"type": "Lowercase"}
    for _ in range(depth):
        value = _sequence(value)
    return value


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


def _word_piece(**fields: Any) -> Attack:
    vocab = {chr(33 + k): k for k in range(90)}
    model = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##"}
    return _set(model=model | {"max_input_chars_per_word": 100, "vocab": vocab} | fields)


_BOMB = [_replace({"String": "a"}, "a" * 1000)] * 3
_LETTERS = {"String": "e"}

_PARTS: dict[str, Attack] = {
    "normalizer bomb": _set(normalizer=_sequence(*_BOMB)),
    "normalizer bomb by regex": _set(
        normalizer=_sequence(*[_replace({"Regex": "."}, "a" * 999)] * 4)
    ),
    "normalizer bomb in one": _set(normalizer=_replace(_LETTERS, "e" * 10**7)),
    "normalizer bomb of 100 parts": _set(normalizer=_sequence(*[_replace(_LETTERS, "ee")] * 100)),
    "normalizer bomb nested": _set(normalizer=_sequence(_sequence(*_BOMB), _sequence(*_BOMB))),
    "normalizer prepends 10 MB": _set(normalizer={"type": "Prepend", "prepend": "x" * 10**7}),
    "normalizer is nested": _set(normalizer=_deep(50)),
    "normalizer of 10^5 parts": _set(normalizer=_sequence(*[{"type": "NFKD"}] * 10**5)),
    "normalizer is unknown": _set(normalizer={"type": "os.system"}),
    "normalizer is a number": _set(normalizer=5),
    "normalizer is an escape": _set(normalizer={"type": ESCAPE}),
    "charsmap bomb": _set(
        normalizer={"type": "Precompiled", "precompiled_charsmap": _charsmap(10**6)}
    ),
    "charsmap is broken": _set(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
    "charsmap claims 2^31": _set(
        normalizer={"type": "Precompiled", "precompiled_charsmap": "/////w=="}
    ),
    "decoder bomb": _set(decoder=_sequence(*_BOMB, key="decoders")),
    "decoder bomb by regex": _set(
        decoder=_sequence(*[_replace({"Regex": "."}, "b" * 999)] * 3, key="decoders")
    ),
    "decoder is nested": _set(
        decoder=json.loads(json.dumps(_deep(40)).replace("normalizers", "decoders"))
    ),
    "decoder strips": _set(
        decoder={"type": "Strip", "content": "e", "start": 10**9, "stop": 10**9}
    ),
    "decoder is unknown": _set(decoder={"type": "x"}),
    "decoder writes escapes": _set(
        decoder=_sequence(
            {
                "type": "ByteLevel",
                "add_prefix_space": True,
                "trim_offsets": True,
                "use_regex": True,
            },
            _replace({"Regex": "."}, "\x1b[2J"),
            key="decoders",
        )
    ),
    "regex backtracks": _set(pre_tokenizer=_split("(e+)+$")),
    "regex backtracks more": _set(pre_tokenizer=_split(r"(\w+\s*)+;")),
    "regex of alternatives": _set(pre_tokenizer=_split("(a|a|e|e)*z")),
    "regex is cubic": _set(pre_tokenizer=_split("e*e*e*e*e*e*z")),
    "regex refers back": _set(pre_tokenizer=_split(r"(.*)(.*)(.*)(.*)\1\2\3\4z")),
    "regex looks back": _set(pre_tokenizer=_split("(?<=(e+)+z)")),
    "regex repeats 10^9": _set(pre_tokenizer=_split("e{1000000000}")),
    "regex repeats nested": _set(pre_tokenizer=_split("((e{1000}){1000}){1000}")),
    "regex is invalid": _set(pre_tokenizer=_split("(((")),
    "regex is empty": _set(pre_tokenizer=_split("")),
    "regex of 1 MB": _set(pre_tokenizer=_split("(e|" * 10**5 + "x" + ")" * 10**5)),
    "regex of parentheses": _set(pre_tokenizer=_split("(" * 10**4 + ")" * 10**4)),
    "regex in a normalizer": _set(normalizer=_replace({"Regex": "(e+)+$"}, "e")),
    "pre-tokenizer is unknown": _set(pre_tokenizer={"type": "x"}),
    "pre-tokenizer is missing": _set(pre_tokenizer=None),
    "post-processor is a bomb": _set(
        post_processor={
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 10**5,
            "pair": [],
            "special_tokens": {},
        }
    ),
    "padding to 10^9": _set(
        padding={
            "strategy": {"Fixed": 10**9},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "[PAD]",
        }
    ),
    "truncation to 0": _set(
        truncation={
            "direction": "Right",
            "max_length": 0,
            "strategy": "LongestFirst",
            "stride": 10**9,
        }
    ),
    "version is unknown": _set(version="9.9"),
}

_MODELS: dict[str, Attack] = {
    "id of 2^32 - 1": _ids(2**32 - 1),
    "id of 10^9": _ids(10**9),
    "id of -1": _ids(-1),
    "id of 10^30": _ids(10**30),
    "id of an added token": _added(id=4_000_000_000),
    "id of an added token is negative": _added(id=-5),
    "id of an added token is a string": _added(id="x"),
    "added token of 10 MB": _added(content="x" * 10**7),
    "added token is empty": _added(content=""),
    "added token is an escape": _added(content=ESCAPE),
    "10^5 added tokens": partial(
        _change,
        lambda r: (
            r
            | {
                "added_tokens": [
                    r["added_tokens"][0] | {"content": f"x{k}", "id": k} for k in range(10**5)
                ]
            }
        ),
    ),
    "added token in every text": _added(content="e", special=False),
    "vocabulary is empty": _model(vocab={}, merges=[]),
    "vocabulary is a list": _model(vocab=[["x", 0.0]]),
    "vocabulary of one": _model(vocab={"x": 0}, merges=[]),
    "vocabulary of long tokens": _model(
        vocab={"x" * 10**6 + str(k): k for k in range(20)}, merges=[]
    ),
    "merges of unknown tokens": _model(merges=[["zz", "yy"]]),
    "merges of numbers": _model(merges=[[1, 2]]),
    "merges is a string": _model(merges="x"),
    "dropout": _model(dropout=1.0),
    "dropout of 5": _model(dropout=5.0),
    "prefix of 1 MB": _model(continuing_subword_prefix="x" * 10**6),
    "suffix of 1 MB": _model(end_of_word_suffix="x" * 10**6),
    "unknown token is missing": _model(unk_token="[NOPE]"),
    "model is unknown": _set(model={"type": "os.system"}),
    "model is null": _set(model=None),
    "word piece": _word_piece(),
    "word piece without an unknown token": _word_piece(unk_token="[NOPE]", vocab={"x": 0}),
    "word piece of long words": _word_piece(max_input_chars_per_word=10**9),
    "word piece of negative words": _word_piece(max_input_chars_per_word=-1),
    "unigram": _set(model={"type": "Unigram", "unk_id": 5, "vocab": [["x", -1e308], ["y", 1e308]]}),
    "unigram of NaN": _set(model={"type": "Unigram", "unk_id": 0, "vocab": [["x", None]]}),
    "unigram without an unknown token": _set(
        model={"type": "Unigram", "unk_id": None, "vocab": [["x", 0.0]]}
    ),
    "unigram is empty": _set(model={"type": "Unigram", "unk_id": None, "vocab": []}),
    "word level": _set(model={"type": "WordLevel", "vocab": {"x": 0}, "unk_token": "[NOPE]"}),
}


def _settings(value: Any, folder: Path) -> None:
    write_json(folder / SETTINGS, value)


_SETTINGS: dict[str, Attack] = {
    **{
        f"settings {name} #{number}": partial(_settings, {name: value})
        for name in ("eos_token", "pad_token", "mask_token")
        for number, value in enumerate(
            (5, [], {}, {"content": 5}, {"content": []}, ESCAPE, "x" * 10**6)
        )
    },
    "settings are a list": partial(_settings, []),
    "settings run code": partial(_settings, {"auto_map": {"AutoTokenizer": ["evil.Evil", None]}}),
    "settings are nested": lambda folder: replace(folder / SETTINGS, nested(10**5, "{")),
    "settings are a pipe": lambda folder: become_pipe(folder / SETTINGS),
    "settings are /dev/zero": lambda folder: become_link(folder / SETTINGS, "/dev/zero"),
    "settings are not UTF-8": lambda folder: replace(folder / SETTINGS, b'{"eos_token": "\xff"}'),
}

_FILES: dict[str, Attack] = {
    "file is empty": lambda folder: replace(folder / FILE, b""),
    "file is a list": lambda folder: replace(folder / FILE, b"[]"),
    "file is a number": lambda folder: replace(folder / FILE, b"5"),
    "file is nested": lambda folder: replace(folder / FILE, nested(10**6, "{")),
    "file is not UTF-8": lambda folder: replace(folder / FILE, b"\xff" * 1000),
    "file is a pipe": lambda folder: become_pipe(folder / FILE),
    "file is /dev/zero": lambda folder: become_link(folder / FILE, "/dev/zero"),
    "file is a link to itself": lambda folder: become_link(folder / FILE, FILE),
    "file is missing": lambda folder: (folder / FILE).unlink(),
    "file of 70 MB": lambda folder: replace(folder / FILE, '{"a": "' + "x" * 70_000_000 + '"}'),
    "file of 10^7 values": lambda folder: replace(folder / FILE, '{"a": [' + "0," * 10**7 + "0]}"),
    **{f"file: model is {k}": _set(model=value) for k, value in enumerate(HOSTILE[:6])},
}

ATTACKS: dict[str, Attack] = {**_PARTS, **_MODELS, **_SETTINGS, **_FILES}
