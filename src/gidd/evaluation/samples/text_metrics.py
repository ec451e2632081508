"""Diversity of samples, given their tokens: unigram entropy, distinct-n and repetition.

These numbers depend on the tokenizer: compare only results with the same one. Tokens may be of any
hashable type. Where a number is undefined, such as the entropy of an empty sample, it is NaN.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence

from gidd.evaluation.results import Measurement


def sequence_entropy(tokens: Sequence[Hashable]) -> float:
    """Return the entropy, in nats, of the token frequencies in one sequence (App. F).

    At most log(number of tokens), if all differ; 0 for a single token, NaN for none.
    """
    if not tokens:
        return math.nan
    counts, total = Counter(tokens).values(), len(tokens)
    # fsum: equal counts give exactly their logarithm, however the tokens are ordered
    return math.log(total) - math.fsum(count * math.log(count) for count in counts) / total


def distinct_ngrams(samples: Iterable[Sequence[Hashable]], n: int) -> float:
    """Return distinct-n of a set: different n-grams of all samples / n-grams of all samples.

    It decreases with the number of samples: compare only sets of the same size. The distinct-n of
    a single sample is 1 - `repetition`. NaN if every sample has fewer than n tokens.
    """
    seen: set[tuple[Hashable, ...]] = set()
    total = 0
    for tokens in samples:
        for ngram in _ngrams(tokens, n):
            seen.add(ngram)
            total += 1
    return len(seen) / total if total else math.nan


def repetition(tokens: Sequence[Hashable], n: int) -> float:
    """Return the fraction of n-grams that repeat an earlier one of the same sample.

    NaN if the sample has fewer than n tokens.
    """
    return 1 - distinct_ngrams([tokens], n)


def mean_of_defined(values: Iterable[float | None]) -> Measurement:
    """Return the mean of independent values, without those that are NaN or None."""
    return Measurement.mean([v for v in values if v is not None and not math.isnan(v)])


def _ngrams(tokens: Sequence[Hashable], n: int) -> Iterator[tuple[Hashable, ...]]:
    return zip(*(tokens[start:] for start in range(n)), strict=False)
