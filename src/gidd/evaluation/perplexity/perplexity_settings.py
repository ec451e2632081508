"""Options of the likelihood of texts; they are checked without torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, final

from gidd.common.allowed import SEED, field_problems, integer, number, optional

GridName = Literal["sine", "stratified", "paper"]

POSITIVE = number(lambda value: 0 < value < float("inf"), "above 0")


@final
@dataclass(frozen=True, kw_only=True)
class PerplexityOptions:
    """Which tokens are scored, and the budget of the estimate of a diffusion model."""

    length: int | None = None
    """Tokens of a window; by default the model's context, at most 2048."""

    stride: int | None = None
    """Tokens that each window after the first scores, given the LENGTH - STRIDE tokens before them;
    by default windows are disjoint and scored independently."""

    end_of_text: bool = False
    """Append the end-of-text token to each document, and score it."""

    max_documents: int | None = None
    """Number of documents; by default all."""

    nodes: int = 4
    """Times per window and repeat."""

    repeats: int = 2
    """Independent estimates per window, for the Monte Carlo error; with --max-se, the smallest
    number. Few are enough for a corpus, because errors of windows average out."""

    max_se: float | None = None
    """Add repeats until the Monte Carlo error is at most this, in nats per token."""

    max_calls: int | None = None
    """With --max-se: start no repeat that exceeds this number of forward passes of windows."""

    grid: GridName = "sine"
    """Times: sine (unbiased, smallest error), stratified (unbiased, as in training), paper (without
    reconstruction and prior; the paper uses --nodes 128)."""

    seed: int = 0
    """Random seed of times and noise."""

    def problems(self) -> Iterable[str]:
        """Yield one message per invalid option, each starting with the name of its field."""
        count = optional(integer(1))
        yield from field_problems(
            self,
            length=count,
            stride=count,
            max_documents=count,
            nodes=integer(1, 1_000_000),
            repeats=integer(2, 1_000_000, "The Monte Carlo error is computed from them."),
            max_se=optional(POSITIVE),
            max_calls=count,
            seed=SEED,
        )
        if self.length and self.stride and self.stride > self.length:
            yield f"stride must be at most the length {self.length}, got {self.stride}."
        if self.max_calls is not None and self.max_se is None:
            yield "max_calls needs --max-se; without it the number of forward passes is fixed."
