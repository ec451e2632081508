"""Channels: what mistakes look like, as the likelihood of a written character given the right one.

channel = channel_by_name("keyboard")            # or "ocr", or a file of `gidd channel learn`
channel.probability(written="s", right="a")      # given that "a" was replaced by another character

The posterior of a token is its prediction times this likelihood. Without a channel every other
token is equally likely, which is the uniform noise that a model is trained with.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, final

from gidd.proofreading.keyboard import keyboard_neighbours
from gidd.proofreading.ocr import ocr_look_alikes

from gidd.common.files import explain_damage, read_json, write_json
from gidd.common.limits import RECORD_BYTES
from gidd.common.terminal import shorten
from gidd.errors import ConfigError, DataError

if TYPE_CHECKING:
    from torch import Tensor

CHANNELS: Final = ("keyboard", "ocr")
"""Names of the built-in channels."""

EDIT_KINDS: Final = ("substitute", "insert", "delete", "swap")
"""What a writer did to the right text: replaced, added or dropped a character, or exchanged two
neighbours."""

MAX_SUBSTITUTIONS: Final = 250_000
"""Entries of a channel that are read from a file."""

OTHER_MISTAKES: Final = 0.05
"""Fraction of replacements that a channel does not describe, in `Channel.table`."""

CHANNEL_FORMAT: Final = 1

_TOLERANCE = 1e-6
_AGAIN = "Learn it again with `gidd channel learn`."


def _substitute_only() -> Mapping[str, float]:
    return dict.fromkeys(EDIT_KINDS, 0.0) | {"substitute": 1.0}


@final
@dataclass(frozen=True)
class Channel:
    """How often right characters are replaced by each other character, and by which kind of edit.

    Probabilities of one right character sum to 1 at most; they are given that it was replaced.
    """

    name: str

    substitutions: Mapping[tuple[str, str], float]
    """P(written | right), by (written, right)."""

    kinds: Mapping[str, float] = field(default_factory=_substitute_only)
    """Fractions of all mistakes by kind of edit (`EDIT_KINDS`); they sum to 1."""

    def __post_init__(self) -> None:
        if problems := list(_channel_problems(self)):
            raise ConfigError("\n".join(problems))

    @classmethod
    def from_weights(
        cls,
        name: str,
        weights: Mapping[str, Mapping[str, float]],
        kinds: Mapping[str, float] | None = None,
    ) -> Self:
        """Make a channel from the weights of written characters, by right character."""
        substitutions = {
            (written, right): weight / total
            for right, others in weights.items()
            if (total := math.fsum(others.values()))
            for written, weight in others.items()
        }
        return cls(name, substitutions, _substitute_only() if kinds is None else kinds)

    @cached_property
    def by_right(self) -> Mapping[str, Mapping[str, float]]:
        """P(written | right) by right character, then by written character, most likely first."""
        found: dict[str, dict[str, float]] = {}
        for (written, right), value in sorted(self.substitutions.items(), key=_most_likely_first):
            found.setdefault(right, {})[written] = value
        return found

    def probability(self, written: str, right: str) -> float:
        """Return P(written | right), given that `right` was replaced; 0 if it is not listed."""
        return self.substitutions.get((written, right), 0.0)

    def table(self, characters: Sequence[str | None], *, other: float = OTHER_MISTAKES) -> Tensor:
        """Return the likelihood of tokens as float64 [V, V]: row = right, column = written token.

        Rows sum to 1 over the other tokens. A fraction `other` of each row is shared equally by
        them, since the channel may not list a mistake; a row without listed mistakes is uniform.

        Args:
            characters: The character of each token; None for tokens that are never written nor
                right (special tokens), whose rows and columns are 0.
            other: Fraction of replacements that the channel does not describe.
        """
        import torch

        size = len(characters)
        listed = torch.zeros(size, size, dtype=torch.float64)
        columns: dict[str, list[int]] = {}
        for token, character in enumerate(characters):
            if character is not None:
                columns.setdefault(character, []).append(token)
        for right, others in self.by_right.items():
            for written, value in others.items():
                for row in columns.get(right, ()):
                    listed[row, columns.get(written, [])] = value
        is_text = torch.tensor([c is not None for c in characters], dtype=torch.float64)
        uniform = torch.outer(is_text, is_text).fill_diagonal_(0)
        uniform = uniform / uniform.sum(1, keepdim=True).clamp_min(1)
        totals = listed.sum(1, keepdim=True)
        mixed = (1 - other) * listed / totals.clamp_min(1e-300) + other * uniform
        return torch.where(totals > 0, mixed, uniform)

    def save(self, path: Path) -> None:
        """Write the channel as JSON, atomically."""
        write_json(
            path,
            {
                "format": CHANNEL_FORMAT,
                "name": self.name,
                "kinds": dict(self.kinds),
                "substitutions": {right: dict(found) for right, found in self.by_right.items()},
            },
        )

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file that `save` wrote."""
        with explain_damage(str(path), _AGAIN, DataError):
            record = read_json(path, _AGAIN, DataError, RECORD_BYTES)
            if record.get("format") != CHANNEL_FORMAT:
                raise DataError(f"{path} is not a channel of format {CHANNEL_FORMAT}. {_AGAIN}")
            count = sum(len(found) for found in record["substitutions"].values())
            if count > MAX_SUBSTITUTIONS:
                raise DataError(
                    f"{path} must have at most {MAX_SUBSTITUTIONS:,} substitutions, got {count:,}. "
                    f"{_AGAIN}"
                )
            try:
                return cls(
                    str(record["name"]),
                    {
                        (written, right): _number(value)
                        for right, found in record["substitutions"].items()
                        for written, value in found.items()
                    },
                    {kind: _number(value) for kind, value in record["kinds"].items()},
                )
            except ConfigError as error:
                raise DataError(f"{path}: {error} {_AGAIN}") from error


def channel_by_name(name: str | Path) -> Channel:
    """Return a built-in channel, or that of a file written by `gidd channel learn`."""
    if name == "keyboard":
        return _keyboard_channel()
    if name == "ocr":
        return _ocr_channel()
    path = Path(name)
    if not path.is_file():
        raise ConfigError(
            f"a channel must be {', '.join(CHANNELS)} or a file written by `gidd channel learn`, "
            f"got {shorten(str(name))}."
        )
    return Channel.read(path)


@lru_cache(maxsize=1)
def _keyboard_channel() -> Channel:
    near = keyboard_neighbours()
    weights = {right: dict.fromkeys(others, 1.0) for right, others in near.items()}
    return Channel.from_weights("keyboard", weights)


@lru_cache(maxsize=1)
def _ocr_channel() -> Channel:
    return Channel.from_weights("ocr", ocr_look_alikes())


def _most_likely_first(entry: tuple[tuple[str, str], float]) -> tuple[str, float, str]:
    (written, right), value = entry
    return right, -value, written


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"a probability must be a number, got {shorten(value)}.")
    return float(value)


def _channel_problems(channel: Channel) -> Iterable[str]:
    """Yield one message per field of a channel that is invalid."""
    totals: dict[str, float] = {}
    for (written, right), value in channel.substitutions.items():
        if len(written) != 1 or len(right) != 1 or written == right:
            yield (
                "substitutions must be of one character by another one, got "
                f"{shorten(written)} for {shorten(right)}."
            )
            return
        if not 0 <= value <= 1:  # also for NaN
            yield f"substitutions must have probabilities in [0, 1], got {shorten(value)}."
            return
        totals[right] = totals.get(right, 0.0) + value
    for right, total in totals.items():
        if total > 1 + _TOLERANCE:
            yield (
                f"substitutions of one character must sum to at most 1, got {total:g} for "
                f"{shorten(right)}."
            )
            return
    values = [channel.kinds.get(kind, math.nan) for kind in EDIT_KINDS]
    is_share = all(0 <= value <= 1 for value in values)
    is_complete = len(channel.kinds) == len(EDIT_KINDS)
    if not is_share or not is_complete or abs(math.fsum(values) - 1) > _TOLERANCE:
        yield (
            f"kinds must be the fractions of {', '.join(EDIT_KINDS)}, with the sum 1, got "
            f"{shorten(dict(channel.kinds))}."
        )
