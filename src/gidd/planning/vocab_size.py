"""How many ids the tokens of a run will have, before there are any."""

from __future__ import annotations

from pathlib import Path

from gidd.data import tokenizers
from gidd.data.corpora import corpora_of
from gidd.data.manifest import DataManifest
from gidd.errors import ConfigError
from gidd.training.config import RunConfig

_GPT2 = {"gpt2": 50_258, "gpt2+pad": 50_259}


def vocab_size_of(run: RunConfig) -> int:
    """Ids of the run's tokenizer, without reading the sources or the network."""
    data = run.data
    if data.folder is not None:
        return DataManifest.read(data.folder).vocab.size
    if (fitting := corpora_of(data.sources)[-1].tokenizer()) is not None:
        return fitting.vocab.size
    if isinstance(data.tokenizer, int):
        return data.tokenizer
    if Path(data.tokenizer).exists():
        return tokenizers.named(data.tokenizer).vocab.size
    if data.tokenizer not in _GPT2:
        raise ConfigError(
            f"data.tokenizer is {data.tokenizer!r}, and its number of ids is not known before it "
            "is loaded. Prepare the data and name their folder (--data.folder DIR), or tell "
            "`gidd plan` the number, e.g. --vocab-size 131072."
        )
    return _GPT2[data.tokenizer]
