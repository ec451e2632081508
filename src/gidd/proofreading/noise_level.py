"""How much of a text is wrong: the noise level that makes it most likely under a model.

A network that was trained with uniform noise is told how noisy its input is. A text is most likely
under the noise level that it has, so the level can be read off a text that nobody has labelled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, final

import torch
from torch import Tensor

from gidd.diffusion.error_rate import error_rate_at, time_at_error_rate, visible_noise
from gidd.errors import DataError
from gidd.proofreading.noise_curve import NoiseCurve
from gidd.proofreading.window_reader import WindowReader, WindowTokens
from gidd.sampling.engine import Engine
from gidd.sampling.jobs import Jobs
from gidd.sampling.prediction import Prediction

if TYPE_CHECKING:
    from jaxtyping import Float

MAX_WINDOWS = 64
"""Windows of a document that are read; of longer ones, this number spread evenly."""

_LOWEST_SHARE = 1e-5
_HIGHEST_SHARE = 0.8
"""Texts with more wrong tokens than that are not texts."""

_LOG_ODDS, _MAX_LEVELS = 0.9, 12
"""Distance between levels, and their largest number."""

_FIRST_LEVELS = 3

OnCallsDone = Callable[[int, int], None]
"""Called with the number of forward passes done, and of all that may be needed."""


class WindowNoise(NamedTuple):
    """The estimate for one window of a text."""

    window: int
    """Index of the window."""

    error_rate: float
    low: float
    high: float


class NoiseLevel(NamedTuple):
    """Estimated fraction of wrong tokens, with a 95% interval."""

    error_rate: float
    low: float
    high: float

    time: float
    """Time of the network at which its noise is nearest to that."""

    windows: tuple[WindowNoise, ...] = ()
    """The estimates for the windows that were read; few tokens give wide intervals."""

    calls: int = 0
    """Forward passes."""

    def __str__(self) -> str:
        return f"{self.error_rate:.1%} ({100 * self.low:.1f}-{self.high:.1%})"


async def estimate_noise(
    jobs: Jobs,
    reader: WindowReader,
    windows: Sequence[WindowTokens],
    *,
    channel: Float[Tensor, "V V"] | None = None,
    max_windows: int = MAX_WINDOWS,
    on_calls: OnCallsDone | None = None,
) -> NoiseLevel:
    """Estimate the fraction of wrong tokens among the judged ones of a document.

    The network is told increasing noise levels, each twice the last or so, until two are above the
    estimate: 3 forward passes per window of clean text, 4 to 6 at a few per cent. Between levels,
    predictions are interpolated. Below the smallest time of the network the fraction is fitted with
    the network at that time, so that clean text is estimated as clean.

    Args:
        jobs: Jobs in progress, which share forward passes.
        reader: The network; its processors should keep every token possible.
        windows: The document; every token is judged in one window.
        channel: Row v, column z: probability that z is written, given that v was replaced. By
            default, wrong tokens are distributed like the noise of the schedule.
        max_windows: Windows to read, spread evenly over the document.
        on_calls: Called for each window that was read at a level.
    """
    chosen = _spread([k for k, window in enumerate(windows) if any(window.judged)], max_windows)
    if not chosen:
        raise DataError("the noise level needs at least one token to judge, got none.")
    read = [windows[k] for k in chosen]
    levels = noise_levels(reader)
    expected = expected_calls(reader, len(read), max_windows)
    meter = _Meter(jobs, reader, read, channel, expected, on_calls)
    num_tokens = reader.engine.schedule.vocab.num_data_tokens
    scale = 1.0 if channel is not None else num_tokens / (num_tokens - 1)
    first = levels[:_FIRST_LEVELS]
    curve = NoiseCurve(first, *await meter.measure(first), scale)
    for level in levels[_FIRST_LEVELS:].split(1):
        if curve.rough_rate() < curve.shares[-2]:
            break
        curve = curve.with_level(level, *await meter.measure(level))
    estimate = curve.fit()
    if on_calls is not None:
        on_calls(meter.calls, meter.calls)
    time = time_at_error_rate(
        reader.engine.schedule, estimate.error_rate, reader.min_time, reader.max_time
    )
    parts = curve.split([sum(window.judged) for window in read])
    by_window = [estimate] if len(parts) == 1 else [part.fit() for part in parts]
    windows_noise = [WindowNoise(k, *found) for k, found in zip(chosen, by_window, strict=True)]
    return NoiseLevel(*estimate, float(time), tuple(windows_noise), meter.calls)


def expected_calls(reader: WindowReader, num_windows: int, max_windows: int = MAX_WINDOWS) -> int:
    """Return the largest number of forward passes of an estimate."""
    return min(num_windows, max_windows) * len(noise_levels(reader))


def noise_levels(reader: WindowReader) -> Float[Tensor, " T"]:
    """Return noise levels from that of the network's smallest time, evenly spaced in log-odds."""
    ends = torch.tensor([reader.min_time, reader.max_time], dtype=torch.float64)
    lowest, highest = error_rate_at(reader.engine.schedule, ends).tolist()
    lowest = min(max(lowest, _LOWEST_SHARE), _HIGHEST_SHARE / 2)
    highest = max(min(highest, _HIGHEST_SHARE), 2 * lowest)
    start, stop = torch.tensor([lowest, highest], dtype=torch.float64).logit().tolist()
    number = min(max(3, math.ceil((stop - start) / _LOG_ODDS) + 1), _MAX_LEVELS)
    return torch.linspace(start, stop, number, dtype=torch.float64).sigmoid()


class _Meter:
    """Predictions of a network on the tokens of some windows, counted."""

    def __init__(
        self,
        jobs: Jobs,
        reader: WindowReader,
        windows: Sequence[WindowTokens],
        channel: Tensor | None,
        expected: int,
        on_calls: OnCallsDone | None,
    ) -> None:
        self.jobs, self.reader, self.windows, self.channel = jobs, reader, windows, channel
        self.expected, self.on_calls = expected, on_calls
        self.calls = 0

    async def measure(self, shares: Float[Tensor, " S"]) -> tuple[Tensor, Tensor]:
        """Return x_theta and the noise at each judged token [S, N], for each noise level."""
        reader = self.reader
        times = time_at_error_rate(reader.engine.schedule, shares, reader.min_time, reader.max_time)
        # all levels of a window in a row: networks without a time need a single forward pass
        items = [(window, float(t)) for window in self.windows for t in times]
        function = _ReadNoise(reader.engine, self.channel)
        values = await reader.read(self.jobs, items, function, self._count)
        judged = [torch.tensor(window.judged) for window, _ in items]
        found, noise = (
            [read[k][where].double() for read, where in zip(values, judged, strict=True)]
            for k in range(2)
        )
        return self._by_level(found, len(times)), self._by_level(noise, len(times))

    def _count(self) -> None:
        self.calls += 1
        if self.on_calls is not None:
            self.on_calls(self.calls, max(self.calls, self.expected))

    def _by_level(self, parts: list[Tensor], num_levels: int) -> Tensor:
        return torch.stack([torch.cat(parts[k::num_levels]) for k in range(num_levels)])


@final
@dataclass(frozen=True)
class _ReadNoise:
    """Reads x_theta of each token, and its probability if it was redrawn or replaced."""

    engine: Engine
    channel: Tensor | None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _ReadNoise):
            return NotImplemented
        # == would compare tensors element by element
        return self.engine is other.engine and self.channel is other.channel

    def __call__(self, prediction: Prediction, judged: Tensor) -> tuple[Tensor, ...]:
        z, table = prediction.z.flatten(), self.channel

        def own(rows: Tensor, i: Tensor) -> tuple[Tensor, ...]:
            return (rows.gather(-1, z[i, None]).squeeze(-1),)

        def own_and_replaced(rows: Tensor, i: Tensor) -> tuple[Tensor, ...]:
            columns = columns_of_z[z[i]]
            return *own(rows, i), (rows.to(columns) * columns).sum(-1)

        if table is not None:
            columns_of_z = table.T.to(prediction.t)
            return prediction.read(judged, own_and_replaced)
        keep, noise = visible_noise(self.engine.schedule, prediction.t)
        redrawn = noise / (1 - keep)[:, None]
        return *prediction.read(judged, own), redrawn.gather(-1, prediction.z)


def _spread(indices: Sequence[int], number: int) -> list[int]:
    """Return at most `number` of the indices, spread evenly."""
    if len(indices) <= number:
        return list(indices)
    return [indices[(2 * k + 1) * len(indices) // (2 * number)] for k in range(number)]
