"""Datasets on the Hugging Face hub, streamed: hf:ORG/NAME?config=CONFIG&split=SPLIT&text=COLUMN.

Code in a dataset's repository is never run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl

from gidd.common.optional import optional_package
from gidd.common.urls import require_no_references
from gidd.data.corpora.documents import Corpus, Documents, no_column, require_document_size, text_of
from gidd.data.corpora.formats import reader
from gidd.data.corpora.remote import make_stamp, wrap_errors
from gidd.errors import ConfigError

PREFIX = "hf:"
_OPTIONS = {"config": "config", "split": "split", "text": "text_field"}
"""Keys allowed after "?", and the fields that they set."""

_REMEDY = (
    "Check the name, config and split and the connection, or download the files of the dataset "
    "and prepare their folder."
)


@dataclass(frozen=True, kw_only=True)
class HubCorpus(Corpus):
    """A dataset on the hub."""

    name: str
    description: str
    dataset: str
    """Owner and name on the hub."""
    config: str | None = None
    split: str = "train"
    """Split to train on."""
    validation_split: str | None = None
    """Split to validate on; None: the last `held_out` documents of `split`."""
    held_out: int = 0
    text_field: str = "text"

    @classmethod
    def from_source(cls, source: str) -> HubCorpus:
        """Parse a source such as `hf:ORG/NAME?split=train`."""
        dataset, _, query = source.removeprefix(PREFIX).partition("?")
        pairs = parse_qsl(query, keep_blank_values=True)
        keys = [key for key, _ in pairs]
        if not dataset or set(keys) - set(_OPTIONS) or len(set(keys)) < len(keys):
            raise ConfigError(
                f"a dataset must be given as hf:ORG/NAME?config=...&split=...&text=..., got "
                f"{source!r}. After the name {', '.join(_OPTIONS)} are allowed, each at most once."
            )
        options: dict[str, Any] = {_OPTIONS[key]: value for key, value in pairs}
        return cls(name=source, description="", dataset=dataset, **options)

    def documents(self) -> list[Documents]:
        """Return the training split, followed by the validation split if there is one."""
        splits = [split for split in (self.split, self.validation_split) if split]
        return [part for split in splits for part in self._of(split)]

    def validation(self) -> int:
        """Return the size of the validation split, or `held_out`."""
        if self.validation_split is None:
            return self.held_out
        return sum(part.count() for part in self._of(self.validation_split))

    def _of(self, split: str) -> list[Documents]:
        """Return the shards of a split: Parquet files, read by ranges, or streams."""
        with wrap_errors(f"{self.dataset} on the Hugging Face hub", _REMEDY):
            builder = _builder(self)
            num_shards = builder.as_streaming_dataset(split=split).num_shards
            files = [str(file) for file in (builder.config.data_files or {}).get(split, [])]
        if files and all(file.endswith(".parquet") for file in files):
            return [reader(require_no_references(file), self.text_field) for file in files]
        return [_Shard(self, split, index, num_shards) for index in range(num_shards)]


@dataclass(frozen=True)
class _Shard(Documents):
    """One shard of a dataset, streamed by the `datasets` library."""

    corpus: HubCorpus
    split: str
    index: int
    num_shards: int

    @property
    def name(self) -> str:
        shard = f"shard {self.index + 1} of {self.num_shards}"
        return f"{self.corpus.dataset}:{self.split}, {shard}"

    def stamp(self) -> list[int]:
        with wrap_errors(self.name, _REMEDY):
            builder = _builder(self.corpus)
            about = (builder.info.splits or {}).get(self.split)
            files = (builder.config.data_files or {}).get(self.split)
        size = getattr(about, "num_bytes", None)
        version = [builder.hash, getattr(files, "origin_metadata", None)]
        return make_stamp(None if size is None else size // self.num_shards, version)

    def count(self) -> int:
        """Count by reading: the hub has at most the total over all shards."""
        with wrap_errors(self.name, _REMEDY):
            return sum(1 for _ in self._stream())

    def extent(self) -> int:
        """Return 1: a shard is streamed from its beginning."""
        return 1

    def read_part(self, start: int, stop: int) -> Iterator[tuple[str, str]]:
        return super().read_part(0, sys.maxsize)

    def read(self, start: int, stop: int) -> Iterator[str]:
        column = self.corpus.text_field
        with wrap_errors(self.name, _REMEDY):
            stream = self._stream().skip(start).take(stop - start)
            for position, row in enumerate(stream, start=start + 1):
                if column not in row:
                    raise no_column(self.name, column, list(row))
                place = f"{self.name}, document {position}"
                text = text_of(row, column, place)
                require_document_size(len(text.encode()), place)
                yield text

    def _stream(self) -> Any:
        stream = _builder(self.corpus).as_streaming_dataset(split=self.split)
        return stream.shard(num_shards=self.num_shards, index=self.index)


@lru_cache(maxsize=32)
def _builder(corpus: HubCorpus) -> Any:
    """Load a dataset's description; cached because it takes several requests."""
    datasets = optional_package("datasets", "data")
    return datasets.load_dataset_builder(corpus.dataset, corpus.config)
