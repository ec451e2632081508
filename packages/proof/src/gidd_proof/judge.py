"""The pseudo-log-likelihood of texts: one forward pass each, since x_theta is leave-one-out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

from gidd.proofreading.window_reader import WindowReader, WindowTokens
from torch import Tensor

from gidd.data.tokenizers import Tokenizer
from gidd.sampling.jobs import Jobs
from gidd.sampling.prediction import Prediction

_LEAST = 1e-9
"""Probabilities are at least this, so that one character decides no comparison alone."""


class Crop(NamedTuple):
    """A short text, and the part of it whose likelihood counts: text[start:stop]."""

    text: str
    start: int
    stop: int


@final
@dataclass(frozen=True)
class TextJudge:
    """Computes sum_i log x_theta(z_i | Z, t) over the characters of crops.

    x_theta at position i does not depend on z_i, so this is the pseudo-log-likelihood in a single
    forward pass; a masked model needs one per position.
    """

    reader: WindowReader
    tokenizer: Tokenizer

    async def __call__(self, jobs: Jobs, crops: Sequence[Crop], time: float) -> list[float]:
        """Return the pseudo-log-likelihood of each crop, in nats."""
        order = sorted(range(len(crops)), key=lambda i: len(crops[i].text))  # equal ones together
        windows = ((self._window(crops[i]), time) for i in order)
        values = await self.reader.read(jobs, windows, _log_x_theta)
        scores = [0.0] * len(crops)
        for i, (log_likelihood,) in zip(order, values, strict=True):
            scores[i] = float(log_likelihood.double().sum())
        return scores

    def _window(self, crop: Crop) -> WindowTokens:
        tokens = tuple(self.tokenizer.encode(crop.text))
        judged = tuple(crop.start <= i < crop.stop for i in range(len(tokens)))
        return WindowTokens(tokens, judged)


def _log_x_theta(prediction: Prediction, judged: Tensor) -> tuple[Tensor, ...]:
    z = prediction.z.flatten()

    def log_probability(rows: Tensor, i: Tensor) -> tuple[Tensor, ...]:
        return (rows.gather(-1, z[i, None]).squeeze(-1).clamp_min(_LEAST).log(),)

    return prediction.read(judged, log_probability)
