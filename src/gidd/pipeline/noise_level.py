"""The fraction of wrong tokens of a text: the noise level that makes the text most likely.

x_theta is the posterior of a token given all others, so the probability of the token found at
position i, given all others and a fraction r of wrong tokens, is

    (1 - rho) x_theta(z_i | Z, t) + rho b(z_i),    rho = r V / (V - 1)

at the time t at which the noise of the schedule is r, where rho is the fraction of redrawn tokens
and b the distribution of the noise. The sum of the logarithms over all positions, the
pseudo-log-likelihood, is maximised over r. Below the smallest time of a network only rho changes
with r, so that clean text is estimated as clean.

A network that predicts p(x_i | z) at a noise level of its own (`predicts_posterior`) has no such
curve: r is the mean of 1 - p(x_i = z_i | z), the expected fraction of wrong tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gidd.diffusion.error_rate import error_rate_at, time_at_error_rate, visible_noise
from gidd.diffusion.schedule import TINY
from gidd.errors import DataError
from gidd.pipeline.results import NoiseLevel
from gidd.sampling.windows import (
    PosteriorPass,
    TextWindows,
    WindowReader,
    WindowTokens,
    read_all_probabilities,
    read_own_probability,
)

if TYPE_CHECKING:
    from jaxtyping import Float, Int

MAX_WINDOWS = 64
"""Windows of a document that are read; of longer documents, this number spread evenly."""

_LOWEST_LEVEL, _HIGHEST_LEVEL = 1e-5, 0.8
_LOG_ODDS, _MAX_LEVELS, _FIRST_LEVELS = 0.9, 12, 3
"""Distance between noise levels, their largest number, and the number read at first."""

_MIN_RATE, _MAX_RATE, _NUM_RATES, _ZOOMS = 1e-5, 0.95, 64, 2
"""Range and number of the rates that are compared, first in all, then twice in the interval."""

_RATE_OF_POSTERIORS = 0.1
"""Any rate at whose time the network was trained: posteriors do not depend on it."""

_NOISY_TOKENS = 128
"""Tokens of noise that are read: [N, V] probabilities are held in memory."""

_STEP = 0.05  # of derivatives, in log(rate)
_RATES_AT_ONCE = 8
_BLOCK, _MIN_BLOCKS = 32, 8
"""Tokens of a block; the scores of different blocks are nearly independent."""

_NORMAL_QUANTILE = 1.959964  # of a two-sided interval of 95%

OnForwardPassesDone = Callable[[int, int], None]
"""Called with the number of forward passes done, and of all that may be needed."""


async def estimate_noise(
    reader: WindowReader,
    windows: Iterable[WindowTokens],
    *,
    max_windows: int = MAX_WINDOWS,
    wrong_tokens: Float[Tensor, " V"] | None = None,
    on_forward_passes: OnForwardPassesDone | None = None,
) -> NoiseLevel:
    """Estimate the fraction of wrong tokens among the editable tokens of a document.

    The network reads the windows at increasing noise levels, each about twice the level before,
    until two are above the estimate: 3 forward passes per window of clean text, 4 to 6 at an error
    rate of a few per cent. The processors of `reader` should keep every token possible. At most
    `max_windows` are read, spread evenly; `on_forward_passes` is called for each at each level.
    Wrong tokens are distributed as in `wrong_tokens`, by default as in the noise.
    """
    editable = [window for window in windows if any(window.editable)]
    if not editable:
        raise DataError("the noise level needs at least one token that is not protected, got none.")
    step = max(1.0, len(editable) / max_windows)
    read = [editable[int((k + 0.5) * step)] for k in range(min(len(editable), max_windows))]
    expected, forward_passes = expected_forward_passes(reader, len(read), max_windows), 0

    def count() -> None:
        nonlocal forward_passes
        forward_passes += 1
        if on_forward_passes is not None:
            on_forward_passes(forward_passes, max(forward_passes, expected))

    if reader.predicts_posterior:
        return await _expected_errors(reader, read, count)
    levels = noise_levels(reader)
    x_theta = await _read_levels(reader, read, levels[:_FIRST_LEVELS], count)
    curve = _NoiseCurve(reader, levels[:_FIRST_LEVELS], x_theta, read, wrong_tokens)
    for level in levels[_FIRST_LEVELS:]:
        if curve.best_rate() < curve.levels[-2]:
            break
        more = await _read_levels(reader, read, level[None], count)
        x_theta = torch.cat([x_theta, more])
        curve = _NoiseCurve(reader, levels[: len(x_theta)], x_theta, read, wrong_tokens)
    rate, low, high = curve.fit()
    if on_forward_passes is not None:
        on_forward_passes(forward_passes, forward_passes)
    time = time_at_error_rate(reader.session.schedule, rate, reader.min_time, reader.max_time)
    return NoiseLevel(rate, low, high, float(time), forward_passes)


async def read_frequencies(
    reader: WindowReader, length: int, never: frozenset[int]
) -> Float[Tensor, " V"]:
    """Return the mean prediction from noise alone, without the tokens `never`."""
    vocab, length = reader.session.schedule.vocab, min(length, _NOISY_TOKENS)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(vocab.num_data_tokens, (length,), generator=generator).tolist()
    tokens = drawn if vocab.mask_id is None else [vocab.mask_id] * length
    window = WindowTokens(tuple(tokens), (True,) * length)
    ((x_theta,),) = await reader.read([(window, reader.max_time)], read_all_probabilities)
    mean = x_theta.double().mean(0)
    mean[[*never]] = 0
    return mean / mean.sum()


def expected_forward_passes(
    reader: WindowReader, num_windows: int, max_windows: int = MAX_WINDOWS
) -> int:
    """Return the largest number of forward passes of an estimate."""
    passes_per_window = 1 if reader.predicts_posterior else len(noise_levels(reader))
    return min(num_windows, max_windows) * passes_per_window


def reading_cost(
    reader: WindowReader, windows: TextWindows, *, has_noise_level: bool = True
) -> int:
    """Return the largest cost of one forward pass over all windows and of their noise level."""
    passes = len(windows)
    if has_noise_level:
        passes += expected_forward_passes(reader, len(windows))
    return passes * reader.session.padded_length(windows.parts[0].stop, reader.batch_size)


async def _expected_errors(
    reader: WindowReader, windows: Sequence[WindowTokens], on_window: Callable[[], None]
) -> NoiseLevel:
    """Estimate the noise level from posteriors; the interval takes tokens as independent."""
    read = PosteriorPass(reader)
    posteriors = await read(windows, _RATE_OF_POSTERIORS, on_window)
    pairs = zip(posteriors, windows, strict=True)
    wrong = torch.cat(
        [1 - posterior.current[torch.tensor(w.editable)] for posterior, w in pairs]
    ).double()
    rate, error = float(wrong.mean()), float((wrong * (1 - wrong)).sum().sqrt()) / len(wrong)
    low, high = rate - _NORMAL_QUANTILE * error, rate + _NORMAL_QUANTILE * error
    return NoiseLevel(rate, max(0.0, low), min(1.0, high), read.time(rate), len(windows))


def noise_levels(reader: WindowReader) -> Float[Tensor, " T"]:
    """Return noise levels of the times of a network, evenly spaced in log-odds."""
    ends = torch.tensor([reader.min_time, reader.max_time], dtype=torch.float64)
    lowest, highest = error_rate_at(reader.session.schedule, ends).tolist()
    lowest = min(max(lowest, _LOWEST_LEVEL), _HIGHEST_LEVEL / 2)
    highest = max(min(highest, _HIGHEST_LEVEL), 2 * lowest)
    start, stop = torch.tensor([lowest, highest], dtype=torch.float64).logit().tolist()
    num_levels = min(max(3, math.ceil((stop - start) / _LOG_ODDS) + 1), _MAX_LEVELS)
    return torch.linspace(start, stop, num_levels, dtype=torch.float64).sigmoid()


async def _read_levels(
    reader: WindowReader,
    windows: Sequence[WindowTokens],
    levels: Float[Tensor, " T"],
    on_window: Callable[[], None],
) -> Float[Tensor, "T N"]:
    times = time_at_error_rate(reader.session.schedule, levels, reader.min_time, reader.max_time)
    # all levels of a window in a row: networks without a time need a single forward pass
    items = [(window, float(t)) for window in windows for t in times]
    values = await reader.read(items, read_own_probability, on_window)
    probabilities = [
        value[torch.tensor(window.editable)].double()
        for (value,), (window, _) in zip(values, items, strict=True)
    ]
    return torch.stack([torch.cat(probabilities[k :: len(times)]) for k in range(len(times))])


class _NoiseCurve:
    """The pseudo-log-likelihood of N tokens as a function of the fraction of wrong tokens."""

    def __init__(
        self,
        reader: WindowReader,
        levels: Float[Tensor, " T"],
        x_theta: Float[Tensor, "T N"],
        windows: Sequence[WindowTokens],
        wrong_tokens: Float[Tensor, " V"] | None = None,
    ) -> None:
        schedule = reader.session.schedule
        self.levels, self.x_theta = levels, x_theta
        self.scale = schedule.vocab.num_data_tokens / (schedule.vocab.num_data_tokens - 1)
        times = time_at_error_rate(schedule, levels, reader.min_time, reader.max_time)
        if wrong_tokens is None:
            keep, noise = visible_noise(schedule, times.to(reader.session.device, reader.dtype))
            noise = noise / (1 - keep)[:, None]
        else:
            noise = wrong_tokens.expand(len(times), -1)
        tokens = [z for w in windows for z, is_read in zip(*w, strict=True) if is_read]
        self.noise = noise.double().cpu()[:, tokens]
        """b of each token."""
        ends = math.log10(_MIN_RATE), math.log10(_MAX_RATE / self.scale)
        rates = torch.logspace(*ends, _NUM_RATES, dtype=torch.float64)
        self.rates = torch.cat([rates.new_zeros(1), rates])

    def __call__(self, rates: Float[Tensor, " G"]) -> Float[Tensor, "G N"]:
        """Return the log-probability of every token at each fraction of wrong tokens.

        Predictions are interpolated linearly in the log-odds of the level, constant beyond the
        first and last level.
        """
        odds = self.levels.logit()
        place = (rates.clamp(self.levels[0], self.levels[-1]).logit() - odds[0]) / odds.diff()[0]
        left = place.floor().clamp(0, len(odds) - 2)
        weight, left = (place - left)[:, None], left.long()
        x_theta, noise = (
            torch.lerp(values[left], values[left + 1], weight)
            for values in (self.x_theta, self.noise)
        )
        rho = (rates * self.scale).clamp_max(1)[:, None]
        return ((1 - rho) * x_theta + rho * noise).clamp_min(TINY).log()

    def sums(self, rates: Float[Tensor, " G"]) -> Float[Tensor, " G"]:
        """Return the pseudo-log-likelihood at each fraction of wrong tokens."""
        return torch.cat([self(part).sum(-1) for part in rates.split(_RATES_AT_ONCE)])

    def best_rate(self) -> float:
        """Return the most likely fraction of wrong tokens, within 10% or so."""
        return float(self.rates[self.sums(self.rates).argmax()])

    def fit(self) -> tuple[float, float, float]:
        """Return the most likely fraction of wrong tokens, and its 95% interval.

        The interval is where the likelihood ratio is below its quantile. Neighbouring tokens are
        dependent, so that the quantile is multiplied by the variance of the score over its variance
        for independent tokens (Godambe), from blocks of tokens.
        """
        rates, sums = self.rates, self.sums(self.rates)
        for _ in range(_ZOOMS):  # more rates in the interval, denser towards 0
            inside = self._inside(rates, sums)
            ends = rates[(inside[[0, -1]] + torch.tensor([-1, 1])).clamp(0, len(rates) - 1)].sqrt()
            fraction = torch.linspace(0, 1, _NUM_RATES, dtype=rates.dtype)
            rates = torch.lerp(ends[0], ends[1], fraction).square()
            sums = self.sums(rates)
        inside = self._inside(rates, sums)
        return float(rates[sums.argmax()]), float(rates[inside[0]]), float(rates[inside[-1]])

    def _inside(self, rates: Float[Tensor, " G"], sums: Float[Tensor, " G"]) -> Int[Tensor, " I"]:
        # below one wrong token there is no slope
        rate = max(float(rates[sums.argmax()]), 1 / self.x_theta.shape[1])
        before, after = self(rates.new_tensor([rate * math.exp(-_STEP), rate * math.exp(_STEP)]))
        drop = _largest_drop((after - before) / (2 * _STEP))
        return (sums >= sums.max() - drop).nonzero().squeeze(1)


def _largest_drop(score: Float[Tensor, " N"]) -> float:
    """Return how far the log-likelihood falls inside of the interval, given the tokens' scores."""
    score = score - score.mean()
    squares = float(score.square().sum())
    size = max(1, min(_BLOCK, len(score) // _MIN_BLOCKS))
    blocks = torch.stack([block.sum() for block in score.split(size)])
    degrees = max(1, len(blocks) - 1)
    variance = float(blocks.square().sum()) * len(blocks) / degrees
    z = _NORMAL_QUANTILE
    quantile = z + (z**3 + z) / (4 * degrees)  # of Student's t, to first order
    return 0.5 * quantile**2 * max(variance / squares if squares > 0 else 1.0, 1.0)
