"""A metric: one number of a sample."""

import math
import re
from collections.abc import Sequence

import gidd


@gidd.register("metric", "right-sums")
def right_sums(text: str, tokens: Sequence[int], *, tolerance: int = 0) -> float:
    """Return the fraction of the additions in a text that are right, NaN if it has none.

    Args:
        text: The sample.
        tokens: Its tokens.
        tolerance: Largest difference of a sum that is right.
    """
    sums = [tuple(map(int, match)) for match in re.findall(r"(\d+) \+ (\d+) = (\d+)", text)]
    right = [abs(a + b - c) <= tolerance for a, b, c in sums]
    return sum(right) / len(right) if right else math.nan
