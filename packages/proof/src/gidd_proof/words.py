"""Words with their counts, and the words that a few edits of a misspelt word reach."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Final, final

import torch
from torch import Tensor

from gidd.errors import DataError
from gidd_proof.edit_model import edit_distance

WORDS_FILE: Final = "words.txt"
"""File of a model's folder with known words."""

MODEL_FOLDER: Final = Path(__file__).parent / "model"
"""The packaged model."""

FREQUENCY_SCALE: Final = 0.4
"""Factor of log frequencies; the likelihoods they are added to favour frequent words too."""

LONGEST_WORD: Final = 40
"""Characters of a word that is looked up; longer strings are not words."""

CACHED_LOOKUPS: Final = 1 << 14
"""Words whose neighbours are kept in memory."""

MAX_EDITS: Final = 2
MAX_BYTES: Final = 64 << 20

_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
_UNKNOWN = 20.0
_WORDS_PER_POSSESSIVE = 20
_NUM_CLASSES = 32
"""Classes of characters; words are compared by the numbers of characters of each class first."""


@final
class WordList:
    """Words in lower case with their counts."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self.counts = dict(counts)
        self._near = lru_cache(CACHED_LOOKUPS)(self._find)

    @classmethod
    def of_texts(cls, texts: Iterable[str]) -> WordList:
        """Count the words of texts."""
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(map(_normal, _WORD.findall(text)))
        return cls(counts)

    @classmethod
    def of_model(cls, folder: str | Path) -> WordList:
        """Read the words of a model's folder; without them, the packaged English words."""
        path = Path(folder) / WORDS_FILE
        return cls.read(path if path.is_file() else MODEL_FOLDER / WORDS_FILE)

    def __contains__(self, word: str) -> bool:
        """Whether the list has a word, in any case."""
        return self._count(_normal(word)) > 0

    def __len__(self) -> int:
        """Return the number of words."""
        return len(self.counts)

    def frequency(self, word: str) -> float:
        """Return the fraction of all words that are this word; 0 for an unknown word."""
        return self._count(_normal(word)) / self._total

    def log_frequency(self, text: str) -> float:
        """Return the sum of the log frequencies of the words of a text.

        Unknown words get a pseudo-count of 0.5, reduced by `_UNKNOWN` nats because many different
        unknown words share it.
        """
        total = 0.0
        for word in _normal(text).split(" "):
            count = self._count(word)
            unknown = math.log(0.5) - _UNKNOWN
            total += (math.log(count) if count else unknown) - math.log(self._total)
        return total

    def near(self, word: str) -> tuple[str, ...]:
        """Return the other words that at most two edits of a word reach.

        An edit drops, adds or replaces a character, or exchanges two neighbours.
        """
        word = _normal(word)
        return self._near(word) if 0 < len(word) <= LONGEST_WORD else ()

    def save(self, path: Path) -> None:
        """Write the words with their counts, most frequent first."""
        ordered = sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))
        path.write_text("".join(f"{word}\t{count}\n" for word, count in ordered), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> WordList:
        """Read a file that `save` wrote, or a file with one word per line."""
        try:
            if path.stat().st_size > MAX_BYTES:
                raise ValueError(f"it must have at most {MAX_BYTES:,} bytes")
            lines = path.read_text(encoding="utf-8").split("\n")
            split = (line.rstrip("\r").partition("\t") for line in lines if line.strip())
            return cls({word.lower(): max(1, int(count or 1)) for word, _, count in split})
        except (OSError, ValueError) as error:
            raise DataError(
                f"{path} cannot be read as a list of words: {error}. Write one word per line, a "
                "tab and its count, or leave the file out."
            ) from error

    def _count(self, word: str) -> int:
        """Return the count of a word, 0 if it is unknown; possessives of known words are known."""
        if word in self.counts or not word.endswith("'s"):
            return self.counts.get(word, 0)
        return -(-self.counts.get(word.removesuffix("'s"), 0) // _WORDS_PER_POSSESSIVE)

    def _find(self, word: str) -> tuple[str, ...]:
        return tuple(
            other
            for other in self._with_similar_letters(word)
            if other != word and edit_distance(word, other) <= MAX_EDITS
        )

    def _with_similar_letters(self, word: str) -> list[str]:
        """Return all words that two edits may reach, and others.

        An edit changes the length by 1 at most, and the numbers of letters by 2 in sum.
        """
        found: list[str] = []
        counts = _letter_counts([word])
        for length in range(len(word) - MAX_EDITS, len(word) + MAX_EDITS + 1):
            if length in self._by_length:
                words, letters = self._by_length[length]
                close = (letters - counts).abs().sum(1) <= 2 * MAX_EDITS
                found += [words[index] for index in close.nonzero().squeeze(1).tolist()]
        return found

    @cached_property
    def _total(self) -> int:
        return sum(self.counts.values()) + 1

    @cached_property
    def _by_length(self) -> dict[int, tuple[list[str], Tensor]]:
        """Words by length, with the numbers of their letters."""
        words: dict[int, list[str]] = {}
        for word in sorted(self.counts):
            words.setdefault(len(word), []).append(word)
        return {length: (found, _letter_counts(found)) for length, found in words.items()}


def _normal(text: str) -> str:
    return text.lower().replace("’", "'")


def _letter_counts(words: list[str]) -> Tensor:
    """Return how often each word has characters of each class, int8 [words, classes]."""
    counts = torch.zeros(len(words), _NUM_CLASSES, dtype=torch.int8)
    characters = [[row, ord(c) % _NUM_CLASSES] for row, word in enumerate(words) for c in word]
    rows, classes = torch.tensor(characters).unbind(1)
    return counts.index_put_((rows, classes), counts.new_ones(()), accumulate=True)
