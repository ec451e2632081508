"""Mixtures of prepared folders by weights: `FOLDER*WEIGHT`, `FOLDER*WEIGHT,STEP:WEIGHT`, ..."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gidd.errors import ConfigError

_NUMBER = r"\d{1,6}(?:\.\d{1,6})?"
_SOURCE = re.compile(rf"(.+?)\*({_NUMBER}(?:,\d{{1,15}}:{_NUMBER})*)")


def folders_of(sources: Sequence[str]) -> tuple[str, ...]:
    """Return the folders of a mixture; none if a source has no weight."""
    matches = [_SOURCE.fullmatch(source) for source in sources]
    return tuple(match[1] for match in matches if match) if all(matches) else ()


def samples_per_step(sources: Sequence[str], batch: int) -> dict[int, tuple[int, ...]]:
    """Return the samples of each source in a step, by the steps from which on they change.

    A batch is divided by the weights, and rounded by largest remainders.
    """
    matches = [_SOURCE.fullmatch(source) for source in sources]
    texts = [f"0:{match[2]}".split(",") for match in matches if match]
    weights = [{int(at): float(of) for at, of in (t.split(":") for t in text)} for text in texts]
    result = dict[int, tuple[int, ...]]()
    for step in sorted(set[int]().union(*weights)):
        now = [changes[max(at for at in changes if at <= step)] for changes in weights]
        exact = [batch * weight / (sum(now) or 1) for weight in now]
        counts = [int(value) for value in exact]
        by_remainder = sorted(range(len(exact)), key=lambda source: counts[source] - exact[source])
        for source in by_remainder[: batch - sum(counts)]:
            counts[source] += 1
        for source, weight, count in zip(sources, now, counts, strict=True):
            if not sum(now) or (weight and not count):
                raise ConfigError(
                    f"data.sources: {source} has none of the {batch} samples of step {step}. Use "
                    "a larger weight or train.global_batch; a weight of 0 if there is another."
                )
        result[step] = tuple(counts)
    return result
