"""Count the n-grams that gidd-proof reads around words.

    python training/contexts.py english.tar.xz --out src/gidd_proof/model/contexts.npz

Words are those that the texts have at least `--min-count` times. Pairs that were seen three times
are kept, and triples that were seen four times and are more likely than their last two words say.
The files that `training/train.py` holds out are left out here too.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from gidd_proof.contexts import (
    DISCOUNT,
    NUMBER,
    TOKEN,
    UNKNOWN,
    Contexts,
    IntArray,
    Table,
)
from gidd_proof.edit_model import edit_distance
from gidd_proof.words import normal
from train import HELD_OUT_EVERY, documents, read_texts

MIN_PAIR, MIN_TRIPLE = 3, 4
MIN_GAIN = 6.0
"""Least n log(P(w | a b) / P(w | b)) of a triple."""

NAME_FRACTION = 0.9
"""Least fraction of a name's occurrences within sentences that have a capital."""


def main() -> None:
    """Count and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("texts", type=Path, help="folder or tar with .txt files in UTF-8")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--min-count", type=int, default=20)
    options = parser.parse_args()
    files = [f for i, f in enumerate(sorted(read_texts(options.texts))) if i % HELD_OUT_EVERY]
    table = count([text for _, text in files], options.min_count)
    table.save(options.out)
    size = options.out.stat().st_size
    print(
        f"{options.out}: {len(table.vocabulary):,} words, {len(table.pairs):,} pairs, "
        f"{len(table.triples):,} triples, {len(table.neighbours):,} neighbours, {size:,} bytes"
    )


def count(texts: list[str], min_count: int) -> Table:
    """Return the n-grams of texts."""
    streams = [list(written_tokens(text)) for text in texts]
    written = Counter(token for stream in streams for token in stream)
    words = Counter[str]()
    for token, number in written.items():
        if token[0].isalpha():
            words[normal(token)] += number
    vocabulary = [word for word, number in words.most_common() if number >= min_count]
    marks = Contexts(Table.without_ngrams(vocabulary)).token
    ids = {token: marks(token) for token in written}
    tokens = np.concatenate([np.array([ids[t] for t in stream], np.int64) for stream in streams])
    size = NUMBER + 1 + len(vocabulary)
    singles = np.bincount(tokens, minlength=size)
    is_known = tokens[:-1] != UNKNOWN
    pairs = count_rows(tokens[:-1][is_known], tokens[1:][is_known], size, MIN_PAIR)
    pair_keys = pairs[:, 0] * size + pairs[:, 1]
    at = np.searchsorted(pair_keys, tokens[:-2] * size + tokens[1:-1])
    at = np.minimum(at, len(pair_keys) - 1)
    has_pair = pair_keys[at] == tokens[:-2] * size + tokens[1:-1]
    triples = count_rows(at[has_pair], tokens[2:][has_pair], size, MIN_TRIPLE)
    triples = triples[gain(triples, pairs, singles) > MIN_GAIN]
    is_name = np.array(list(names(streams, vocabulary)))
    return Table(vocabulary, is_name, singles, pairs, triples, neighbours(vocabulary))


def written_tokens(text: str) -> Iterator[str]:
    """Yield the tokens of the documents of a text, with an end after each."""
    for document in documents(text):
        yield from TOKEN.findall(document)
        yield "\n"


def count_rows(first: IntArray, second: IntArray, size: int, least: int) -> IntArray:
    """Return rows (first, second, count) of what was seen often enough, without unknown words."""
    is_known = second != UNKNOWN
    keys, counts = np.unique((first * size + second)[is_known], return_counts=True)
    rows = np.stack([keys // size, keys % size, counts], axis=1)
    return rows[counts >= least]


def gain(triples: IntArray, pairs: IntArray, singles: IntArray) -> IntArray:
    """Return n log(P(w | a b) / P(w | b)) of each triple."""
    size, (parent, third, counts) = len(singles), triples.T
    second = pairs[parent, 1]
    keys = pairs[:, 0] * size + pairs[:, 1]
    at = np.minimum(np.searchsorted(keys, second * size + third), len(keys) - 1)
    shorter = np.where(keys[at] == second * size + third, pairs[at, 2], 0) / singles[second]
    shorter = shorter + 0.1 * singles[third] / singles.sum()
    return counts * np.log((counts - DISCOUNT) / pairs[parent, 2] / shorter)


def names(streams: list[list[str]], vocabulary: list[str]) -> Iterator[bool]:
    """Yield whether a word has a capital in most places within sentences."""
    total, capital = Counter[str](), Counter[str]()
    for stream in streams:
        for before, token in zip(stream, stream[1:], strict=False):
            if before[0].isalpha() or before == ",":
                word = normal(token)
                total[word] += 1
                capital[word] += token[0].isupper()
    for word in vocabulary:
        yield total[word] > 0 and capital[word] >= NAME_FRACTION * total[word]


def neighbours(vocabulary: list[str]) -> IntArray:
    """Return rows (word, other word) of words that are one edit apart."""
    without: defaultdict[str, list[int]] = defaultdict(list)
    for number, word in enumerate(vocabulary):
        for shorter in {word, *(word[:i] + word[i + 1 :] for i in range(len(word)))}:
            without[shorter].append(number)
    found = {
        (a, b)
        for group in without.values()
        for a in group
        for b in group
        if a != b and edit_distance(vocabulary[a], vocabulary[b]) == 1
    }
    return np.array(sorted(found), dtype=np.int64).reshape(-1, 2)


if __name__ == "__main__":
    main()
