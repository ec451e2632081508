"""Forward passes over the windows of texts, in batches, with results that do not depend on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final, overload

import torch
from torch import Tensor

from gidd.diffusion.constants import TRAINING_EPS
from gidd.sampling.engine import Engine
from gidd.sampling.network import require_finite_predictions
from gidd.sampling.prediction import Prediction
from gidd.sampling.processors import Processor
from gidd.sampling.windows import windows


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
"""(prediction of a batch, judged positions [B, L]) -> values, each [B, L]."""


@final
@dataclass(frozen=True)
class WindowReader:
    """A network, and the times that it was trained with.

    Every forward pass has exactly `engine.rows_per_call` windows of one length, so the result of a
    window is bit-identical in any company. Windows are read as they come and results are yielded
    as soon as they are known: memory does not depend on the number of windows.
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
        return torch.float32 if self.engine.device.type == "mps" else torch.float64

    def read(
        self, windows: Iterable[tuple[WindowTokens, float]], function: ReadFunction
    ) -> Iterator[tuple[Tensor, ...]]:
        """Yield the values of `function` for each window and time, each [L], on the CPU."""
        batch: list[tuple[WindowTokens, float]] = []
        for item in windows:
            is_longer = batch and len(batch[0][0].tokens) != len(item[0].tokens)
            if is_longer or len(batch) == self.engine.rows_per_call:
                yield from self._read_batch(batch, function)
                batch = []
            batch.append(item)
        if batch:
            yield from self._read_batch(batch, function)

    @torch.no_grad()
    def _read_batch(
        self, batch: list[tuple[WindowTokens, float]], function: ReadFunction
    ) -> list[tuple[Tensor, ...]]:
        device = self.engine.device
        padding = [batch[0]] * (self.engine.rows_per_call - len(batch))
        rows = [*batch, *padding]
        z = torch.tensor([window.tokens for window, _ in rows], device=device)
        judged = torch.tensor([window.judged for window, _ in rows], device=device)
        judged[len(batch) :] = False
        t = torch.tensor([time for _, time in rows], dtype=self.dtype, device=device)
        size = self.engine.schedule.vocab.size
        prediction = Prediction(self.engine.network, t, z, size, self.processors)
        values = [value.cpu() for value in function(prediction, judged)]
        require_finite_predictions(bool(prediction.is_finite))
        return [tuple(value[k] for value in values) for k in range(len(batch))]
