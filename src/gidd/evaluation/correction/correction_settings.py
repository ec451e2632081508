"""Options of the evaluations of self-correction; they are checked without torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, final, get_args

from gidd.common.allowed import (
    SEED,
    Allowed,
    choice,
    field_problems,
    integer,
    number,
    optional,
)
from gidd.pipeline.options import CorrectionOptions, SamplingOptions
from gidd.sampling.defaults import MAX_TEMPERATURE

CorruptionName = Literal["tokens", "swap", "letters"]

CORRUPTIONS: dict[str, str] = {
    "tokens": "each token is replaced with probability `rate` by a uniformly drawn other one; "
    "units are tokens",
    "swap": "tokens are paired with a neighbour, and each pair is exchanged with probability "
    "`rate`; units are tokens",
    "letters": "in each word that has an ASCII letter, with probability `rate` one letter is "
    "replaced by another one of the same case; units are words with the space before them",
}
"""Kinds of errors; line breaks, special tokens and parts of characters are never changed."""


RATE = number(lambda rate: 0 < rate <= 1, "in (0, 1]", "It is a fraction, e.g. 0.05.")
"""Allowed rates of errors."""

ErrorRate = float | Literal["none"]
"""An expected fraction of wrong tokens; "none" is Algorithm 1 of the paper."""


@final
@dataclass(frozen=True, kw_only=True)
class RecoveryOptions:
    """Errors to add to clean text, and settings of self-correction to compare on it."""

    corruption: tuple[CorruptionName, ...] = ("tokens",)
    """Kinds of errors: tokens (random other tokens), swap (neighbouring tokens exchanged), letters
    (a letter of a word replaced by another one)."""

    rate: tuple[float, ...] = (0.05,)
    """Fractions of tokens, for letters of words, that become wrong."""

    error_rate: tuple[ErrorRate, ...] = ("none", 0.2, 0.05, 0.01)
    """Expected fractions of wrong tokens that self-correction is run with; none replaces every
    token for which the model prefers another one, as in the paper. No correction ("off") is always
    a row of the table."""

    num_texts: int = 120
    """Number of texts, taken in turn from the documents; fewer if the documents have no more."""

    length: int | None = None
    """Tokens per text; by default the model's context."""

    seed: int = 0
    """Random seed of errors and of self-correction."""

    correction: CorrectionOptions = field(default_factory=CorrectionOptions)
    """Other options of self-correction."""

    def problems(self) -> Iterable[str]:
        """Yield one message per invalid option, each starting with its name."""
        error_rate = number(lambda rate: 0 < rate < 1, "in (0, 1) or none, as in the paper")
        yield from field_problems(
            self,
            corruption=_each(choice(get_args(CorruptionName))),
            rate=_each(RATE),
            error_rate=_each(_or_none(error_rate)),
            num_texts=integer(1),
            length=optional(integer(2)),
            seed=SEED,
        )
        yield from self.correction.problems("correction.")
        if self.correction.error_rate is not None:
            yield "correction.error_rate must be left out: set --error-rate instead."
        if not self.correction.calls:
            yield 'correction.calls must be at least 2: the row "off" has no correction.'


@final
@dataclass(frozen=True, kw_only=True)
class CurveOptions:
    """Samples, and how long and at which temperatures to correct them."""

    num_samples: int = 64
    """Number of samples."""

    length: int | None = None
    """Tokens per sample; by default the model's context, at most 2048."""

    seed: int = 0
    """Random seed of samples and of self-correction."""

    temperatures: tuple[float, ...] = (0.1, 0.5, 1.0)
    """Temperatures of the replacements; the paper finds 0.1 to 0.5 most effective."""

    calls: tuple[int, ...] = (4, 16, 64, 256)
    """Forward passes of self-correction after which to measure."""

    def problems(self) -> Iterable[str]:
        """Yield one message per invalid option, each starting with its name."""
        temperature = number(lambda t: 0 <= t <= MAX_TEMPERATURE, f"in [0, {MAX_TEMPERATURE:g}]")
        passes = integer(2, 1_000_000, "Each pass scores the change made by the one before.")
        return field_problems(
            self,
            num_samples=integer(1),
            length=optional(integer(1)),
            seed=SEED,
            temperatures=_each(temperature),
            calls=_each(passes),
        )


def curve_problems(sampling: SamplingOptions) -> Iterable[str]:
    """Yield a message per option of the samples that is invalid, or that `CurveOptions` sets."""
    yield from sampling.problems()
    default = SamplingOptions().correction
    for name, instead in (("temperature", "temperatures"), ("calls", "calls")):
        if getattr(sampling.correction, name) != getattr(default, name):
            yield f"correction.{name} must be left out: set --{instead} instead."


def _each(allowed: Allowed) -> Allowed:
    """Allow one or more different values."""

    def contains(values: tuple[object, ...]) -> bool:
        is_allowed = all(map(allowed.contains, values))
        return bool(values) and is_allowed and len(set(values)) == len(values)

    return allowed._replace(contains=contains, text=f"one or more different values, {allowed.text}")


def _or_none(allowed: Allowed) -> Allowed:
    """Allow the word "none" as well."""

    def contains(value: object) -> bool:
        return value == "none" or allowed.contains(value)

    return allowed._replace(contains=contains)
