"""Options of the curve of self-correction; they are checked without torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from gidd.common.allowed import (
    SEED,
    Allowed,
    field_problems,
    integer,
    number,
    optional,
)
from gidd.pipeline.options import SamplingOptions
from gidd.sampling.defaults import MAX_TEMPERATURE


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
