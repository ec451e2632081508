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
_SHARD = re.compile(r"([\w-][\w.-]{0,99})/[\w-][\w.-]{0,99}\.ds", re.ASCII)
"""Split and shard: plain names, which cannot lead out of the folder."""

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

    def __post_init__(self) -> None:
        """Raise `ConfigError` for names that lead out of the folder, and for empty shards."""
        if not _SHARD.fullmatch(self.file):
            raise ConfigError(
                "file must be SPLIT/NAME.ds, where names have letters, digits, '_', '-' and '.', "
                f"got {shorten(self.file)}."
            )
        for name, number in (("documents", self.documents), ("tokens", self.tokens)):
            if not 1 <= number < 1 << 63:
                raise ConfigError(f"{name} must be in [1, 2**63), got {shorten(number)}.")

    @classmethod
    def parse(cls, record: object, split: str, where: str) -> ShardRecord:
        """Read the record of a shard of a split, or raise a `ConfigError` that names `where`."""
        shard = cls(**require_types(record, where, _SHARD_TYPES))
        if shard.file.partition("/")[0] != split:
            raise ConfigError(f"{where}.file must be {split}/NAME.ds, got {shard.file}.")
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
        require_types(record, "manifest", NOTE_TYPES | _MANIFEST_TYPES)
        require_notes(record, "manifest")
        vocab = Vocab(**require_types(record["vocab"], "vocab", _VOCAB_TYPES))
        if record["dtype"] not in DTYPES:
            raise ConfigError(f"dtype must be uint16 or uint32, got {shorten(record['dtype'])}.")
        largest = 1 << 8 * np.dtype(record["dtype"]).itemsize
        if not 0 <= record["end_id"] < vocab.size <= largest:
            raise ConfigError(
                f"end_id must be below vocab.size, and vocab.size at most {largest}, got "
                f"{shorten(record['end_id'])} and {shorten(vocab.size)}."
            )
        if not record["splits"]:
            raise ConfigError("splits must have at least one split, got none.")
        splits = {name: _parse_split(name, split) for name, split in record["splits"].items()}
        parsed: dict[str, Any] = {"vocab": vocab, "splits": splits}
        parsed["sources"] = tuple(record["sources"])
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


_SHARD_TYPES = {
    "file": str,
    "documents": int,
    "tokens": int,
    "tokens_sha256": str,
    "index_sha256": str,
}
_SPLIT_TYPES = {"documents": int, "tokens": int, "shards": list}
_VOCAB_TYPES = {"size": int, "mask_id": int | None, "pad_id": int | None}
_MANIFEST_TYPES = {"tokenizer": str, "vocab": dict, "end_id": int, "dtype": str, "splits": dict}
NOTE_TYPES = {"sources": list, "command": str, "known": dict}
"""Fields of the manifest that come from the plan of a preparation."""


def require_types(record: object, where: str, types: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record that has these fields with values of these types, or raise `ConfigError`."""
    if not isinstance(record, dict) or record.keys() != types.keys():
        raise ConfigError(
            f"{where} must be an object with the fields {', '.join(types)}, got {shorten(record)}."
        )
    values = cast("dict[str, Any]", record)
    for name, kind in types.items():
        if not isinstance(values[name], kind) or isinstance(values[name], bool):
            raise ConfigError(
                f"{where}.{name} must be {getattr(kind, '__name__', kind)}, got "
                f"{shorten(values[name])}."
            )
    return values


def require_notes(record: Mapping[str, Any], where: str) -> None:
    """Raise `ConfigError` if sources are not strings, or exact figures not finite numbers."""
    figures = record["known"].values()
    if not all(type(figure) in (int, float) and math.isfinite(figure) for figure in figures):
        raise ConfigError(f"{where}.known must be finite numbers, got {shorten(record['known'])}.")
    if not all(isinstance(source, str) for source in record["sources"]):
        raise ConfigError(f"{where}.sources must be strings, got {shorten(record['sources'])}.")


def _parse_split(name: str, record: object) -> Split:
    where = f"splits.{shorten(name)}"
    written = require_types(record, where, _SPLIT_TYPES)
    shards = [
        ShardRecord.parse(shard, name, f"{where}.shards[{k}]")
        for k, shard in enumerate(written["shards"])
    ]
    split = Split(shards=tuple(shards))
    if len({shard.file for shard in shards}) < len(shards):
        raise ConfigError(f"{where}.shards must name each file once, got some twice.")
    if not shards or (written["documents"], written["tokens"]) != (split.documents, split.tokens):
        raise ConfigError(f"{where}: documents and tokens are not the sum of its shards.")
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
