"""Forward passes over the windows of texts, by a session that other jobs may share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, final, overload

import torch
from torch import Tensor

from gidd.diffusion.constants import TRAINING_EPS
from gidd.diffusion.schedule import MixingSchedule
from gidd.sampling.canvas import Canvas, StepOutput, Times, time_dtype
from gidd.sampling.engine import Engine
from gidd.sampling.forward_pass import ForwardPass
from gidd.sampling.jobs import Jobs
from gidd.sampling.plan import Plan, corrector_plan
from gidd.sampling.prediction import Prediction
from gidd.sampling.processors import Processor
from gidd.sampling.request import Request
from gidd.sampling.windows import windows

PASSES_AT_ONCE: Final = 4
"""Forward passes whose windows are submitted together: memory is bounded, and rows are full."""


class WindowTokens(NamedTuple):
    """A part of a text that fits into the context, and the positions in it to judge."""

    tokens: tuple[int, ...]

    judged: tuple[bool, ...]
    """Of positions that are not judged, the tokens are context only and all results are 0."""


@final
class TextWindows(Sequence[WindowTokens]):
    """Overlapping windows over a text of any length, made when they are read.

    Each token is judged in one window, unless it is fixed.
    """

    def __init__(self, tokens: Sequence[int], fixed: Sequence[bool], context: int) -> None:
        self.tokens, self.fixed = tokens, fixed
        self.parts = windows(len(tokens), context)

    def __len__(self) -> int:
        return len(self.parts)

    @overload
    def __getitem__(self, index: int) -> WindowTokens: ...

    @overload
    def __getitem__(self, index: slice) -> list[WindowTokens]: ...

    def __getitem__(self, index: int | slice) -> WindowTokens | list[WindowTokens]:
        if isinstance(index, slice):
            return [self[k] for k in range(*index.indices(len(self)))]
        start, stop, own_start, own_stop = self.parts[index]
        is_own = (own_start <= i < own_stop for i in range(start, stop))
        fixed = self.fixed[start:stop]
        judged = (own and not kept for own, kept in zip(is_own, fixed, strict=True))
        return WindowTokens(tuple(self.tokens[start:stop]), tuple(judged))


ReadFunction = Callable[[Prediction, Tensor], tuple[Tensor, ...]]
"""(prediction of a batch, judged positions [B, L]) -> values, each [B, L, ...].

Windows with equal functions (==) are read together. One with options is a frozen dataclass.
"""


@final
@dataclass(frozen=True)
class ReadValues:
    """A step that changes nothing: `Sample.values` are those of a function at free positions."""

    function: ReadFunction

    def __call__(
        self, schedule: MixingSchedule, s: Times, t: Times, canvas: Canvas, prediction: Prediction
    ) -> StepOutput:
        """Compute the values."""
        return StepOutput(canvas.tokens, values=self.function(prediction, canvas.free))


@final
@dataclass(frozen=True)
class WindowReader:
    """A network, and the times that it was trained with.

    Each window is a request of one step, so its result is bit-identical in any company, and windows
    of different jobs share forward passes.
    """

    engine: Engine

    min_time: float = TRAINING_EPS
    """The smallest time the network was trained with."""

    max_time: float = 1 - TRAINING_EPS
    """The largest time the network was trained with."""

    processors: tuple[Processor, ...] = ()
    """Processors of x_theta, e.g. a ban on tokens that are never written."""

    @property
    def dtype(self) -> torch.dtype:
        """Type of times and posteriors: float64 where the device has it."""
        return time_dtype(self.engine.device)

    async def read(
        self,
        jobs: Jobs,
        windows: Iterable[tuple[WindowTokens, float]],
        function: ReadFunction,
        on_window: Callable[[], None] | None = None,
    ) -> list[tuple[Tensor, ...]]:
        """Return the values of `function` for each window and time, each [L, ...], on the CPU.

        Windows are taken from the iterable as they are submitted, a few forward passes of them at a
        time. `on_window` is called for each one that has been read.
        """
        step = ReadValues(function)
        plans: dict[float, Plan] = {}
        found: list[tuple[Tensor, ...]] = []
        for chunk in self._chunks(windows):
            plans |= {t: corrector_plan(step, 1, t) for _, t in chunk if t not in plans}
            requests = [
                Request(
                    tokens=window.tokens,
                    plan=plans[t],
                    protected=tuple(not is_judged for is_judged in window.judged),
                    processors=self.processors,
                )
                for window, t in chunk
                if any(window.judged)
            ]
            samples = iter(await jobs.sample(self.engine, requests))
            for window, t in chunk:
                is_read = any(window.judged)
                found.append(next(samples).values if is_read else self._empty(window, t, function))
                if on_window is not None:
                    on_window()
        return found

    def _chunks(
        self, windows: Iterable[tuple[WindowTokens, float]]
    ) -> Iterator[list[tuple[WindowTokens, float]]]:
        """Yield windows to submit together; those of the last length fill complete passes."""
        rows, chunk = self.engine.rows_per_call, list[tuple[WindowTokens, float]]()
        for item in windows:
            chunk.append(item)
            if len(chunk) >= PASSES_AT_ONCE * rows:
                ready = len(chunk) - _num_last_length(chunk) % rows
                yield chunk[:ready]
                chunk = chunk[ready:]
        if chunk:
            yield chunk

    @torch.no_grad()
    def _empty(self, window: WindowTokens, t: float, function: ReadFunction) -> tuple[Tensor, ...]:
        """Return the values of a window without judged positions, without a forward pass."""
        z = torch.tensor([window.tokens], dtype=torch.int64, device=self.engine.device)
        times = torch.tensor([t], dtype=self.dtype, device=self.engine.device)
        forward = ForwardPass(self.engine.network, z, times)
        prediction = Prediction(forward, self.engine.schedule.vocab.size)
        values = function(prediction, torch.zeros_like(z, dtype=torch.bool))
        return tuple(value[0].cpu() for value in values)


def _num_last_length(chunk: Sequence[tuple[WindowTokens, float]]) -> int:
    """Return the number of windows at the end that are as long as the last one."""
    length = len(chunk[-1][0].tokens)
    others = (len(window.tokens) != length for window, _ in reversed(chunk))
    return next((number for number, is_other in enumerate(others) if is_other), len(chunk))
