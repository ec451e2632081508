"""The words of a run's training data, which proofreading chooses from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gidd.proofreading.words import WordList

from gidd.data.loading.loader import open_split
from gidd.data.loading.shards import ShardSet
from gidd.data.tokenizers import Tokenizer
from gidd.training.config import RunConfig

MAX_TOKENS: Final = 50_000_000
"""Tokens of the training data whose words are counted."""


def words_of_run(run_folder: Path, run: RunConfig, tokenizer: Tokenizer) -> WordList | None:
    """Count the words of the training data of a run whose tokens are characters.

    None if tokens are not characters, or if the data is not there any more.
    """
    folder = run.data.folder or run_folder / "data"
    if not tokenizer.is_character_level or not folder.is_dir():
        return None
    return WordList.of_texts(_documents(open_split(folder), tokenizer))


def _documents(split: ShardSet, tokenizer: Tokenizer) -> Iterator[str]:
    num_tokens, end = 0, tokenizer.end or ""
    for document in range(len(split)):
        shard, index = split.locate(document)
        start, stop = shard.bounds(index)
        yield tokenizer.decode(shard.tokens[start:stop].tolist()).removesuffix(end)
        num_tokens += stop - start
        if num_tokens >= MAX_TOKENS:
            return
