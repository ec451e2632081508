"""Documents of a dataset on the Hugging Face hub, streamed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, final

from gidd.data.corpora.base import Corpus
from gidd.data.documents import Documents
from gidd.errors import DataError
from gidd.optional import optional_package


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

    def documents(self) -> list[Documents]:
        """The training split and then, if there is one, the validation split."""
        return [self._of(split) for split in (self.split, self.validation_split) if split]

    def validation(self) -> int:
        """As the dataset has it, or `held_out`."""
        return self._of(self.validation_split).count() if self.validation_split else self.held_out

    def _of(self, split: str) -> HubDocuments:
        return HubDocuments(self.dataset, self.config, split, self.text_field)


@final
@dataclass(frozen=True)
class HubDocuments(Documents):
    """One split of a dataset, read as a stream: nothing is kept on disk.

    A task streams past the documents before its own. For a dataset of many gigabytes download its
    Parquet files (`hf download --repo-type dataset NAME`) and prepare that folder instead.
    """

    dataset: str
    config: str | None
    split: str
    text_field: str

    @property
    def name(self) -> str:
        """Dataset and split."""
        return f"{self.dataset}:{self.split}"

    def stamp(self) -> list[int]:
        """Bytes and documents as the hub says, -1 where it does not."""
        about = _about(self.dataset, self.config).get(self.split)
        return [getattr(about, field, None) or -1 for field in ("num_bytes", "num_examples")]

    def count(self) -> int:
        """As the hub says, or by reading all."""
        known = self.stamp()[1]
        return known if known >= 0 else sum(1 for _ in self._stream())

    def read(self, start: int, stop: int) -> Iterator[str]:
        """The texts."""
        stream = self._stream().skip(start).take(stop - start)
        for number, row in enumerate(stream, start=start):
            text = row.get(self.text_field)
            if not isinstance(text, str):
                raise DataError(
                    f"{self.name}, document {number}: the field {self.text_field!r} must be a "
                    f"string; the fields are {sorted(row)}. Correct text_field of the corpus."
                )
            yield text

    def _stream(self) -> Any:
        with _named_errors(self.name):
            return optional_package("datasets", "data").load_dataset(
                self.dataset, self.config, split=self.split, streaming=True
            )


@lru_cache(maxsize=32)
def _about(dataset: str, config: str | None) -> dict[str, Any]:
    """What the hub says of each split; empty if it says nothing."""
    with _named_errors(dataset):
        builder = optional_package("datasets", "data").load_dataset_builder(dataset, config)
        return dict(builder.info.splits or {})


class _named_errors:
    """Whatever the `datasets` library raises, as a DataError that names the dataset."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, DataError):
            raise DataError(
                f"{self.name} cannot be read from the Hugging Face hub: {error}. Check the name "
                "and the connection, or download its files and prepare their folder."
            ) from error
