"""Numbers of one sample, by name. Tests cover all that `COMPONENTS` names.

A metric is a function (text, tokens) that returns a number of a sample, NaN if it is undefined:
`gidd eval samples --metric NAME` reports the mean over samples with its standard error.
"""

import math
import zlib
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Annotated

from gidd.common.config.allowed import integer

COMPONENTS: dict[str, str] = {"compression": "compression", "repetition": "ngram_repetition"}
"""Function of each metric by its name."""


def compression(text: str, tokens: Sequence[int]) -> float:
    """Return the size of the text, compressed by zlib, as a fraction of its size in UTF-8."""
    del tokens
    data = text.encode(errors="replace")
    return len(zlib.compress(data, 9)) / len(data) if data else math.nan


def ngram_repetition(
    text: str, tokens: Sequence[int], *, n: Annotated[int, integer(1)] = 2
) -> float:
    """Return the fraction of n-grams that repeat an earlier one of the sample.

    Args:
        text: The sample.
        tokens: Its tokens.
        n: Number of tokens of an n-gram.
    """
    del text
    return repetition(tokens, n)


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
    ngrams = [g for x in samples for g in zip(*(x[i:] for i in range(n)), strict=False)]
    return len(set(ngrams)) / len(ngrams) if ngrams else math.nan


def repetition(tokens: Sequence[Hashable], n: int) -> float:
    """Return the fraction of n-grams that repeat an earlier one of the same sample.

    NaN if the sample has fewer than n tokens.
    """
    return 1 - distinct_ngrams([tokens], n)
