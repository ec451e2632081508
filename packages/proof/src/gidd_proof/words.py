"""Words of a corpus with their counts, and those that a few edits of a misspelt word reach."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Final, final

import torch
from gidd.proofreading.alignment import edit_distance
from torch import Tensor

from gidd.common.files import explain_damage, read_regular, write_text
from gidd.common.limits import TOKENIZER_BYTES
from gidd.errors import DataError

WORDS_FILE: Final = "words.txt"
"""File of a model's folder with the words of its training corpus."""

WORD: Final = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
"""Letters, with apostrophes between them."""

FREQUENCY_SCALE: Final = 0.4
"""Factor of log frequencies where they are added to likelihoods that know frequent words too."""

MAX_EDITS: Final = 2
MAX_WORDS: Final = 400_000
"""Words that are read from a file."""

LONGEST_WORD: Final = 40
"""Characters of a word that is looked up; longer ones are not words."""

_UNKNOWN = 20.0

_NUM_CLASSES = 32
"""Classes of characters; those of the same class are not told apart before words are compared."""

_REMEDY = "Write one word per line, a tab and its count, or leave the file out."


@final
class WordList:
    """Words in lower case with their counts."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self.counts = dict(counts)
        self._near: dict[str, tuple[str, ...]] = {}

    @classmethod
    def of_texts(cls, texts: Iterable[str], min_count: int = 1) -> WordList:
        """Count the words of texts."""
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(word.replace("’", "'") for word in WORD.findall(text.lower()))
        return cls({word: n for word, n in counts.items() if n >= min_count})

    def __contains__(self, word: str) -> bool:
        """Whether the list has a word, in any case."""
        return word.lower().replace("’", "'") in self.counts

    def __len__(self) -> int:
        """Return the number of words."""
        return len(self.counts)

    def share(self, word: str) -> float:
        """Return a word's share of the corpus; 0 for an unknown one."""
        return self.counts.get(word.lower().replace("’", "'"), 0) / self._total

    def log_frequency(self, text: str) -> float:
        """Return the sum of the logs of each word's share of the corpus.

        Unknown words are half a word each, and less likely than that by `_UNKNOWN` nats: there are
        many of them.
        """
        total = 0.0
        for word in text.lower().replace("’", "'").split(" "):
            count = self.counts.get(word)
            unknown = math.log(0.5) - _UNKNOWN
            total += (unknown if count is None else math.log(count)) - math.log(self._total)
        return total

    def near(self, word: str) -> tuple[str, ...]:
        """Return the other words that at most two edits of a word reach.

        An edit drops, adds or replaces a character, or exchanges two neighbours.
        """
        word = word.lower().replace("’", "'")
        if word not in self._near:
            self._near[word] = self._find(word) if 0 < len(word) <= LONGEST_WORD else ()
        return self._near[word]

    def save(self, path: Path) -> None:
        """Write the words with their counts, most frequent first."""
        ordered = sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))
        write_text(path, "".join(f"{word}\t{count}\n" for word, count in ordered))

    @classmethod
    def read(cls, path: Path) -> WordList:
        """Read a file that `save` wrote, or one word per line."""
        with explain_damage(str(path), _REMEDY, DataError):
            lines = read_regular(path, DataError, TOKENIZER_BYTES).decode().split("\n")
            if len(lines) > MAX_WORDS:
                raise DataError(
                    f"{path} must have at most {MAX_WORDS:,} words, got {len(lines):,}. {_REMEDY}"
                )
            split = (line.rstrip("\r").partition("\t") for line in lines if line.strip())
            return cls({word.lower(): max(1, int(count or 1)) for word, _, count in split})

    def with_similar_letters(self, word: str, edits: int = MAX_EDITS) -> list[str]:
        """Return all words that `edits` edits of a word may reach, and others; in no order.

        An edit changes the length by 1 at most, and the numbers of letters by 2 in sum.
        """
        found: list[str] = []
        counts = _letter_counts([word])
        for length in range(len(word) - edits, len(word) + edits + 1):
            if length in self._by_length:
                words, letters = self._by_length[length]
                close = (letters - counts).abs().sum(1) <= 2 * edits
                found += [words[index] for index in close.nonzero().squeeze(1).tolist()]
        return found

    def _find(self, word: str) -> tuple[str, ...]:
        near = self.with_similar_letters(word)
        return tuple(v for v in near if v != word and edit_distance(word, v) <= MAX_EDITS)

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


def _letter_counts(words: list[str]) -> Tensor:
    """Return how often each word has the characters of each class, int8 [words, classes]."""
    counts = torch.zeros(len(words), _NUM_CLASSES, dtype=torch.int8)
    characters = [[row, ord(c) % _NUM_CLASSES] for row, word in enumerate(words) for c in word]
    rows, classes = torch.tensor(characters).unbind(1)
    return counts.index_put_((rows, classes), counts.new_ones(()), accumulate=True)
