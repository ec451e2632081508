"""Documents of a dataset on the Hugging Face hub, streamed: nothing is kept on disk.

Any dataset can be named as a source:

    hf:ORG/NAME?config=CONFIG&split=SPLIT&text=COLUMN

where everything from "?" on may be left out. The code that a dataset may bring is never run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, final
from urllib.parse import parse_qsl

from gidd.common.optional import optional_package
from gidd.data.corpora.base import Corpus
from gidd.data.corpora.documents import Documents, no_column, text_of
from gidd.data.corpora.formats import reader
from gidd.errors import ConfigError, DataError, GiddError

PREFIX = "hf:"
_OPTIONS = ("config", "split", "text")
"""What may follow "?"."""


@final
@dataclass(frozen=True, kw_only=True)
class HubCorpus(Corpus):
    """A dataset by its name on the hub."""

    name: str
    description: str
    dataset: str
    """Owner and name on the hub."""

    config: str | None = None
    split: str = "train"
    """The split to train on."""

    validation_split: str | None = None
    """The split to validate on; None: the last `held_out` documents of the other."""

    held_out: int = 0
    text_field: str = "text"

    @classmethod
    def named(cls, source: str) -> HubCorpus:
        """The dataset that a source such as `hf:ORG/NAME?split=train` names."""
        dataset, _, query = source.removeprefix(PREFIX).partition("?")
        pairs = parse_qsl(query, keep_blank_values=True)
        keys = [key for key, _ in pairs]
        if not dataset or set(keys) - set(_OPTIONS) or len(set(keys)) < len(keys):
            raise ConfigError(
                f"a dataset must be named as hf:ORG/NAME?config=...&split=...&text=..., got "
                f"{source!r}. After the name {', '.join(_OPTIONS)} are allowed, each at most once."
            )
        options = dict(pairs)
        return cls(
            name=source,
            description="",
            dataset=dataset,
            config=options.get("config"),
            split=options.get("split", "train"),
            text_field=options.get("text", "text"),
        )

    def documents(self) -> list[Documents]:
        """The training split and then, if there is one, the validation split."""
        splits = [split for split in (self.split, self.validation_split) if split]
        return [part for split in splits for part in self._of(split)]

    def validation(self) -> int:
        """As the dataset has it, or `held_out`."""
        if self.validation_split is None:
            return self.held_out
        return sum(part.count() for part in self._of(self.validation_split))

    def _of(self, split: str) -> list[Documents]:
        """Every shard of a split: Parquet files as they are, others through the library.

        A Parquet file says how many documents it has, and any part of it can be read.
        """
        with _named_errors(self.dataset):
            builder = _builder(self.dataset, self.config)
            num_shards = builder.as_streaming_dataset(split=split).num_shards
            files = [str(file) for file in (builder.config.data_files or {}).get(split, [])]
        if files and all(file.endswith(".parquet") for file in files):
            return [reader(file, self.text_field) for file in files]
        return [
            HubShard(self.dataset, self.config, split, self.text_field, number, num_shards)
            for number in range(num_shards)
        ]


@final
@dataclass(frozen=True)
class HubShard(Documents):
    """One of the pieces that a dataset is stored in, as the `datasets` library streams it.

    A task reads the shards that its documents are in, and of the first of them what lies before.
    """

    dataset: str
    config: str | None
    split: str
    text_field: str
    number: int
    num_shards: int

    quick_count = False

    @property
    def name(self) -> str:
        """Dataset, split and number."""
        return f"{self.dataset}:{self.split}, shard {self.number + 1} of {self.num_shards}"

    def stamp(self) -> list[int]:
        """Bytes, if the dataset says how many, and a number that changes with its files."""
        with _named_errors(self.name):
            builder = _builder(self.dataset, self.config)
            about = (builder.info.splits or {}).get(self.split)
            files = (builder.config.data_files or {}).get(self.split)
        version = repr([builder.hash, getattr(files, "origin_metadata", None)])
        number = int.from_bytes(hashlib.sha256(version.encode()).digest()[:6])
        size = getattr(about, "num_bytes", None)
        return [-1 if size is None else size // self.num_shards, number]

    def count(self) -> int:
        """By reading all, for the dataset says at most how many there are in all shards."""
        with _named_errors(self.name):
            return sum(1 for _ in self._stream())

    def read(self, start: int, stop: int) -> Iterator[str]:
        """The texts."""
        with _named_errors(self.name):
            stream = self._stream().skip(start).take(stop - start)
            for number, row in enumerate(stream, start=start + 1):
                if self.text_field not in row:
                    raise no_column(self.name, self.text_field, list(row))
                yield text_of(row, self.text_field, f"{self.name}, document {number}")

    def _stream(self) -> Any:
        whole = _builder(self.dataset, self.config).as_streaming_dataset(split=self.split)
        return whole.shard(num_shards=self.num_shards, index=self.number)


@lru_cache(maxsize=32)
def _builder(dataset: str, config: str | None) -> Any:
    """What the library knows of a dataset, which takes several requests to find out."""
    return optional_package("datasets", "data").load_dataset_builder(dataset, config)


@contextmanager
def _named_errors(name: str) -> Generator[None]:
    """Whatever the `datasets` library raises, as a DataError that names the dataset."""
    try:
        yield
    except GiddError:
        raise
    except Exception as error:
        raise DataError(
            f"{name} cannot be read from the Hugging Face hub: {error}. Check the name, config and "
            "split and the connection, or download its files and prepare their folder."
        ) from error
