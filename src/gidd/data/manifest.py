"""`manifest.json`: what a folder of token shards holds, and whether it still holds it.

    manifest = Manifest.read("data/speeches")
    for shard in manifest.splits["train"].shards:
        tokens = numpy.memmap(f"data/speeches/{shard.file}", dtype=manifest.dtype)
    verify("data/speeches")  # reads every byte

Beside `manifest.json` lie `tokenizer.json` and one folder per split. A shard is datatrove's store:
`NAME.ds` is the tokens of all documents, little-endian; `NAME.ds.index` is, as uint64, one past
the last token of each document.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np

from gidd.common.files import read_json, sha256, write_json
from gidd.data.tokenizers import FILE as TOKENIZER
from gidd.data.tokenizers import Tokenizer
from gidd.errors import ConfigError, DataError
from gidd.vocab import Vocab

DATA_MANIFEST = "manifest.json"
INDEX = ".index"
FORMAT = 1
DTYPES = ("uint16", "uint32")
_PREPARE = "Run `gidd data prepare` again: it finishes what is missing."
_RESTORE = "Delete the file and run `gidd data prepare` again, or restore it from a copy."
_CHUNK = 1 << 22
"""Entries that are checked at a time."""


@final
@dataclass(frozen=True, kw_only=True)
class ShardRecord:
    """One shard."""

    file: str
    """The token file, relative to the manifest's folder; its index ends in `.index`."""

    documents: int
    tokens: int
    """End-of-text tokens included, one per document."""

    tokens_sha256: str
    index_sha256: str


@final
@dataclass(frozen=True, kw_only=True)
class Split:
    """Documents for one purpose, shard after shard in the order of the sources."""

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
    """A prepared folder."""

    tokenizer: str
    """Fingerprint of the tokenizer."""

    vocab: Vocab
    end_id: int
    dtype: str
    """Type of the tokens on disk: uint16 where the vocabulary allows, else uint32."""

    splits: Mapping[str, Split]
    """By name: "train" and, if documents were held out, "validation"."""

    sources: tuple[str, ...] = ()
    """What the documents were made from, as it was named."""

    command: str = ""

    known: Mapping[str, float] = field(default_factory=lambda: {})
    """Figures known of the source beforehand, such as its entropy rate; of most texts none."""

    @classmethod
    def read(cls, folder: str | Path) -> DataManifest:
        """The manifest of a prepared folder."""
        path = Path(folder) / DATA_MANIFEST
        if not path.is_file():
            raise DataError(
                f"{path} does not exist, so {folder} is not a finished preparation. {_PREPARE}"
            )
        record = read_json(path, _RESTORE, DataError)
        if record.get("format") != FORMAT:
            raise DataError(
                f"{path}: format must be {FORMAT}, got {record.get('format')!r}. "
                "It was written by another version of gidd; use that one."
            )
        try:
            return cls._from(record)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(
                f"{path} is not a whole manifest: {type(error).__name__} {error}. {_RESTORE}"
            ) from error

    @classmethod
    def _from(cls, record: dict[str, Any]) -> DataManifest:
        if record["dtype"] not in DTYPES:
            raise ConfigError(f"dtype must be one of {DTYPES}, got {record['dtype']!r}.")
        splits = {
            name: Split(shards=tuple(ShardRecord(**shard) for shard in split["shards"]))
            for name, split in record["splits"].items()
        }
        for name, split in splits.items():
            written = (record["splits"][name]["documents"], record["splits"][name]["tokens"])
            if written != (split.documents, split.tokens):
                raise ConfigError(f"documents and tokens of {name} are not the sum of its shards.")
        return cls(
            tokenizer=record["tokenizer"],
            vocab=Vocab(**record["vocab"]),
            end_id=record["end_id"],
            dtype=record["dtype"],
            splits=splits,
            sources=tuple(record["sources"]),
            command=record["command"],
            known=record.get("known", {}),
        )

    def write(self, folder: str | Path) -> None:
        """Write the manifest: the last step of a preparation."""
        record: dict[str, Any] = {"format": FORMAT} | asdict(self)
        for name, split in self.splits.items():
            totals = {"documents": split.documents, "tokens": split.tokens}
            record["splits"][name] = totals | record["splits"][name]
        write_json(Path(folder) / DATA_MANIFEST, record)

    def require_tokenizer(self, tokenizer: Tokenizer, name: str | Path) -> None:
        """Refuse a tokenizer that has not made the shards; `name` says where it is from."""
        if tokenizer.fingerprint != self.tokenizer or tokenizer.vocab != self.vocab:
            raise DataError(
                f"{name} is not the tokenizer of these shards: they were made with "
                f"{self.tokenizer[:12]} and {self.vocab}, it is {tokenizer.fingerprint[:12]} with "
                f"{tokenizer.vocab}. Use the {TOKENIZER} beside the manifest, or prepare again."
            )


def verify(folder: str | Path, tokenizer: Tokenizer | None = None) -> DataManifest:
    """Read every byte of a prepared folder and check it against the manifest.

    Args:
        folder: Where `manifest.json` is.
        tokenizer: If given, it must be the one that made the shards.

    Returns:
        The manifest, which is true.
    """
    folder = Path(folder)
    manifest = DataManifest.read(folder)
    if tokenizer is not None:
        manifest.require_tokenizer(tokenizer, "the given tokenizer")
    if not (folder / TOKENIZER).is_file():
        raise DataError(f"{folder / TOKENIZER} does not exist. {_PREPARE}")
    manifest.require_tokenizer(Tokenizer.load(folder / TOKENIZER), folder / TOKENIZER)
    for name, split in manifest.splits.items():
        listed = {folder / shard.file for shard in split.shards}
        for path in sorted((folder / name).glob("*.ds")):
            if path not in listed:
                raise DataError(
                    f"{path} is not a shard of this preparation: {DATA_MANIFEST} does not name it. "
                    "Move it elsewhere."
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
                f"{path}: token ids must be below {manifest.vocab.size} and never the mask "
                f"({manifest.vocab.mask_id}); there are others from token {start} on. {_RESTORE}"
            )


def _verify_file(path: Path, size: int, expected: str) -> None:
    if not path.is_file():
        raise DataError(f"{path} does not exist. {_PREPARE}")
    actual = path.stat().st_size
    if actual != size:
        raise DataError(
            f"{path} must have {size} bytes, got {actual}: it was cut short or is another file. "
            f"{_RESTORE}"
        )
    if sha256(path) != expected:
        raise DataError(
            f"{path} is not the file that {DATA_MANIFEST} was written for: its SHA-256 differs. "
            f"{_RESTORE}"
        )
