"""The pseudo-likelihood of a text as a function of its fraction of wrong tokens.

x_theta is the posterior of a token given all others, so the probability of the token that was found
at position i, given all others and a fraction r of wrong tokens, is

    (1 - rho) x_theta(z_i | Z, t) + rho b_i

at the time t at which the noise of the schedule is r. Without a channel, rho = r V / (V - 1) is the
fraction of redrawn tokens and b_i the noise distribution at z_i; with a channel C, rho = r and
b_i = sum_v x_theta(v | Z, t) C(v, z_i). The sum of the logarithms over all positions is the
pseudo-log-likelihood. Below the smallest time of a network only rho changes with r.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, final

import torch
from torch import Tensor

from gidd.diffusion.schedule import TINY

if TYPE_CHECKING:
    from jaxtyping import Float

_MIN_RATE, _MAX_RATE = 1e-5, 0.95
_FIRST_RATES, _RATES, _ZOOMS = 48, 25, 2
_ENTRIES_AT_ONCE = 1 << 18

_STEP = 0.05
"""Of derivatives, in log(rate)."""

_BLOCK = 32
"""Tokens of a block; the sums of the scores of different blocks are nearly independent."""

_MIN_BLOCKS = 8
_NORMAL_QUANTILE = 1.959964
"""Of a two-sided interval of 95%."""


class RateEstimate(NamedTuple):
    """The most likely fraction of wrong tokens, and a 95% interval."""

    error_rate: float
    low: float
    high: float


@final
@dataclass(frozen=True)
class NoiseCurve:
    """What a network predicts at a few noise levels, and the pseudo-likelihood between them.

    N is the number of judged tokens, T the number of noise levels, at least 2.
    """

    shares: Float[Tensor, " T"]
    """Noise of the schedule at the times that the network was told: increasing, with odds that
    each are the same factor larger than those before."""

    found: Float[Tensor, "T N"]
    """x_theta of the tokens of the text."""

    noise: Float[Tensor, "T N"]
    """b: the probability of each token of the text if it was redrawn or replaced."""

    scale: float
    """rho / r."""

    def split(self, sizes: Sequence[int]) -> list[NoiseCurve]:
        """Return the curves of parts with these numbers of tokens."""
        parts = zip(self.found.split(list(sizes), 1), self.noise.split(list(sizes), 1), strict=True)
        return [replace(self, found=found, noise=noise) for found, noise in parts]

    def with_level(
        self, share: Float[Tensor, " 1"], found: Float[Tensor, "1 N"], noise: Float[Tensor, "1 N"]
    ) -> NoiseCurve:
        """Return the curve with predictions at the next noise level."""
        return NoiseCurve(
            torch.cat([self.shares, share]),
            torch.cat([self.found, found]),
            torch.cat([self.noise, noise]),
            self.scale,
        )

    def __call__(self, rates: Float[Tensor, " G"]) -> Float[Tensor, "G N"]:
        """Return the log-probability of every token at each fraction of wrong tokens.

        Predictions are interpolated in the log-odds of the share, and constant beyond the levels.
        """
        weights = self._weights(rates)
        rho = (rates * self.scale).clamp_max(1)[:, None]
        found, noise = ((weights @ values).clamp_min(0) for values in (self.found, self.noise))
        return ((1 - rho) * found + rho * noise).clamp_min(TINY).log()

    def _weights(self, rates: Float[Tensor, " G"]) -> Float[Tensor, "G T"]:
        """Return the weights of the levels: cubic (Catmull-Rom), through every level."""
        odds, last = self.shares.logit(), len(self.shares) - 1
        inside = rates.clamp(self.shares[0], self.shares[-1]).logit()
        place = (inside - odds[0]) / (odds[1] - odds[0])
        left = place.floor().clamp(0, last - 1)
        u = place - left
        cubic = torch.stack(
            [
                u * (-1 + u * (2 - u)) / 2,
                1 + u * u * (3 * u - 5) / 2,
                u * (1 + u * (4 - 3 * u)) / 2,
                u * u * (u - 1) / 2,
            ],
            dim=-1,
        )
        # beyond the ends, levels that continue the line through the last two
        before, after = cubic[:, 0] * (left == 0), cubic[:, 3] * (left == last - 1)
        cubic = cubic + torch.stack([-before, 2 * before - after, 2 * after - before, -after], -1)
        nodes = (left[:, None].long() + torch.arange(-1, 3)).clamp(0, last)
        return rates.new_zeros(len(rates), last + 1).scatter_add(1, nodes, cubic)

    def rough_rate(self) -> float:
        """Return the most likely fraction of wrong tokens, within 30% or so."""
        rates = self._first_rates()
        return float(rates[self._sums(rates).argmax()])

    def fit(self) -> RateEstimate:
        """Return the most likely fraction of wrong tokens, with an interval.

        The interval is that of the profile pseudo-likelihood. Neighbouring tokens are dependent, so
        twice the log-likelihood ratio is not chi-square distributed but must be divided by J / H:
        the variance of the score over what it would be for independent tokens (Godambe).
        """
        rates = self._first_rates()
        for _ in range(_ZOOMS):
            values = self._sums(rates)
            limit = self._limit(_maximum(rates, values))
            rates = _zoom(rates, values, limit)
        values = self._sums(rates)
        rate = _maximum(rates, values)
        return RateEstimate(rate, *_interval(rates, values, self._limit(rate), rate))

    def _first_rates(self) -> Float[Tensor, " G"]:
        ends = math.log10(_MIN_RATE), math.log10(_MAX_RATE / self.scale)
        rates = torch.logspace(*ends, _FIRST_RATES, dtype=self.found.dtype)
        return torch.cat([rates.new_zeros(1), rates])

    def _sums(self, rates: Float[Tensor, " G"]) -> Float[Tensor, " G"]:
        """Return the pseudo-log-likelihood at each rate."""
        rows = max(1, _ENTRIES_AT_ONCE // self.found.shape[1])
        return torch.cat([self(part).sum(-1) for part in rates.split(rows)])

    def _limit(self, rate: float) -> float:
        """Return by how much the log-likelihood may be below its maximum inside of the interval."""
        rate = max(rate, 1 / self.found.shape[1])  # below one wrong token there is no slope
        ends = self.found.new_tensor([rate * math.exp(-_STEP), rate * math.exp(_STEP)])
        before, after = self(ends)
        return _likelihood_drop((after - before) / (2 * _STEP))


def _maximum(rates: Tensor, curve: Tensor) -> float:
    """Return the rate of the largest value, by a parabola through its neighbours."""
    k = int(curve.argmax())
    if not 0 < k < len(rates) - 1:
        return float(rates[k])
    x, y = rates[k - 1 : k + 2] - rates[k], curve[k - 1 : k + 2] - curve[k]
    left, right = y[0] / x[0], y[2] / x[2]
    bend = (right - left) / (x[2] - x[0])
    top = (bend * x[0] - left) / (2 * bend) if bend < 0 else torch.zeros_like(bend)
    return float(rates[k] + top.clamp(x[0], x[2]))


def _likelihood_drop(score: Float[Tensor, " N"]) -> float:
    """Return half the 95% quantile of twice the log-likelihood ratio, from the tokens' scores.

    H, the sum of squares, is the information of independent tokens; J, from the sums of blocks of
    tokens, counts dependence between neighbours.
    """
    size = max(1, min(_BLOCK, len(score) // _MIN_BLOCKS))
    score = score - score.mean()
    squares = float(score.square().sum())
    blocks = torch.stack([part.sum() for part in score.split(size)])
    degrees = max(1, len(blocks) - 1)
    variance = float(blocks.square().sum()) * len(blocks) / degrees
    ratio = variance / squares if squares > 0 else 1.0
    return 0.5 * _t_quantile(degrees) ** 2 * max(ratio, 1.0)


def _t_quantile(degrees: int) -> float:
    """Return the two-sided 95% quantile of Student's t, by its expansion in 1 / degrees."""
    z = _NORMAL_QUANTILE
    first = (z**3 + z) / (4 * degrees)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
    return z + first + second


def _interval(rates: Tensor, curve: Tensor, limit: float, rate: float) -> tuple[float, float]:
    """Return where the curve falls `limit` below its maximum, on either side."""
    above = curve - curve.max() + limit
    first, last = _bracket(above)
    low = rates[0] if first < 0 else _crossing(rates, above, first)
    high = rates[-1] if last == len(rates) else _crossing(rates, above, last - 1)
    return min(float(low), rate), max(float(high), rate)


def _zoom(rates: Tensor, curve: Tensor, limit: float) -> Tensor:
    """Return more rates in the interval, denser towards 0."""
    first, last = _bracket(curve - curve.max() + limit)
    ends = rates[max(first, 0)].sqrt(), rates[min(last, len(rates) - 1)].sqrt()
    fraction = torch.linspace(0, 1, _RATES, dtype=rates.dtype)
    return torch.lerp(*ends, fraction).square()


def _bracket(above: Tensor) -> tuple[int, int]:
    """Return the nearest indices on either side of the maximum with negative values, or beyond."""
    k = int(above.argmax())
    below, beyond = (above[:k] < 0).nonzero(), (above[k:] < 0).nonzero()
    return (
        int(below[-1]) if len(below) else -1,
        k + int(beyond[0]) if len(beyond) else len(above),
    )


def _crossing(rates: Tensor, values: Tensor, k: int) -> Tensor:
    """Return where a line from point k to k + 1, of different signs, crosses 0."""
    step = values[k] / (values[k] - values[k + 1])
    return rates[k] + (rates[k + 1] - rates[k]) * step
