"""Channels learnt from pairs of wrong and right text.

channel = learn_channel([("stste", "state"), ("gfeat", "great")], name="mine")
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

from gidd.errors import DataError
from gidd.proofreading.channels import EDIT_KINDS, MAX_SUBSTITUTIONS, Channel

MAX_PAIR_CHARACTERS: Final = 2_000
"""Characters of a text of a pair: the alignment takes time and memory of their product."""

EditKind = Literal["substitute", "insert", "delete", "swap"]


class CharacterEdit(NamedTuple):
    """What a writer did at one place of the right text."""

    kind: EditKind
    right: str
    """The character, or the two that were exchanged; empty for an added one."""

    written: str
    """What was written for it; empty for a dropped one."""


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


def character_edits(wrong: str, right: str) -> list[CharacterEdit]:
    """Return the fewest edits of `right` that give `wrong`, in order.

    An exchange of two neighbours is one edit (optimal string alignment). Among equally short lists,
    replacements are preferred to pairs of an added and a dropped character.
    """
    start, stop = _common_ends(wrong, right)
    wrong, right = wrong[start : len(wrong) - stop], right[start : len(right) - stop]
    costs = _alignment_costs(wrong, right)
    edits: list[CharacterEdit] = []
    i, j = len(wrong), len(right)
    while i or j:
        cost = costs[i][j]
        if _is_swap(wrong, right, i, j) and cost == costs[i - 2][j - 2] + 1:
            edits.append(CharacterEdit("swap", right[j - 2 : j], wrong[i - 2 : i]))
            i, j = i - 2, j - 2
        elif i and j and cost == costs[i - 1][j - 1] + (wrong[i - 1] != right[j - 1]):
            i, j = i - 1, j - 1
            if wrong[i] != right[j]:
                edits.append(CharacterEdit("substitute", right[j], wrong[i]))
        elif i and cost == costs[i - 1][j] + 1:
            i -= 1
            edits.append(CharacterEdit("insert", "", wrong[i]))
        else:
            j -= 1
            edits.append(CharacterEdit("delete", right[j], ""))
    return edits[::-1]


def _common_ends(one: str, other: str) -> tuple[int, int]:
    """Return the lengths of the common start and of the common end, which do not overlap."""
    shorter = min(len(one), len(other))
    start = 0
    while start < shorter and one[start] == other[start]:
        start += 1
    stop = 0
    while stop < shorter - start and one[-1 - stop] == other[-1 - stop]:
        stop += 1
    return start, stop


def _alignment_costs(wrong: str, right: str) -> list[list[int]]:
    """Return the distance of every start of `wrong` from every start of `right`."""
    costs = [list(range(len(right) + 1))]
    for i, written in enumerate(wrong, 1):
        row = [i]
        for j, character in enumerate(right, 1):
            cost = min(
                costs[i - 1][j - 1] + (written != character), costs[i - 1][j] + 1, row[j - 1] + 1
            )
            if _is_swap(wrong, right, i, j):
                cost = min(cost, costs[i - 2][j - 2] + 1)
            row.append(cost)
        costs.append(row)
    return costs


def _is_swap(wrong: str, right: str, i: int, j: int) -> bool:
    """Whether the last two of i written and of j right characters are exchanged."""
    return (
        min(i, j) >= 2
        and wrong[i - 1] == right[j - 2]
        and wrong[i - 2] == right[j - 1]
        and wrong[i - 1] != wrong[i - 2]
    )
