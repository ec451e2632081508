"""Options of the evaluations of correction; they are checked without torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, final, get_args

from gidd.common.allowed import (
    SEED,
    Allowed,
    choice,
    field_problems,
    integer,
    number,
    optional,
)
from gidd.evaluation.correction.spellcheckers import SPELLCHECKERS
from gidd.pipeline.options import SamplingOptions
from gidd.sampling.defaults import MAX_TEMPERATURE

NoiseName = Literal["random", "keyboard", "ocr", "typos", "confusions"]
MethodName = Literal["gidd", "gidd-channel", "symspellpy", "pyspellchecker"]

METHODS: Mapping[MethodName, str] = {
    "gidd": "`pipe.correct` with its defaults; number and kind of mistakes are not given",
    "gidd-channel": "the same, given the channel of the mistakes; for keyboard and ocr only",
    "symspellpy": f"symspellpy: {SPELLCHECKERS['symspellpy']}",
    "pyspellchecker": f"pyspellchecker: {SPELLCHECKERS['pyspellchecker']}",
}
"""Methods of correction, and what they are."""

WITH_CHANNEL: Final = "gidd-channel"
"""The method that is given the channel of the mistakes."""

SHORTEST_PASSAGE: Final = 500
"""Characters of a passage, on average: more documents than this allows are not read."""


@final
@dataclass(frozen=True, kw_only=True)
class CorrectionTestOptions:
    """Mistakes to add to clean text, and methods that correct them."""

    noise: tuple[NoiseName, ...] = get_args(NoiseName)
    """Kinds of mistakes: random (wrong letters), keyboard (neighbouring keys), ocr (look-alikes),
    typos (letters dropped, added, replaced, exchanged), confusions (to/too, of/off, form/from)."""

    rates: tuple[float, ...] = (0.0, 0.01, 0.02, 0.05, 0.1)
    """Probabilities of a mistake at each letter (random, typos), at each character that can be
    mistaken (keyboard, ocr) or at each word that can be confused (confusions)."""

    methods: tuple[MethodName, ...] = ("gidd",)
    """Methods to compare: gidd (the model), gidd-channel (given the channel of the mistakes, for
    keyboard and ocr), symspellpy and pyspellchecker (dictionaries)."""

    max_characters: int = 20_000
    """Characters to correct for each noise, rate and method, in equal parts of all documents."""

    seed: int = 0
    """Random seed of the mistakes."""

    def problems(self) -> Iterable[str]:
        """Yield one message per invalid option, each starting with its name."""
        rate = number(lambda rate: 0 <= rate <= 1, "in [0, 1]", "It is a fraction, e.g. 0.05.")
        return field_problems(
            self,
            noise=_each(choice(get_args(NoiseName))),
            rates=_each(rate),
            methods=_each(choice(get_args(MethodName))),
            max_characters=integer(SHORTEST_PASSAGE, 10_000_000),
            seed=SEED,
        )


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
