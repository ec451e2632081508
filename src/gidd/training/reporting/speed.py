"""How fast a run is, and what share of the machine's arithmetic it uses."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from statistics import median
from typing import final

import torch

from gidd.models import DiTConfig


def training_flops_per_token(model: DiTConfig, length: int, *, timed: bool = True) -> float:
    """Arithmetic of one token's forward and backward pass: 2 and 4 operations per weight it meets.

    Beside the weights of blocks and head there is attention: every token meets `length` others
    twice, once for the scores and once for the mixing, in every layer. Recomputed activations are
    not counted, as usual for a model's use of the machine (MFU).

    Args:
        model: The sizes.
        length: Tokens of a sample.
        timed: Whether the model is told the time, as a DiT is: what the time modulates is computed
            once for all tokens of a sample. The autoregressive baseline is not.
    """
    met = model.num_block_parameters + model.width * model.vocab_size
    if timed:
        one = model.width * (model.time_width + 1)  # a shift, a scale or a gate
        blocks, last = 6 * model.num_layers * one, 2 * one
        met += (blocks + last) / length - blocks
    return 6 * met + 12 * model.num_layers * model.width * length


def matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Operations per second of a square matrix product here: what "all of the machine" means.

    The data sheet's figure would be higher, and is not known for most machines.
    """
    size = 1024 if device.type == "cpu" else 8192  # a GPU must outlast the launch
    a, b = (torch.ones(size, size, device=device, dtype=dtype) for _ in range(2))
    seconds: list[float] = []
    for _ in range(5):
        _wait(device)
        began = time.perf_counter()
        torch.matmul(a, b)
        _wait(device)
        seconds.append(time.perf_counter() - began)
    return 2 * size**3 / median(seconds)


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


@final
class Speed:
    """Time since the last report, without evaluations and checkpoints that were waited for."""

    def __init__(self, *, tokens_per_step: int, flops_per_token: float, peak: float) -> None:
        """`peak`: operations per second of all ranks together."""
        self._tokens_per_step = tokens_per_step
        self._steps_at_peak = peak / (flops_per_token * tokens_per_step)
        self._start = self._since = time.perf_counter()
        self._paused = 0.0
        self._steps = self._steps_ever = 0

    def step(self) -> None:
        """One more step is done."""
        self._steps += 1
        self._steps_ever += 1

    @contextmanager
    def paused(self) -> Generator[None]:
        """Time in here does not count as training."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._paused += time.perf_counter() - began

    def wall(self, steps_left: int) -> dict[str, float]:
        """Figures by the clock since the last call; the time left is from the whole run's mean."""
        now = time.perf_counter()
        busy = max(now - self._since - self._paused, 1e-9)
        rate = self._steps / busy
        whole = max(now - self._start, 1e-9)  # evaluations and checkpoints will come again
        self._since, self._paused, self._steps = now, 0.0, 0
        return {
            "seconds": now - self._start,
            "tokens_per_second": rate * self._tokens_per_step,
            "mfu": rate / self._steps_at_peak,
            "seconds_left": steps_left * whole / max(self._steps_ever, 1),
        }
