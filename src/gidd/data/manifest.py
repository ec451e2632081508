"""`manifest.json`: the contents and checksums of a prepared folder of token shards.

    manifest = DataManifest.read("data/speeches")
    for shard in manifest.splits["train"].shards:
        tokens = numpy.memmap(f"data/speeches/{shard.file}", dtype=manifest.dtype)
    verify("data/speeches")  # reads every byte

The folder also contains `tokenizer.json` and one folder per split. A shard has datatrove's format:
`NAME.ds` has the tokens of all documents, little-endian; `NAME.ds.index` has the end of each
document (one past its last token) as uint64.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast, final

import numpy as np

from gidd.common.allowed import Allowed, integer, optional
from gidd.common.files import read_json, sha256, write_json
from gidd.common.limits import MANIFEST_BYTES
from gidd.common.terminal import shorten
from gidd.data.tokenizers import TOKENIZER_FILE, FastTokenizer, Tokenizer, as_tokenizer
from gidd.errors import ConfigError, DataError
from gidd.vocab import Vocab

DATA_MANIFEST = "manifest.json"
INDEX = ".index"
DATA_FORMAT = 1
DTYPES = ("uint16", "uint32")
_NAME = re.compile(r"[\w-][\w.-]{0,99}", re.ASCII)
"""Names of splits and shards: plain names, which cannot lead out of the folder."""

_PREPARE = "Run `gidd data prepare` again: it writes the missing files."
_RESTORE = "Delete the file and run `gidd data prepare` again, or restore it from a copy."
_CHUNK = 1 << 22
"""Entries checked at a time."""


@final
@dataclass(frozen=True, kw_only=True)
class ShardRecord:
    """File name, size and checksums of a shard."""

    file: str
    """Token file, relative to the manifest's folder; the index is this name plus `.index`."""

    documents: int
    tokens: int
    """Number of tokens, including one end-of-text token per document."""

    tokens_sha256: str
    index_sha256: str

    @classmethod
    def parse(cls, record: object, split: str, where: str) -> ShardRecord:
        """Read the record of a shard of a split, or raise a `ConfigError` that names `where`."""
        shard = cls(**require_fields(record, where, _SHARD_FIELDS))
        folder, _, name = shard.file.partition("/")
        if folder != split or not (_NAME.fullmatch(name) and name.endswith(".ds")):
            raise ConfigError(
                f"{where}.file must be {split}/NAME.ds, where NAME has letters, digits, '_', '-' "
                f"and '.', got {shorten(shard.file)}."
            )
        return shard


@final
@dataclass(frozen=True, kw_only=True)
class Split:
    """Shards of one split, in the order of the sources."""

    shards: tuple[ShardRecord, ...]

    @property
    def documents(self) -> int:
        """Number of documents in all shards."""
        return sum(shard.documents for shard in self.shards)

    @property
    def tokens(self) -> int:
        """Number of tokens in all shards."""
        return sum(shard.tokens for shard in self.shards)


@final
@dataclass(frozen=True, kw_only=True)
class DataManifest:
    """Contents of a prepared folder."""

    tokenizer: str
    """Fingerprint of the tokenizer."""

    vocab: Vocab
    end_id: int
    dtype: str
    """Type of the tokens on disk: uint16 if the vocabulary size allows it, otherwise uint32."""

    splits: Mapping[str, Split]
    """By name: "train" and, if documents were held out, "validation"."""

    sources: tuple[str, ...] = ()
    """Sources of the documents, as given by the user but without credentials."""

    command: str = ""

    known: Mapping[str, float] = field(default_factory=lambda: {})
    """Exact figures of synthetic sources, such as the entropy rate; empty for text."""

    @classmethod
    def read(cls, folder: str | Path) -> DataManifest:
        """Read the manifest of a prepared folder."""
        path = Path(folder) / DATA_MANIFEST
        if not Path(folder).is_dir():
            raise DataError(
                f"the folder {folder} does not exist. Check the path, or create it with "
                f"`gidd data prepare SOURCE... --out {folder}`."
            )
        if not path.exists():
            raise DataError(
                f"{path} does not exist: the preparation of {folder} is not finished. {_PREPARE}"
            )
        record = read_json(path, _RESTORE, DataError, MANIFEST_BYTES)
        if (version := record.pop("format", None)) != DATA_FORMAT:
            raise DataError(
                f"{path}: format must be {DATA_FORMAT}, got {shorten(version)}. "
                "It was written by another version of gidd; use that version."
            )
        try:
            return cls._parse(record)
        except ConfigError as error:
            raise DataError(f"{path} is not a valid manifest: {error} {_RESTORE}") from error

    @classmethod
    def _parse(cls, record: dict[str, Any]) -> DataManifest:
        require_fields(record, "manifest", _MANIFEST_FIELDS)
        vocab = Vocab(**require_fields(record["vocab"], "vocab", _VOCAB_FIELDS))
        largest = 1 << 8 * np.dtype(record["dtype"]).itemsize
        for name, number, most in (
            ("vocab.size", vocab.size, largest),
            ("end_id", record["end_id"], vocab.size - 1),
        ):
            if number > most:
                raise ConfigError(
                    f"{name} must be at most {most} in shards of {record['dtype']}, got {number}."
                )
        if not record["splits"]:
            raise ConfigError("splits must have at least one split, got none.")
        splits = {name: _parse_split(name, split) for name, split in record["splits"].items()}
        parsed: dict[str, Any] = {
            "vocab": vocab,
            "splits": splits,
            "sources": tuple(record["sources"]),
        }
        return cls(**record | parsed)

    def write(self, folder: str | Path) -> None:
        """Write the manifest; the last step of a preparation."""
        record: dict[str, Any] = {"format": DATA_FORMAT} | asdict(self)
        for name, split in self.splits.items():
            totals = {"documents": split.documents, "tokens": split.tokens}
            record["splits"][name] = totals | record["splits"][name]
        write_json(Path(folder) / DATA_MANIFEST, record, MANIFEST_BYTES)

    def require_tokenizer(self, tokenizer: Tokenizer, name: str | Path) -> None:
        """Raise a `DataError` that contains `name` if the shards are of another tokenizer."""
        if tokenizer.fingerprint != self.tokenizer or tokenizer.vocab != self.vocab:
            raise DataError(
                f"{name} is not the tokenizer of these shards: they were made with "
                f"{self.tokenizer[:12]} ({self.vocab}), it is {tokenizer.fingerprint[:12]} "
                f"({tokenizer.vocab}). Use the {TOKENIZER_FILE} of their folder, or prepare again."
            )


def _of(kind: type, text: str) -> Allowed:
    def contains(value: object) -> bool:
        return isinstance(value, kind)

    return Allowed(contains, text)


def _are_figures(value: object) -> bool:
    return isinstance(value, dict) and all(
        type(figure) in (int, float) and math.isfinite(figure)
        for figure in cast("dict[str, Any]", value).values()
    )


def _are_strings(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(s, str) for s in cast("list[object]", value))


_STRING, _COUNT, _ID = _of(str, "a string"), integer(1), integer(0, (1 << 32) - 1)
_SHARD_FIELDS = {
    "file": _STRING,
    "documents": _COUNT,
    "tokens": _COUNT,
    "tokens_sha256": _STRING,
    "index_sha256": _STRING,
}
_SPLIT_FIELDS = {"documents": _COUNT, "tokens": _COUNT, "shards": _of(list, "a list")}
_VOCAB_FIELDS = {"size": _ID, "mask_id": optional(_ID), "pad_id": optional(_ID)}
NOTE_FIELDS = {
    "sources": Allowed(_are_strings, "a list of strings"),
    "command": _STRING,
    "known": Allowed(_are_figures, "an object of finite numbers"),
}
"""Fields of the manifest that come from the plan of a preparation."""

_MANIFEST_FIELDS = NOTE_FIELDS | {
    "tokenizer": _STRING,
    "vocab": _of(dict, "an object"),
    "end_id": _ID,
    "dtype": Allowed(DTYPES.__contains__, f"one of {', '.join(DTYPES)}"),
    "splits": _of(dict, "an object"),
}


def require_fields(record: object, where: str, fields: Mapping[str, Allowed]) -> dict[str, Any]:
    """Return a record that has these fields with allowed values, or raise a `ConfigError`."""
    if not isinstance(record, dict) or record.keys() != fields.keys():
        raise ConfigError(
            f"{where} must be an object with the fields {', '.join(fields)}, got {shorten(record)}."
        )
    values = cast("dict[str, Any]", record)
    for name, allowed in fields.items():
        for problem in allowed.problems(f"{where}.{name}", values[name]):
            raise ConfigError(problem)
    return values


def _parse_split(name: str, record: object) -> Split:
    where = f"splits.{name}"
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"the name of a split must have letters, digits, '_', '-' and '.', got {shorten(name)}."
        )
    written = require_fields(record, where, _SPLIT_FIELDS)
    shards = [
        ShardRecord.parse(shard, name, f"{where}.shards[{k}]")
        for k, shard in enumerate(written["shards"])
    ]
    split = Split(shards=tuple(shards))
    if len({shard.file for shard in shards}) < len(shards):
        raise ConfigError(f"{where}.shards must name each file once, got some twice.")
    if (written["documents"], written["tokens"]) != (split.documents, split.tokens):
        raise ConfigError(f"documents and tokens of {name} are not the sum of its shards.")
    return split


def verify(folder: str | Path, tokenizer: Tokenizer | FastTokenizer | None = None) -> DataManifest:
    """Read every byte of a prepared folder, check it against the manifest and return that.

    If a tokenizer is given, it must be the one that the shards were made with.
    """
    folder = Path(folder)
    manifest = DataManifest.read(folder)
    if tokenizer is not None:
        manifest.require_tokenizer(as_tokenizer(tokenizer), "the given tokenizer")
    if not (folder / TOKENIZER_FILE).is_file():
        raise DataError(f"{folder / TOKENIZER_FILE} does not exist. {_PREPARE}")
    manifest.require_tokenizer(Tokenizer.load(folder / TOKENIZER_FILE), folder / TOKENIZER_FILE)
    for name, split in manifest.splits.items():
        listed = {folder / shard.file for shard in split.shards}
        if unlisted := set((folder / name).glob("*.ds")) - listed:
            raise DataError(
                f"{min(unlisted)} is not a shard of this preparation: {DATA_MANIFEST} does not "
                "list it. Move it elsewhere."
            )
        for shard in split.shards:
            _verify_shard(folder, shard, manifest)
    return manifest


def _verify_shard(folder: Path, shard: ShardRecord, manifest: DataManifest) -> None:
    path, index = folder / shard.file, folder / (shard.file + INDEX)
    dtype = np.dtype(manifest.dtype).newbyteorder("<")
    _verify_file(path, shard.tokens * dtype.itemsize, shard.tokens_sha256)
    _verify_file(index, shard.documents * 8, shard.index_sha256)
    last = 0
    for start in range(0, shard.documents, _CHUNK):
        ends = np.fromfile(index, dtype="<u8", count=_CHUNK, offset=start * 8).astype(np.int64)
        if (np.diff(ends, prepend=last) < 0).any():
            raise DataError(f"{index}: document ends must not decrease. {_RESTORE}")
        last = int(ends[-1])
    if last != shard.tokens:
        raise DataError(
            f"{index} ends at token {last}, but {path.name} has {shard.tokens}. {_RESTORE}"
        )
    for start in range(0, shard.tokens, _CHUNK):
        ids = np.fromfile(path, dtype=dtype, count=_CHUNK, offset=start * dtype.itemsize)
        if ids.max() >= manifest.vocab.size or (ids == manifest.vocab.mask_id).any():
            raise DataError(
                f"{path}: token ids must be below {manifest.vocab.size} and not the mask "
                f"({manifest.vocab.mask_id}); others occur after token {start}. {_RESTORE}"
            )


def _verify_file(path: Path, size: int, expected: str) -> None:
    if not path.is_file():
        raise DataError(f"{path} does not exist. {_PREPARE}")
    actual = path.stat().st_size
    if actual != size:
        raise DataError(
            f"{path} must have {size} bytes, got {actual}: it is truncated or another file. "
            f"{_RESTORE}"
        )
    if sha256(path) != expected:
        raise DataError(
            f"{path} is not the file that {DATA_MANIFEST} lists: its SHA-256 differs. {_RESTORE}"
        )
