"""Channels learnt from pairs of wrong and right text.

channel = learn_channel([("stste", "state"), ("gfeat", "great")], name="mine")
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from gidd.proofreading.alignment import character_edits
from gidd.proofreading.channels import EDIT_KINDS, MAX_SUBSTITUTIONS, Channel

from gidd.errors import DataError

MAX_PAIR_CHARACTERS: Final = 2_000
"""Characters of a text of a pair: the alignment takes time and memory of their product."""


def learn_channel(pairs: Iterable[tuple[str, str]], name: str = "learnt") -> Channel:
    """Count the mistakes in pairs of (wrong, right) texts.

    Texts are aligned by the fewest edits. P(written | right) has add-one smoothing over the
    characters seen in any text, the fractions of the kinds of edits over the four kinds. A
    character that was never replaced is left out: its mistakes are uniform.
    """
    counts: Counter[tuple[str, str]] = Counter()
    kinds: Counter[str] = Counter()
    alphabet: set[str] = set()
    for number, (wrong, right) in enumerate(pairs, 1):
        for text in (wrong, right):
            if len(text) > MAX_PAIR_CHARACTERS:
                raise DataError(
                    f"pair {number} must have at most {MAX_PAIR_CHARACTERS:,} characters a text, "
                    f"got {len(text):,}. Split it into sentences."
                )
        alphabet.update(wrong, right)
        for edit in character_edits(wrong, right):
            kinds[edit.kind] += 1
            if edit.kind == "substitute":
                counts[edit.written, edit.right] += 1
    if not kinds:
        raise DataError(
            "pairs must have at least one mistake, got none: every wrong text equals its right "
            "one. Write the wrong text first, then the right one."
        )
    replaced = {right for _, right in counts}
    _require_few(len(replaced) * (len(alphabet) - 1))
    weights = {
        right: {c: counts[c, right] + 1.0 for c in sorted(alphabet) if c != right}
        for right in sorted(replaced)
    }
    total = kinds.total() + len(EDIT_KINDS)
    return Channel.from_weights(
        name, weights, {kind: (kinds[kind] + 1) / total for kind in EDIT_KINDS}
    )


def _require_few(count: int) -> None:
    if count > MAX_SUBSTITUTIONS:
        raise DataError(
            f"pairs must have at most {MAX_SUBSTITUTIONS:,} substitutions (replaced characters x "
            f"different characters), got {count:,}. Use text of one language or script."
        )
