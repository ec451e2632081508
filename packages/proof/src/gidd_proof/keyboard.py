"""Characters of neighbouring keys on a QWERTY keyboard (US layout)."""

from __future__ import annotations

from itertools import product
from math import hypot

_ROWS = ("`1234567890-=", "qwertyuiop[]\\", "asdfghjkl;'", "zxcvbnm,./")
_SHIFTED_ROWS = ("~!@#$%^&*()_+", "QWERTYUIOP{}|", 'ASDFGHJKL:"', "ZXCVBNM<>?")

_OFFSETS = (0.0, 1.5, 1.75, 2.25)
"""Position of the first key of each row, in widths of a key."""

_REACH = 1.3
"""Largest distance of the centres of neighbouring keys: up to six others touch a key."""


def keyboard_neighbours() -> dict[str, tuple[str, ...]]:
    """Return the characters of the neighbouring keys for each character of the keyboard.

    Shift stays as it is, so capital letters have capital letters as neighbours.
    """
    neighbours: dict[str, tuple[str, ...]] = {}
    for rows in (_ROWS, _SHIFTED_ROWS):
        places = {
            character: (offset + column, row)
            for row, (offset, characters) in enumerate(zip(_OFFSETS, rows, strict=True))
            for column, character in enumerate(characters)
        }
        near: dict[str, list[str]] = {character: [] for character in places}
        for (one, (x1, y1)), (other, (x2, y2)) in product(places.items(), repeat=2):
            if one != other and hypot(x1 - x2, y1 - y2) <= _REACH:
                near[one].append(other)
        neighbours |= {character: tuple(others) for character, others in near.items()}
    return neighbours
