"""Words with their counts, and the words that a few edits of a misspelt word reach."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from gidd.cli import Limit, explain_damage, read_regular, write_text
from gidd.errors import DataError

IntArray = NDArray[np.integer]

WORDS_FILE: Final = "words.txt"
"""File of a model's folder with known words."""

MODEL_FOLDER: Final = Path(__file__).parent / "model"
"""The packaged model."""

FREQUENCY_SCALE: Final = 0.4
"""Factor of log frequencies; the likelihoods they are added to favour frequent words too."""

LONGEST_WORD: Final = 40
"""Characters of a word that is looked up; longer strings are not words."""

CACHED_LOOKUPS: Final = 1 << 12
"""Words whose neighbours are kept in memory."""

CACHED_FREQUENCIES: Final = 1 << 15
"""Words whose log frequencies are kept in memory."""

MAX_EDITS: Final = 2
FILE_BYTES: Final = Limit(64 << 20)

_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
_STEM_LETTERS = 4
_ENDINGS = re.compile(r"(.+?)(?:e?s|e?d|e?r|ly|ing|ness|less|like|ism|ist|y)")
_PREFIXES = re.compile(
    r"(?:anti|bi|co|de|dis|inter|micro|mis|multi|non|out|over|post|pre|re|semi|sub|super|trans|un"
    r"|under)(.+)"
)
_UNKNOWN = 20.0
_WORDS_PER_POSSESSIVE = 20
_USER_FREQUENCY = 1e-6
_BITS = np.array([value.bit_count() for value in range(1 << 16)], dtype=np.int8)
_CLASSES = np.array([0, *(1 << i for i in range(1, 32))], dtype=np.uint32)
"""Bits of the classes of characters by code point modulo 32; words are compared by the sets of
their classes first. The class of padding does not count."""


@final
class WordList:
    """Words in lower case with their counts."""

    def __init__(self, counts: Mapping[str, int], accepted: Iterable[str] = ()) -> None:
        """Make a list.

        Args:
            counts: Words in lower case with their counts.
            accepted: Words in lower case that are right in every place.
        """
        self.counts = dict(counts)
        self.accepted = frozenset(accepted)
        self._near = lru_cache(CACHED_LOOKUPS)(self._find)
        self._log_frequency = lru_cache(CACHED_FREQUENCIES)(self._sum_log_frequencies)

    @classmethod
    def of_texts(cls, texts: Iterable[str]) -> WordList:
        """Count the words of texts."""
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(map(normal, _WORD.findall(text)))
        return cls(counts)

    @classmethod
    def of_model(cls, folder: str | Path) -> WordList:
        """Read the words of a model's folder; without them, the packaged English words."""
        path = Path(folder) / WORDS_FILE
        return cls.read(path if path.exists() else MODEL_FOLDER / WORDS_FILE)

    def with_words(self, words: Iterable[str]) -> WordList:
        """Return a list that also has words of a user, which count as moderately frequent."""
        added = {normal(word): round(_USER_FREQUENCY * self._total) or 1 for word in words}
        return WordList(added | self.counts, self.accepted.union(added)) if added else self

    def __contains__(self, word: str) -> bool:
        """Whether the list has a word, in any case."""
        return self._count(normal(word)) > 0

    def __len__(self) -> int:
        """Return the number of words."""
        return len(self.counts)

    def has_stem(self, word: str) -> bool:
        """Whether a word is a known word with a prefix or an ending of English."""
        matches = (pattern.fullmatch(normal(word)) for pattern in (_ENDINGS, _PREFIXES))
        stems = [match[1] for match in matches if match is not None]
        stems += [f"{stem}e" for stem in stems]  # balustraded: balustrade
        return any(len(stem) >= _STEM_LETTERS and stem in self.counts for stem in stems)

    def frequency(self, word: str) -> float:
        """Return the fraction of all words that are this word; 0 for an unknown word."""
        return self._count(normal(word)) / self._total

    def log_frequency(self, text: str) -> float:
        """Return the sum of the log frequencies of the words of a text.

        Unknown words get a pseudo-count of 0.5, reduced by `_UNKNOWN` nats because many different
        unknown words share it.
        """
        return self._log_frequency(text)

    def near(self, word: str) -> tuple[tuple[str, int], ...]:
        """Return the other words that at most two edits of a word reach, and the edits of each.

        An edit drops, adds or replaces a character, or exchanges two neighbours.
        """
        word = normal(word)
        return self._near(word) if 0 < len(word) <= LONGEST_WORD else ()

    def save(self, path: Path) -> None:
        """Write the words with their counts, most frequent first."""
        ordered = sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))
        write_text(path, "".join(f"{word}\t{count}\n" for word, count in ordered))

    @classmethod
    def read(cls, path: Path) -> WordList:
        """Read a file that `save` wrote, or a file with one word per line."""
        remedy = "Write one word per line, a tab and its count, or leave the file out."
        with explain_damage(f"the list of words {path}", remedy, DataError):
            text = read_regular(path, DataError, FILE_BYTES).decode().lower()
            cells = text.rstrip("\n").replace("\t", "\n").split("\n")
            if len(cells) == 2 * text.count("\t") == 2 * text.count("\n"):  # as `save` writes
                counts = [max(1, int(count)) for count in cells[1::2]]
                return cls(dict(zip(cells[::2], counts, strict=True)))
            lines = (line.rstrip("\r") for line in text.split("\n"))
            split = (line.partition("\t") for line in lines if line.strip())
            return cls({word: max(1, int(count or 1)) for word, _, count in split})

    def _count(self, word: str) -> int:
        """Return the count of a word, 0 if it is unknown; possessives of known words are known."""
        if word in self.counts or not word.endswith("'s"):
            return self.counts.get(word, 0)
        return -(-self.counts.get(word.removesuffix("'s"), 0) // _WORDS_PER_POSSESSIVE)

    def _sum_log_frequencies(self, text: str) -> float:
        counts = map(self._count, normal(text).split(" "))
        unknown = math.log(0.5) - _UNKNOWN
        logs = [math.log(count) if count else unknown for count in counts]
        return math.fsum(logs) - len(logs) * math.log(self._total)

    def _find(self, word: str) -> tuple[tuple[str, int], ...]:
        """Return the words within two edits, shortest words first."""
        first, last = (
            np.searchsorted(self._lengths, len(word) + change)
            for change in (-MAX_EDITS, MAX_EDITS + 1)
        )
        differing = _count_bits(self._letters[first:last] ^ _letter_sets(_code_points([word])))
        rows = first + np.flatnonzero(differing <= 2 * MAX_EDITS)
        distance = _distances(word, self._characters[rows], self._lengths[rows])
        rows_near = np.flatnonzero((distance <= MAX_EDITS) & (distance > 0))
        return tuple((self._ordered[rows[i]], int(distance[i])) for i in rows_near)

    @cached_property
    def _total(self) -> int:
        return sum(self.counts.values()) + 1

    @cached_property
    def _ordered(self) -> list[str]:
        """All words that are looked up, by length."""
        return sorted((word for word in self.counts if len(word) <= LONGEST_WORD), key=len)

    @cached_property
    def _lengths(self) -> IntArray:
        return np.array([len(word) for word in self._ordered], dtype=np.int32)

    @cached_property
    def _characters(self) -> IntArray:
        """Code points of each word, padded with zeros."""
        return _code_points(self._ordered)

    @cached_property
    def _letters(self) -> IntArray:
        return _letter_sets(self._characters)


def normal(text: str) -> str:
    """Return a text in lower case, with straight apostrophes."""
    return text.lower().replace("’", "'")


def _code_points(words: list[str]) -> IntArray:
    return np.array(words, dtype=f"U{LONGEST_WORD}").view(np.uint32).reshape(len(words), -1)


def _letter_sets(words: IntArray) -> IntArray:
    """Return a bit for each class of characters that a word has; an edit changes at most two."""
    return np.bitwise_or.reduce(_CLASSES[words % len(_CLASSES)], axis=1)


def _count_bits(values: IntArray) -> IntArray:
    return _BITS[values & 0xFFFF] + _BITS[values >> 16]


def _distances(word: str, others: IntArray, lengths: IntArray) -> IntArray:
    """Return the edit distance of a word from each other word, exact up to `MAX_EDITS`.

    Rows of the table of optimal string alignment, for all other words at once.
    """
    columns = others[:, : len(word) + MAX_EDITS]
    far = np.int8(MAX_EDITS + 1)
    before = last = np.broadcast_to(
        np.minimum(np.arange(columns.shape[1] + 1), far).astype(np.int8),
        (len(others), columns.shape[1] + 1),
    )
    for i, character in enumerate(word, 1):
        row = np.full_like(last, far)
        row[:, 0] = min(i, far)
        same = columns == ord(character)
        # only cells near the diagonal can be small
        for j in range(max(1, i - MAX_EDITS), min(columns.shape[1], i + MAX_EDITS) + 1):
            best = np.minimum(last[:, j], row[:, j - 1]) + np.int8(1)
            best = np.minimum(best, last[:, j - 1] + ~same[:, j - 1])
            if i > 1 and j > 1:
                is_swap = same[:, j - 2] & (columns[:, j - 1] == ord(word[i - 2]))
                best = np.where(is_swap, np.minimum(best, before[:, j - 2] + np.int8(1)), best)
            row[:, j] = np.minimum(best, far)
        before, last = last, row
    return last[np.arange(len(others)), np.minimum(lengths, columns.shape[1])]
