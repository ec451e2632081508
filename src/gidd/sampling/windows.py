"""Overlapping windows over long texts, and predictions and posteriors of the tokens in them.

    cut = TextWindows(tokens, fixed, context)
    posteriors = await PosteriorPass(reader)(cut, error_rate=0.05)

Each window is a request of one step, so windows of different texts share forward passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Final, NamedTuple

import torch
from torch import Tensor

from gidd.diffusion.constants import TRAINING_EPS
from gidd.diffusion.error_rate import time_at_error_rate
from gidd.diffusion.schedule import MixingSchedule, Times
from gidd.sampling.correctors.posterior import is_replaced, likelihood_of, read_posterior
from gidd.sampling.plan import Plan, corrector_plan
from gidd.sampling.predict import Predict, Rows
from gidd.sampling.processors import Processor
from gidd.sampling.request import Request
from gidd.sampling.session import Session
from gidd.sampling.state import State, time_dtype

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


class Window(NamedTuple):
    """A window of a text, and the range of tokens that it owns."""

    start: int
    stop: int
    own_start: int
    own_stop: int
    """Every token of the text is owned by exactly one window."""

    @property
    def own_slice(self) -> slice:
        """The window's own tokens, relative to its start."""
        return slice(self.own_start - self.start, self.own_stop - self.start)


def windows(num_tokens: int, context: int) -> list[Window]:
    """Return overlapping windows over a text: one if it fits, else several of `context` tokens.

    A window's own tokens have at least a quarter of the context on either side, except at the
    beginning and the end of the text.
    """
    if num_tokens <= context:
        return [Window(0, num_tokens, 0, num_tokens)]
    margin = context // 4
    stride = context - 2 * margin
    result: list[Window] = []
    own_start = 0
    while own_start < num_tokens:
        start = min(max(own_start - margin, 0), num_tokens - context)
        own_stop = own_start + stride if own_start else context - margin
        if start + context >= num_tokens:
            own_stop = num_tokens
        result.append(Window(start, start + context, own_start, own_stop))
        own_start = own_stop
    return result


PASSES_AT_ONCE: Final = 4
"""Forward passes whose windows are submitted together: memory is bounded, and rows are full."""


class WindowTokens(NamedTuple):
    """A section of a text that fits into the context, and the positions in it to read."""

    tokens: tuple[int, ...]
    editable: tuple[bool, ...]
    """Positions to read. The other tokens are context, and their values are 0."""


class TextWindows:
    """Overlapping windows over a text of any length, made when they are read.

    Each token that is not fixed is editable in exactly one window.
    """

    def __init__(self, tokens: Sequence[int], fixed: Sequence[bool], context: int) -> None:
        self.tokens, self.fixed = tokens, fixed
        self.parts = windows(len(tokens), context)

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self) -> Iterator[WindowTokens]:
        for start, stop, own_start, own_stop in self.parts:
            is_own = (own_start <= i < own_stop for i in range(start, stop))
            fixed = self.fixed[start:stop]
            editable = (
                is_inside and not kept for is_inside, kept in zip(is_own, fixed, strict=True)
            )
            yield WindowTokens(tuple(self.tokens[start:stop]), tuple(editable))


ReadFunction = Callable[[Rows, Times], tuple[Tensor, ...]]
"""(x_theta at the editable positions of a batch, its times [B]) -> values, each [B, L, ...].

Windows with equal functions (==) are read together; a function with options is a frozen dataclass.
"""


@dataclass(frozen=True)
class ReadValues:
    """A step that changes nothing and records a function of x_theta in `Sample.values`."""

    function: ReadFunction

    def __call__(
        self, schedule: MixingSchedule, s: Times, t: Times, state: State, predict: Predict
    ) -> State:
        """Compute the values."""
        return state._replace(values=self.function(predict(state, t, state.free), t))


@dataclass(frozen=True)
class WindowReader:
    """Reads functions of x_theta for windows of texts, through a session.

    The values of a window are bit-identical regardless of which windows share its forward pass.
    """

    session: Session
    min_time: float = TRAINING_EPS
    max_time: float = 1 - TRAINING_EPS
    """`min_time` and `max_time` are the ends of the times that the network was trained with."""
    processors: tuple[Processor, ...] = ()
    """Processors of x_theta, e.g. a ban on tokens that are never written."""
    predicts_posterior: bool = False
    """Whether x_theta is converted from p(x_i | z), see `gidd.models.denoiser.Backbone`."""
    batch_size: int | None = None
    """Windows in a forward pass, in place of the session's batch size, without padding."""

    @property
    def dtype(self) -> torch.dtype:
        """Type of times and posteriors: float64 where the device has it."""
        return time_dtype(self.session.device)

    async def read(
        self,
        windows: Iterable[tuple[WindowTokens, float]],
        function: ReadFunction,
        on_window: Callable[[], None] | None = None,
    ) -> list[tuple[Tensor, ...]]:
        """Return the values of `function` for each window and time, each [L, ...], on the CPU.

        Windows are taken from the iterable as they are submitted, a few forward passes of them at a
        time. `on_window` is called after each window.
        """
        step = ReadValues(function)
        plans: dict[float, Plan] = {}
        results: list[tuple[Tensor, ...]] = []
        for chunk in self._chunks(windows):
            plans |= {t: corrector_plan(step, 1, t) for _, t in chunk if t not in plans}
            requests = [
                Request(
                    tokens=window.tokens,
                    plan=plans[t],
                    protected=tuple(not is_read for is_read in window.editable),
                    processors=self.processors,
                )
                for window, t in chunk
                if any(window.editable)
            ]
            samples = iter(await self.session.run_all(requests, batch_size=self.batch_size))
            for window, t in chunk:
                is_read = any(window.editable)
                results.append(
                    next(samples).values if is_read else self._empty(window, t, function)
                )
                if on_window is not None:
                    on_window()
        return results

    def _chunks(
        self, windows: Iterable[tuple[WindowTokens, float]]
    ) -> Iterator[list[tuple[WindowTokens, float]]]:
        """Yield windows to submit together; windows of the last length fill complete passes."""
        rows = self.batch_size or self.session.batch_size
        chunk = list[tuple[WindowTokens, float]]()
        for item in windows:
            chunk.append(item)
            if len(chunk) >= PASSES_AT_ONCE * rows:
                lengths = [len(window.tokens) for window, _ in reversed(chunk)]
                num_last = len(list(takewhile(lengths[0].__eq__, lengths)))
                ready = len(chunk) - num_last % rows
                yield chunk[:ready]
                chunk = chunk[ready:]
        if chunk:
            yield chunk

    @torch.no_grad()
    def _empty(self, window: WindowTokens, t: float, function: ReadFunction) -> tuple[Tensor, ...]:
        """Return the values of a window without editable positions; no forward pass is needed."""
        z = torch.tensor([window.tokens], dtype=torch.int64, device=self.session.device)
        times = torch.tensor([t], dtype=self.dtype, device=self.session.device)
        empty = torch.empty(0, dtype=torch.int64, device=z.device)
        rows = Rows(z, empty, self.session.schedule.vocab.size, 1, lambda index: index)
        values = function(rows, times)
        return tuple(value[0].cpu() for value in values)


class WindowPosterior(NamedTuple):
    """The posterior of the tokens of one window; 0 at positions that are not editable."""

    current: Float[Tensor, " L"]
    """Probability that the token of the text is right."""
    x_theta: Float[Tensor, " L"]
    """Probability of the token given all other tokens of the window."""
    tokens: Int[Tensor, "L A"]
    """The A most likely other tokens, the best one first."""
    probabilities: Float[Tensor, "L A"]
    """Their posterior probabilities."""

    def replaced(self, min_confidence: float | None = None) -> Bool[Tensor, " L"]:
        """Return the positions where the best other token replaces the token (`is_replaced`)."""
        return is_replaced(self.current, self.probabilities[:, 0], min_confidence)


@dataclass(frozen=True, eq=False)
class PosteriorPass:
    """Computes p(x_i | Z) for the tokens of windows, given the fraction of wrong tokens.

    The network is conditioned on the time at which its noise has that fraction of wrong tokens, or
    on the nearest time it was trained with.
    """

    reader: WindowReader
    channel: Float[Tensor, "V V"] | Float[Tensor, " V"] | None = None
    """Row v, column z: probability that z is written, given that the right token v was replaced;
    or the same for all v. By default, wrong tokens are distributed like the schedule's noise."""
    num_alternatives: int = 1
    """Number of other tokens per position."""

    def time(self, error_rate: float) -> float:
        """Return the time of the network for this fraction of wrong tokens."""
        ends = self.reader.min_time, self.reader.max_time
        return float(time_at_error_rate(self.reader.session.schedule, error_rate, *ends))

    async def __call__(
        self,
        windows: Iterable[WindowTokens],
        error_rate: float,
        on_window: Callable[[], None] | None = None,
    ) -> list[WindowPosterior]:
        """Return the posterior of each window, in order."""
        time = self.time(error_rate)
        items = ((window, time) for window in windows)
        values = await self.reader.read(items, _ReadPosteriors(self, error_rate), on_window)
        return [WindowPosterior(*fields) for fields in values]


@dataclass(frozen=True)
class _ReadPosteriors:
    """Reads the fields of `WindowPosterior` of a batch of windows."""

    settings: PosteriorPass
    error_rate: float

    def __call__(self, rows: Rows, t: Times) -> tuple[Tensor, ...]:
        settings, schedule = self.settings, self.settings.reader.session.schedule
        likelihood = likelihood_of(schedule, t, rows.tokens, self.error_rate, settings.channel)
        return read_posterior(rows, likelihood, settings.num_alternatives)


def read_own_probability(rows: Rows, _: Times) -> tuple[Tensor, ...]:
    """Read x_theta of the tokens of the text: a function for `WindowReader.read`."""
    return (rows.current,)


def read_all_probabilities(rows: Rows, _: Times) -> tuple[Tensor, ...]:
    """Read x_theta of all tokens: a function for `WindowReader.read`."""
    return rows.read(lambda x_theta, _: (x_theta,))
