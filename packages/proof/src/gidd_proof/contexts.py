"""Probabilities of words between their neighbours: a trigram model with absolute discounting.

    P(w | b)   = max(n(b w) - D, 0) / n(b) + rest(b) f(w)
    P(w | a b) = max(n(a b w) - D, 0) / n(a b) + rest(a b) P(w | b)

f is the word frequency, and rest(...) is what the n-grams of the table leave to 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Final, NamedTuple, final
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from gidd.cli import explain_damage, read_regular, read_source
from gidd.errors import DataError
from gidd_proof.misspellings import Misspellings
from gidd_proof.words import CACHED_LOOKUPS, FILE_BYTES, MODEL_FOLDER, normal

IntArray = NDArray[np.integer]
FloatArray = NDArray[np.float64]

CONTEXTS_FILE: Final = "contexts.npz"
"""File of a model's folder with counts of n-grams, written by `training/contexts.py`."""

CONFUSIONS_FILE: Final = "confusions.txt"
"""File of a model's folder with words that writers confuse, one group per line."""

UNKNOWN, END, COMMA, NUMBER = range(4)
"""Tokens before those of the vocabulary: other words, ends of sentences, commas and dashes, and
numbers."""

DISCOUNT: Final = 0.7
LEAST_REST: Final = 0.02
"""Smallest probability that a pair or a word leaves to what the table does not have."""

NUM_NEIGHBOURS: Final = 2
"""Tokens on each side of a word on which its probability depends."""

COUNTS_PER_NAT: Final = 6.0
"""Counts are stored as round(COUNTS_PER_NAT log n)."""

TOKEN: Final = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*|\d[\d.,]*|[.!?;:\n]|[,—–]")
_FREQUENT = 3e-4
"""Least frequency of words of one or two letters: others are units, initials and foreign words."""

_ENDS, _COMMAS = ".!?;:\n", ",—–"


class Neighbours(NamedTuple):
    """Tokens around a place."""

    before: tuple[int, ...]
    after: tuple[int, ...]


class Tokens(NamedTuple):
    """The tokens of a text, between ends of sentences."""

    ids: tuple[int, ...]
    at: dict[int, int]
    """The token that begins at a character."""

    def around(self, start: int, count: int = 1) -> Neighbours:
        """Return the neighbours of the words that begin at a character."""
        i = self.at[start] + NUM_NEIGHBOURS
        after = self.ids[i + count : i + count + NUM_NEIGHBOURS]
        return Neighbours(self.ids[i - NUM_NEIGHBOURS : i], after)


class Table(NamedTuple):
    """Counts of n-grams, as they are stored.

    Tokens are `UNKNOWN`, `END`, `COMMA`, `NUMBER` and the words of the vocabulary.
    """

    vocabulary: list[str]
    is_name: NDArray[np.bool_]
    """Whether a word of the vocabulary is written with a capital within sentences."""

    singles: IntArray
    """The count of each token."""

    pairs: IntArray
    """Rows (first token, second token, count), sorted."""

    triples: IntArray
    """Rows (row of the first two in `pairs`, third token, count), sorted."""

    neighbours: IntArray
    """Rows (word, another word that one edit gives) of the vocabulary, sorted."""

    @classmethod
    def without_ngrams(cls, vocabulary: Sequence[str] = ()) -> Table:
        """Return a table of words that say nothing about each other."""
        nothing = np.zeros((0, 3), dtype=np.int64)
        singles = np.ones(NUMBER + 1 + len(vocabulary), dtype=np.int64)
        is_name = np.zeros(len(vocabulary), dtype=bool)
        return cls(list(vocabulary), is_name, singles, nothing, nothing, nothing[:, :2])

    def save(self, path: Path) -> None:
        """Write the table as compressed arrays of bytes."""
        rows = {"pairs": self.pairs, "triples": self.triples, "neighbours": self.neighbours}
        sizes = (len(self.singles), len(self.pairs), len(self.vocabulary))
        arrays: dict[str, IntArray] = {
            "vocabulary": np.frombuffer("\n".join(self.vocabulary).encode(), dtype=np.uint8),
            "is_name": np.packbits(self.is_name),
            "singles": _to_log(self.singles),
        }
        for (name, values), size in zip(rows.items(), sizes, strict=True):
            lengths = np.bincount(values[:, 0], minlength=size)
            steps = np.diff(values[:, 1], prepend=0)
            is_first = np.diff(values[:, 0], prepend=-1) > 0
            arrays[f"{name}_lengths"] = _to_bytes(lengths)
            arrays[f"{name}_steps"] = _to_bytes(np.where(is_first, values[:, 1], steps))
            if values.shape[1] > 2:
                arrays[f"{name}_counts"] = _to_log(values[:, 2])
        np.savez_compressed(path, **arrays)  # pyright: ignore[reportArgumentType]

    @classmethod
    def read(cls, path: Path) -> Table:
        """Read a file that `save` wrote."""
        remedy = "Write it again with training/contexts.py, or leave the file out."
        with explain_damage(f"the counts of n-grams {path}", remedy, DataError):
            content = BytesIO(read_regular(path, DataError, FILE_BYTES))
            with ZipFile(content) as file:
                FILE_BYTES.require(sum(i.file_size for i in file.infolist()), str(path), DataError)
            with np.load(content, allow_pickle=False) as file:
                arrays = dict(file)
            vocabulary = arrays["vocabulary"].tobytes().decode().split("\n")
            is_name = np.unpackbits(arrays["is_name"], count=len(vocabulary)).astype(bool)
            rows = [_read_rows(name, arrays) for name in ("pairs", "triples", "neighbours")]
            return cls(vocabulary, is_name, _from_log(arrays["singles"]), *rows)


@final
class Contexts:
    """What the neighbours of a word say about it."""

    def __init__(self, table: Table, confusions: Iterable[Sequence[str]] = ()) -> None:
        """Prepare lookups.

        Args:
            table: Counts of n-grams.
            confusions: Groups of words that writers confuse.
        """
        self._ids = {word: NUMBER + 1 + i for i, word in enumerate(table.vocabulary)}
        self._names = {w for w, name in zip(table.vocabulary, table.is_name, strict=True) if name}
        self._vocabulary = table.vocabulary
        self._size = len(table.singles)
        self._frequency = table.singles / max(1, int(table.singles.sum()))
        self._pairs = _Discounted(table.pairs, table.singles, self._size)
        self._triples = _Discounted(table.triples, table.pairs[:, 2], self._size)
        self._near = table.neighbours[:, 1]
        rows = np.arange(len(table.vocabulary) + 1)
        self._near_rows = np.searchsorted(table.neighbours[:, 0], rows)
        self.near = lru_cache(CACHED_LOOKUPS)(self._find_near)
        """Words of the vocabulary that one edit gives, or that are confused with a word."""
        self._confused: dict[str, set[str]] = {}
        for group in confusions:
            for word in group:
                self._confused.setdefault(word, set()).update(set(group) - {word})

    @classmethod
    def of_model(cls, folder: str | Path) -> Contexts:
        """Read the counts of a model's folder; without them, the packaged ones."""
        folder = Path(folder) if (Path(folder) / CONTEXTS_FILE).exists() else MODEL_FOLDER
        path = folder / CONFUSIONS_FILE
        text = read_source(str(path)).text if path.exists() else ""
        return cls(Table.read(folder / CONTEXTS_FILE), map(str.split, text.splitlines()))

    def tokens(self, text: str) -> Tokens:
        """Return the tokens of a text; common misspellings are read as what they stand for."""
        matches = list(TOKEN.finditer(text))
        padding = [END] * NUM_NEIGHBOURS
        read_as = Misspellings.packaged().read_as
        ids = (*padding, *(self.token(read_as(match[0])) for match in matches), *padding)
        return Tokens(ids, {match.start(): i for i, match in enumerate(matches)})

    def token(self, word: str) -> int:
        """Return the token of a word, a number or a punctuation mark."""
        index = self._ids.get(normal(word))
        if index is not None:
            return index
        if word in _ENDS:
            return END
        if word in _COMMAS:
            return COMMA
        return NUMBER if word[0].isdigit() else UNKNOWN

    def frequency(self, word: str) -> float:
        """Return the fraction of the tokens of the table that are a word."""
        token = self.token(word)
        return 0.0 if token == UNKNOWN else float(self._frequency[token])

    def is_name(self, word: str) -> bool:
        """Whether a word is written with a capital within sentences."""
        return normal(word) in self._names

    def confused(self, word: str) -> frozenset[str]:
        """Return the words of the groups of confusions that have a word."""
        return frozenset(self._confused.get(normal(word), ()))

    def _find_near(self, word: str) -> tuple[str, ...]:
        word = normal(word)
        near_words = self.confused(word)
        token = self._ids.get(word, UNKNOWN)
        if token != UNKNOWN and (len(word) > 2 or self._frequency[token] > _FREQUENT):
            row = token - NUMBER - 1
            rows = self._near[self._near_rows[row] : self._near_rows[row + 1]]
            near = [self._vocabulary[i] for i in rows]
            near_words = near_words.union(
                w for w in near if w not in self._names and not _inflects(word, w)
            )
        return tuple(sorted(near_words))

    def gains(self, queries: Iterable[tuple[Neighbours, str]]) -> FloatArray:
        """Return what neighbours add to the log probability of words.

        It is log P(words, tokens after | tokens before) minus log f of the words and the log
        probability of the tokens after an unknown word.

        Args:
            queries: Neighbours, and one or more words with spaces between them.
        """
        rows: list[Sequence[int]] = []
        owners: list[int] = []
        signs: list[int] = []
        owner = -1
        for owner, ((before, after), words) in enumerate(queries):
            line = [*before, *map(self.token, words.split(" ")), *after]
            rows += zip(line, line[1:], line[2:], strict=False)
            rows.append((UNKNOWN, *after))
            owners += [owner] * (len(line) - 1)
            signs += [1] * (len(line) - 2) + [-1]
        values = self._log_ratios(np.array(rows, dtype=np.int64).reshape(-1, 3))
        sums = np.bincount(owners, values * np.array(signs), owner + 1)
        return sums.astype(np.float64)

    def _log_ratios(self, rows: IntArray) -> FloatArray:
        """Return log P(third | first, second) - log f(third); 0 if a token is unknown."""
        first, second, third = rows.T
        frequency = self._frequency[third]
        value = self._pairs.interpolate(second, third, frequency)
        pair, has_pair = self._pairs.find(first, second)
        value = np.where(has_pair, self._triples.interpolate(pair, third, value), value)
        is_known = (second != UNKNOWN) & (third != UNKNOWN) & (frequency > 0)
        return np.log(np.where(is_known, value, 1.0) / np.where(is_known, frequency, 1.0))


@final
class _Discounted:
    """(n - D) / n(parent) of the n-grams of a table, and what they leave of each parent."""

    def __init__(self, rows: IntArray, parent_counts: IntArray, size: int) -> None:
        parents = rows[:, 0]
        values = np.maximum(rows[:, 2] - DISCOUNT, 0) / np.maximum(parent_counts[parents], 1)
        self._size = size
        # a last row that nothing finds: searches stay within the arrays
        self._keys = np.append(parents * size + rows[:, 1], np.iinfo(np.int64).max)
        self._values = np.append(values, 0.0)
        used = np.bincount(parents, values, len(parent_counts))
        self._rest = np.append(np.maximum(1 - used, LEAST_REST), 1.0)

    def find(self, parents: IntArray, tokens: IntArray) -> tuple[IntArray, NDArray[np.bool_]]:
        """Return the row of each n-gram, and whether the table has it."""
        wanted = parents * self._size + tokens
        at = np.searchsorted(self._keys, wanted)
        return at, self._keys[at] == wanted

    def interpolate(self, parents: IntArray, tokens: IntArray, shorter: FloatArray) -> FloatArray:
        """Return P(token | parent), given the probability without the first token."""
        at, is_found = self.find(parents, tokens)
        return np.where(is_found, self._values[at], 0.0) + self._rest[parents] * shorter


def _inflects(word: str, other: str) -> bool:
    """Whether two words differ by an ending, which is grammar, or are the articles (`rules`)."""
    short, long = sorted((word, other), key=len)
    return long in (short + "s", short + "d", short + "r", short + "'s", "an")


def _to_log(counts: IntArray) -> IntArray:
    return np.rint(COUNTS_PER_NAT * np.log(np.maximum(counts, 1))).astype(np.uint8)


def _from_log(stored: IntArray) -> IntArray:
    return np.rint(np.exp(stored / COUNTS_PER_NAT)).astype(np.int64)


def _to_bytes(values: IntArray) -> IntArray:
    """Return the low bytes and the high bytes of 16-bit values, which compress better apart."""
    if len(values) and int(values.max()) >= 1 << 16:
        raise ValueError(f"values must be less than {1 << 16}, got {values.max()}.")
    return values.astype("<u2").view(np.uint8).reshape(-1, 2).T.copy()


def _read_rows(name: str, arrays: dict[str, IntArray]) -> IntArray:
    """Return the sorted rows of a table whose second column is stored as steps."""
    lengths, steps = (
        low.astype(np.int64) | (high.astype(np.int64) << 8)
        for low, high in (arrays[f"{name}_lengths"], arrays[f"{name}_steps"])
    )
    if int(lengths.sum()) != len(steps):
        raise ValueError(f"{name} must have {len(steps)} rows, got {lengths.sum()}")
    first = np.repeat(np.arange(len(lengths)), lengths)
    total = np.cumsum(steps)
    starts = np.cumsum(lengths) - lengths
    before = np.append(0, total)[starts]  # the sum of the steps of earlier rows
    columns = [first, total - before[first]]
    if f"{name}_counts" in arrays:
        columns.append(_from_log(arrays[f"{name}_counts"]))
    return np.stack(columns, axis=1)
