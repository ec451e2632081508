"""Options of the estimate of likelihoods; they are checked without torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from gidd.common.allowed import SEED, choice, field_problems, integer, number, optional

GridName = Literal["sine", "stratified", "paper"]


@dataclass(frozen=True, kw_only=True)
class EstimatorOptions:
    """Times and noise of an estimate of the NELBO."""

    nodes: int = 12
    """Times per text and repeat at which the NELBO is evaluated."""

    repeats: int = 4
    """Independent estimates of each text, for the Monte Carlo error; with --max-se, the minimum."""

    grid: GridName = "sine"
    """Times: sine (unbiased, smallest error), stratified (unbiased, as in training), paper (without
    reconstruction and prior; the paper uses --nodes 128)."""

    seed: int = 0
    """Random seed of times and noise."""

    min_repeats_allowed: ClassVar[int] = 2

    def problems(self) -> Iterable[str]:
        """Yield one message per invalid option, each starting with the name of its field."""
        least = self.min_repeats_allowed
        reason = "The standard error is computed from them." if least > 1 else ""
        yield from field_problems(
            self,
            seed=SEED,
            nodes=integer(1, 1_000_000),
            repeats=integer(least, 1_000_000, reason),
            grid=choice(get_args(GridName)),
        )


@dataclass(frozen=True, kw_only=True)
class LikelihoodOptions(EstimatorOptions):
    """Times, noise and budget of an estimate of the NELBO of texts."""

    max_se: float | None = None
    """Add repeats until the standard error over all texts is at most this, in nats per token."""

    max_calls: int | None = None
    """With --max-se: start no repeat that exceeds this number of forward passes."""

    def problems(self) -> Iterable[str]:
        """Yield one message per invalid option, each starting with the name of its field."""
        yield from super().problems()
        positive = number(lambda value: 0 < value < float("inf"), "above 0")
        yield from field_problems(self, max_se=optional(positive), max_calls=optional(integer(1)))
        if self.max_calls is not None and self.max_se is None:
            yield "max_calls needs --max-se; without it the number of forward passes is fixed."
