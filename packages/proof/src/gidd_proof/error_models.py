"""Error models: the probability of each written character given the right one.

error_model("keyboard").probability(written="s", right="a")    # given that "a" was replaced
learn_errors([("stste", "state"), ("gfeat", "great")]).save(Path("mine.json"))

The posterior of a character is its prediction times this likelihood. Without an error model every
other character is equally likely, which is the uniform noise that a model is trained with.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, final

from gidd.cli import read_json, read_source, write_text
from gidd.errors import ConfigError, DataError
from gidd_proof.edit_model import EDIT_KINDS, OTHER_MISTAKES, character_edits

if TYPE_CHECKING:
    from torch import Tensor

BUILT_IN: Final = ("keyboard", "ocr")
MAX_SUBSTITUTIONS: Final = 250_000
MAX_PAIR_CHARACTERS: Final = 2_000
"""Characters of a text of a pair: its alignment takes time and memory of their product."""

_FORMAT = 1
_TOLERANCE = 1e-6

_ROWS = ("`1234567890-=", "qwertyuiop[]\\", "asdfghjkl;'", "zxcvbnm,./")
_SHIFTED_ROWS = ("~!@#$%^&*()_+", "QWERTYUIOP{}|", 'ASDFGHJKL:"', "ZXCVBNM<>?")
_OFFSETS = (0.0, 1.5, 1.75, 2.25)
"""A US keyboard, and the position of the first key of each row in widths of a key."""

_REACH = 1.3
"""Largest distance of the centres of neighbouring keys: up to six others touch a key."""

_FREQUENT_LOOK_ALIKES = (
    "ec eo ao as hb nu il i1 l1 lI I1 oc o0 O0 O6 tf ij rt uv vy gq g9 q9 5S 5s 8B 2Z 2z 6b 6G "
    "17 38 UV CG DO OQ EF PR MN VY .,"
)
_RARE_LOOK_ALIKES = (
    "an ar ci cr da do db es fi hk hn kx ku mn mw np nr pg ps rn sz tl tr ty ui wv xz yg zs jy vw "
    "AR BR BE BP CO DG FP GO GQ HN HM HK IJ IT IL JU KX KR LI LE MH NW PF QO RB SB S8 TY T7 TI UO "
    "VW WM XK XY YT Z7 ZS Z2 01 06 08 09 12 14 27 35 36 39 41 49 53 56 68 69 71 79 83 89 90 96 98 "
    ":; ;, ,' '` \"' !l !1 |l |I |1 ([ )] -_ -~"
)
_LOOK_ALIKE_WEIGHT = 3.0
"""Number of frequent confusions of optical character recognition for each rare one."""


def _substitute_only() -> Mapping[str, float]:
    return dict.fromkeys(EDIT_KINDS, 0.0) | {"substitute": 1.0}


@final
@dataclass(frozen=True)
class ErrorModel:
    """How often right characters are replaced by each other character, and kinds of mistakes."""

    name: str

    substitutions: Mapping[tuple[str, str], float]
    """P(written | right), given that `right` was replaced, by (written, right)."""

    kinds: Mapping[str, float] = field(default_factory=_substitute_only)
    """Fractions of all mistakes by kind (`EDIT_KINDS`); they sum to 1."""

    def __post_init__(self) -> None:
        if problem := next(_problems(self), None):
            raise ConfigError(problem)

    @classmethod
    def from_weights(
        cls,
        name: str,
        weights: Mapping[str, Mapping[str, float]],
        kinds: Mapping[str, float] | None = None,
    ) -> Self:
        """Make an error model from the weights of written characters, by right character."""
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
        by_right: dict[str, dict[str, float]] = {}
        order = sorted(self.substitutions, key=lambda e: (e[1], -self.substitutions[e], e[0]))
        for written, right in order:
            by_right.setdefault(right, {})[written] = self.substitutions[written, right]
        return by_right

    def probability(self, written: str, right: str) -> float:
        """Return P(written | right), given that `right` was replaced; 0 if it is not listed."""
        return self.substitutions.get((written, right), 0.0)

    def table(self, characters: Sequence[str | None], *, other: float = OTHER_MISTAKES) -> Tensor:
        """Return the likelihood of tokens as float64 [V, V]: row = right, column = written token.

        Rows sum to 1 over the other tokens. A fraction `other` of each row is uniform, because a
        mistake may not be listed; a row without listed mistakes is uniform.

        Args:
            characters: The character of each token; None for tokens that are not text, which get
                rows and columns of 0.
            other: Fraction of replacements that the error model does not describe.
        """
        import torch

        size = len(characters)
        listed = torch.zeros(size, size, dtype=torch.float64)
        tokens: dict[str, list[int]] = {}
        for token, character in enumerate(characters):
            if character is not None:
                tokens.setdefault(character, []).append(token)
        for (written, right), value in self.substitutions.items():
            for row in tokens.get(right, ()):
                listed[row, tokens.get(written, [])] = value
        is_text = torch.tensor([c is not None for c in characters], dtype=torch.float64)
        uniform = torch.outer(is_text, is_text).fill_diagonal_(0)
        uniform = uniform / uniform.sum(1, keepdim=True).clamp_min(1)
        totals = listed.sum(1, keepdim=True)
        mixed = (1 - other) * listed / totals.clamp_min(1e-300) + other * uniform
        return torch.where(totals > 0, mixed, uniform)

    def save(self, path: Path) -> None:
        """Write the error model as JSON."""
        substitutions = {right: dict(written) for right, written in self.by_right.items()}
        record = {"format": _FORMAT, "name": self.name, "kinds": dict(self.kinds)}
        text = json.dumps(record | {"substitutions": substitutions}, indent=1)
        write_text(path, text + "\n")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file that `save` wrote."""
        remedy = "Learn it again with `gidd-proof learn-errors`."
        record: Any = read_json(path, remedy, DataError)
        try:
            if record["format"] != _FORMAT:
                raise ConfigError(f"it must have format {_FORMAT}, got {record['format']!r}.")
            entries = {
                (written, right): float(value)
                for right, entries in record["substitutions"].items()
                for written, value in entries.items()
            }
            kinds = {kind: float(value) for kind, value in record["kinds"].items()}
            return cls(str(record["name"]), entries, kinds)
        except (ValueError, KeyError, TypeError, AttributeError, ConfigError) as error:
            raise DataError(f"{path} cannot be read as an error model: {error} {remedy}") from error


def error_model(name: str | Path) -> ErrorModel:
    """Return a built-in error model, or the error model in a file of `gidd-proof learn-errors`."""
    if name == "keyboard":
        return ErrorModel.from_weights("keyboard", _keyboard_weights())
    if name == "ocr":
        return ErrorModel.from_weights("ocr", _look_alike_weights())
    path = Path(name)
    if not path.is_file():
        raise ConfigError(
            f"an error model must be {', '.join(BUILT_IN)} or a file written by `gidd-proof "
            f"learn-errors`, got {str(name)[:80]!r}."
        )
    return ErrorModel.read(path)


def _keyboard_weights() -> dict[str, dict[str, float]]:
    """Return the neighbouring keys of each character; Shift stays as it is."""
    weights: dict[str, dict[str, float]] = {}
    for rows in (_ROWS, _SHIFTED_ROWS):
        places = {
            character: (offset + column, row)
            for row, (offset, characters) in enumerate(zip(_OFFSETS, rows, strict=True))
            for column, character in enumerate(characters)
        }
        for key, other in product(places, repeat=2):
            if key != other and math.dist(places[key], places[other]) <= _REACH:
                weights.setdefault(key, {})[other] = 1.0
    return weights


def _look_alike_weights() -> dict[str, dict[str, float]]:
    """Return the characters that each character is taken for; pairs go both ways."""
    weights: dict[str, dict[str, float]] = {}
    for pairs, weight in ((_RARE_LOOK_ALIKES, 1.0), (_FREQUENT_LOOK_ALIKES, _LOOK_ALIKE_WEIGHT)):
        for letter, other in pairs.split():
            weights.setdefault(letter, {})[other] = weight
            weights.setdefault(other, {})[letter] = weight
    return weights


def learn_errors(pairs: Iterable[tuple[str, str]], name: str = "learnt") -> ErrorModel:
    """Count the mistakes in pairs of (wrong, right) texts.

    Texts are aligned by the fewest edits. P(written | right) has add-one smoothing over the
    characters seen in any text, the fractions of the kinds over the four kinds. A character that
    was never replaced is left out: its mistakes are uniform.
    """
    counts: Counter[tuple[str, str]] = Counter()
    kinds: Counter[str] = Counter()
    alphabet: set[str] = set()
    for index, (wrong, right) in enumerate(pairs, 1):
        if max(len(wrong), len(right)) > MAX_PAIR_CHARACTERS:
            raise DataError(
                f"pair {index} must have at most {MAX_PAIR_CHARACTERS:,} characters a text. Split "
                "it into sentences."
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
    replaced = sorted({right for _, right in counts})
    if len(replaced) * len(alphabet) > MAX_SUBSTITUTIONS:
        raise DataError(
            f"pairs must have at most {MAX_SUBSTITUTIONS:,} substitutions (replaced characters x "
            "different characters). Use text of one language or script."
        )
    weights = {
        right: {c: counts[c, right] + 1.0 for c in sorted(alphabet) if c != right}
        for right in replaced
    }
    total = kinds.total() + len(EDIT_KINDS)
    return ErrorModel.from_weights(
        name, weights, {kind: (kinds[kind] + 1) / total for kind in EDIT_KINDS}
    )


def read_pairs(name: str | Path) -> Iterator[tuple[str, str]]:
    """Yield (wrong, right) of each line of a file (- for standard input), but of empty lines."""
    text = read_source(str(name)).text
    for line_number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        parts = line.removesuffix("\r").split("\t")
        if line.strip() and len(parts) != 2:
            raise DataError(
                f"{name}, line {line_number}, must be wrong<TAB>right, got {line[:80]!r}. Write "
                "one pair per line."
            )
        if line.strip():
            yield parts[0], parts[1]


def _problems(model: ErrorModel) -> Iterator[str]:
    """Yield a message per invalid entry."""
    totals: Counter[str] = Counter()
    for (written, right), value in model.substitutions.items():
        if len(written) != 1 or len(right) != 1 or written == right:
            yield f"substitutions must be of one character, got {written!r} for {right!r}."
        if not 0 <= value <= 1:  # also for NaN
            yield f"substitutions must have probabilities in [0, 1], got {value!r}."
        totals[right] += value  # pyright: ignore[reportArgumentType]
    for right, total in totals.items():
        if total > 1 + _TOLERANCE:
            yield f"substitutions of {right!r} must sum to at most 1, got {total:g}."
    values = list(model.kinds.values())
    if set(model.kinds) != set(EDIT_KINDS) or not abs(math.fsum(values) - 1) <= _TOLERANCE:
        yield (
            f"kinds must be the fractions of {', '.join(EDIT_KINDS)}, with the sum 1, got "
            f"{dict(model.kinds)}."
        )
