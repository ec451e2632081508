"""Vocabulary size of a run before its data are prepared."""

from __future__ import annotations

from pathlib import Path

from gidd.data.corpora import corpora_of
from gidd.data.manifest import DataManifest
from gidd.data.tokenizers import (
    BUILT_KINDS,
    BYTES_VOCAB_SIZE,
    GPT2_VOCAB_SIZES,
    tokenizer_by_name,
)
from gidd.errors import ConfigError
from gidd.training.config import RunConfig


def vocab_size_of(run: RunConfig) -> int:
    """Return the vocabulary size of the run's tokenizer, without reading sources or downloading."""
    data = run.data
    if data.folder is not None:
        return DataManifest.read(data.folder).vocab.size
    if (own := corpora_of(data.sources)[-1].tokenizer()) is not None:
        return own.vocab.size
    if isinstance(data.tokenizer, int):
        return data.tokenizer
    if data.tokenizer == "bytes":
        return BYTES_VOCAB_SIZE
    if data.tokenizer not in BUILT_KINDS and Path(data.tokenizer).exists():
        return tokenizer_by_name(data.tokenizer).vocab.size
    if data.tokenizer not in GPT2_VOCAB_SIZES:
        raise ConfigError(
            f"the vocabulary size of data.tokenizer {data.tokenizer!r} is unknown until it is "
            "loaded. Prepare the data and set --data.folder DIR, or set the size for `gidd plan`, "
            "e.g. --vocab-size 131072."
        )
    return GPT2_VOCAB_SIZES[data.tokenizer]
