"""The fewest edits between two words: replaced, added, dropped and exchanged characters."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Literal, NamedTuple

EditKind = Literal["substitute", "insert", "delete", "swap"]


class CharacterEdit(NamedTuple):
    """What a writer did at one place of the right text."""

    kind: EditKind
    right: str
    """The character, or the two that were exchanged; empty for an added one."""

    written: str
    """What was written for it; empty for a dropped one."""


def edit_distance(wrong: str, right: str) -> int:
    """Return the number of `character_edits`."""
    return _alignment_costs(wrong, right)[-1][-1]


def character_edits(wrong: str, right: str) -> list[CharacterEdit]:
    """Return the fewest edits of `right` that give `wrong`, in order.

    An exchange of two neighbours is one edit (optimal string alignment). Among equally short lists,
    replacements are preferred to pairs of an added and a dropped character.
    """
    start, stop = common_ends(wrong, right)
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


def common_ends(one: Sequence[Hashable], other: Sequence[Hashable]) -> tuple[int, int]:
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
