"""The pseudo-log-likelihood of texts: one forward pass each, since x_theta is leave-one-out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, final

from gidd.sampling import Jobs, WindowReader, WindowTokens, read_own_probability

_LEAST = 1e-9
"""Lower bound of probabilities, so that one character decides no comparison alone."""


class Crop(NamedTuple):
    """A short text, and the section text[start:stop] that is scored."""

    text: str
    start: int
    stop: int


class CharacterEncoder(Protocol):
    """A tokenizer with one token per character."""

    def encode(self, text: str, /) -> list[int]:
        """Return the tokens of a text."""
        ...


@final
@dataclass(frozen=True)
class CandidateScorer:
    """Computes sum_i log x_theta(z_i | Z, t) over the characters of crops.

    x_theta at position i does not depend on z_i, so this is the pseudo-log-likelihood in a single
    forward pass; a masked model needs one forward pass per position.
    """

    reader: WindowReader
    tokenizer: CharacterEncoder

    async def __call__(self, jobs: Jobs, crops: Sequence[Crop], time: float) -> list[float]:
        """Return the pseudo-log-likelihood of each crop, in nats."""
        order = sorted(range(len(crops)), key=lambda i: len(crops[i].text))  # equal ones together
        windows = ((self._window(crops[i]), time) for i in order)
        values = await self.reader.read(jobs, windows, read_own_probability)
        scores = [0.0] * len(crops)
        for i, (probability,) in zip(order, values, strict=True):
            scored = probability[crops[i].start : crops[i].stop]
            scores[i] = float(scored.clamp_min(_LEAST).log().double().sum())
        return scores

    def _window(self, crop: Crop) -> WindowTokens:
        tokens = tuple(self.tokenizer.encode(crop.text))
        return WindowTokens(tokens, tuple(crop.start <= i < crop.stop for i in range(len(tokens))))
