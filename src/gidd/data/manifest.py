"""`manifest.json`: the contents and checksums of a prepared folder of token shards.

A shard has datatrove's format: `NAME.ds` has the tokens of all documents, little-endian;
`NAME.ds.index` has the end of each document (one past its last token) as uint64. Shards of chats
also have `NAME.ds.given`: one byte per token, 1 if it is part of the condition.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from gidd.common.config.allowed import integer, require_allowed
from gidd.common.config.codec import ADDED_LATER, from_plain
from gidd.common.files import MANIFEST_BYTES, read_json, sha256, write_json
from gidd.common.terminal import shorten
from gidd.data.store import local_folder
from gidd.data.tokenizers import TOKENIZER_FILE, FastTokenizer, Tokenizer, as_tokenizer
from gidd.errors import ConfigError, DataError
from gidd.vocab import Vocab

DATA_MANIFEST = "manifest.json"
INDEX, GIVEN = ".index", ".given"
DATA_FORMAT = 1
_SHARD = re.compile(r"([\w-][\w.-]{0,99})/[\w-][\w.-]{0,99}\.ds", re.ASCII)
"""Split and shard: plain names, which cannot lead out of the folder."""

_PREPARE = "Run `gidd data prepare` again: it writes the missing files."
_RESTORE = "Delete the file and run `gidd data prepare` again, or restore it from a copy."
_CHUNK = 1 << 22  # tokens checked at a time


@dataclass(frozen=True, kw_only=True)
class ShardRecord:
    """File name, size and checksums of a shard."""

    file: str
    """Token file, relative to the manifest's folder; the index is this name plus `.index`."""
    documents: Annotated[int, integer(1)]
    tokens: Annotated[int, integer(1)]
    """Number of tokens, including one end-of-text token per document."""
    tokens_sha256: str
    index_sha256: str
    given_sha256: str | None = field(default=None, metadata={ADDED_LATER: True})
    """Of `.given`; None if there is no condition."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` for names that lead out of the folder, and for empty shards."""
        if not _SHARD.fullmatch(self.file):
            name = shorten(self.file)
            raise ConfigError(f"file must be a name such as train/00000.ds, got {name}.")
        require_allowed(self)

    def files(self, dtype: str) -> dict[str, tuple[int, str]]:
        """Return size and SHA-256 of each file by name, for tokens of type `dtype`."""
        num_bytes = self.tokens * np.dtype(dtype).itemsize
        files = {
            self.file: (num_bytes, self.tokens_sha256),
            self.file + INDEX: (self.documents * 8, self.index_sha256),
        }
        digest = self.given_sha256
        return files if digest is None else files | {self.file + GIVEN: (self.tokens, digest)}

    def to_json(self) -> dict[str, Any]:
        """Return the fields that have a value."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Split:
    """Shards of one split, in the order of the sources."""

    documents: int
    tokens: int
    shards: tuple[ShardRecord, ...]

    @classmethod
    def of(cls, shards: Sequence[ShardRecord]) -> Split:
        """Return the split of these shards."""
        documents, tokens = (sum(getattr(s, n) for s in shards) for n in ("documents", "tokens"))
        return cls(documents=documents, tokens=tokens, shards=tuple(shards))


@dataclass(frozen=True, kw_only=True)
class DataManifest:
    """Contents of a prepared folder."""

    tokenizer: str
    """Fingerprint of the tokenizer."""
    vocab: Vocab
    end_id: int
    dtype: Literal["uint16", "uint32"]
    """Type of the tokens on disk: uint16 if the vocabulary size allows it, otherwise uint32."""
    splits: Mapping[str, Split]
    """By name: "train" and, if documents were held out, "validation"."""
    sources: tuple[str, ...] = ()
    """Sources of the documents, as given by the user but without credentials."""
    command: str = ""
    known: Mapping[str, float] = field(default_factory=lambda: {})
    """Exact figures of synthetic sources, such as the entropy rate; empty for text."""

    @property
    def format(self) -> Literal["text", "chat"]:
        """What the documents are; chats have conditions."""
        shards = (shard for split in self.splits.values() for shard in split.shards)
        return "chat" if any(shard.given_sha256 for shard in shards) else "text"

    @classmethod
    def read(cls, folder: str | Path) -> DataManifest:
        """Read the manifest of a prepared folder."""
        folder = local_folder(folder)
        path = folder / DATA_MANIFEST
        if not folder.is_dir():
            raise DataError(f"the folder {folder} does not exist. Run `gidd data prepare`.")
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
            return from_plain(cls, record, "manifest", has_kinds=False)
        except ConfigError as error:
            raise DataError(f"{path} is not a valid manifest: {error} {_RESTORE}") from error

    def __post_init__(self) -> None:
        """Raise `ConfigError` for numbers and names that contradict each other."""
        largest = 1 << 8 * np.dtype(self.dtype).itemsize
        if not 0 <= self.end_id < self.vocab.size <= largest:
            raise ConfigError(
                f"end_id must be below vocab.size, and vocab.size at most {largest}, got "
                f"{shorten(self.end_id)} and {shorten(self.vocab.size)}."
            )
        if not self.splits:
            raise ConfigError("splits must have at least one split, got none.")
        for name, split in self.splits.items():
            if not split.shards or split != Split.of(split.shards):
                raise ConfigError(f"splits.{name}: documents or tokens are not the sum of shards.")
            files = {s.file for s in split.shards if s.file.partition("/")[0] == name}
            if len(files) < len(split.shards):
                raise ConfigError(f"splits.{name}: each file must be {name}/NAME.ds, named once.")

    def write(self, folder: str | Path) -> None:
        """Write the manifest; the last step of a preparation."""
        record: dict[str, Any] = {"format": DATA_FORMAT} | asdict(self)
        for name, split in self.splits.items():
            record["splits"][name]["shards"] = [shard.to_json() for shard in split.shards]
        write_json(Path(folder) / DATA_MANIFEST, record, MANIFEST_BYTES)

    def require_tokenizer(self, tokenizer: Tokenizer, name: str | Path) -> None:
        """Raise a `DataError` that contains `name` if the shards are of another tokenizer."""
        if tokenizer.fingerprint != self.tokenizer or tokenizer.vocab != self.vocab:
            raise DataError(
                f"{name} is not the tokenizer of these shards: they were made with "
                f"{self.tokenizer[:12]} ({self.vocab}), it is {tokenizer.fingerprint[:12]} "
                f"({tokenizer.vocab}). Use the {TOKENIZER_FILE} of their folder, or prepare again."
            )


def verify(folder: str | Path, tokenizer: Tokenizer | FastTokenizer | None = None) -> DataManifest:
    """Check every byte of a prepared folder, and a tokenizer if given; return the manifest."""
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
            raise DataError(f"{min(unlisted)} is not in {DATA_MANIFEST}. Move it elsewhere.")
        for shard in split.shards:
            _verify_shard(folder, shard, manifest)
    return manifest


def _verify_shard(folder: Path, shard: ShardRecord, manifest: DataManifest) -> None:
    from gidd.data.loading.shards import open_shard  # with torch, which others need not import

    for file, (size, expected) in shard.files(manifest.dtype).items():
        path = folder / file
        if not path.is_file():
            raise DataError(f"{path} does not exist. {_PREPARE}")
        if (actual := path.stat().st_size) != size:
            raise DataError(f"{path} must have {size} bytes, got {actual}. {_RESTORE}")
        if sha256(path) != expected:
            raise DataError(f"{path}: its SHA-256 is not the one in {DATA_MANIFEST}. {_RESTORE}")
    opened = open_shard(folder / shard.file, np.dtype(manifest.dtype).type)
    opened.sizes()  # raises if ends of documents decrease
    for start in range(0, shard.tokens, _CHUNK):
        ids = opened.tokens[start : start + _CHUNK]
        if ids.max() >= manifest.vocab.size or (ids == manifest.vocab.mask_id).any():
            raise DataError(
                f"{opened.file}: token ids must be below {manifest.vocab.size} and not the mask "
                f"({manifest.vocab.mask_id}); others occur after token {start}. {_RESTORE}"
            )
