"""Time, kernel launches and waits of work on a device: a part of `gpu.py`.

On a CPU only time is measured, so that the script can be tested without a GPU.
"""

from __future__ import annotations

import re
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from gidd.pipeline.precision import Precision
from gidd.training.config import RunConfig
from gidd.vocab import Vocab

Work = Callable[[], object]

_WARM_UP = 3
_WAIT = "called a synchronizing CUDA operation"
"""Message of torch's warnings and errors in the synchronisation debug modes."""

_LAUNCH = re.compile(r"(cuda|cu|hip)\w*(LaunchKernel|LaunchCooperativeKernel|GraphLaunch)")
_COPY = re.compile(r"(cuda|cu|hip)(Memcpy|Memset)\w*Async")
"""Calls of the CUDA and HIP runtimes that launch a kernel, or a copy without one."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to measure, and how large."""

    device: torch.device
    run: RunConfig
    """The preset, with one micro-batch a step."""

    vocab: Vocab
    rows: int
    """Sequences of a sampling step."""

    num_steps: int
    """Ancestral steps of a sample."""

    num_corrections: int
    rounds: int
    """Repeats of which the median is taken."""

    @property
    def samples(self) -> int:
        """Samples of a training step."""
        return self.run.train.global_batch

    @property
    def length(self) -> int:
        """Tokens of a sample."""
        return self.run.data.length

    @property
    def tokens(self) -> int:
        """Tokens of a training step."""
        return self.samples * self.length

    @property
    def width(self) -> int:
        """Hidden size."""
        return self.run.network_config(self.vocab.size).width

    @property
    def modes(self) -> dict[str, bool]:
        """Names of training steps, and whether they are compiled; a CPU compiles for minutes."""
        return {"eager": False} | ({"compiled": True} if self.device.type == "cuda" else {})

    @property
    def precisions(self) -> tuple[Precision, ...]:
        """Precisions to sample in."""
        return ("bf16", "tf32", "float32") if self.device.type == "cuda" else ("bf16", "float32")


def medians(works: Mapping[str, Work], settings: Settings) -> dict[str, float]:
    """Return the median seconds of each work; they alternate, after warm-up calls of each.

    On CUDA the host does not wait between repeats: as in training, it prepares the next one while
    the device computes, and the time is the longer of both.
    """
    for work in works.values():
        for _ in range(_WARM_UP):
            work()
    if settings.device.type == "cuda":
        return _medians_of_events(works, settings.rounds)
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(settings.rounds):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - start)
    return {name: median(values) for name, values in seconds.items()}


def _medians_of_events(works: Mapping[str, Work], rounds: int) -> dict[str, float]:
    events: dict[str, list[tuple[Any, Any]]] = {name: [] for name in works}
    torch.cuda.synchronize()
    for _ in range(rounds):
        for name, work in works.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            work()
            end.record()
            events[name].append((start, end))
    torch.cuda.synchronize()
    return {
        name: median(start.elapsed_time(end) for start, end in pairs) / 1000
        for name, pairs in events.items()
    }


def count_launches(work: Work, device: torch.device) -> int | None:
    """Count the kernels and copies of one call by torch's profiler; None on a CPU."""
    if device.type != "cuda":
        work()
        return None
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as record:
        work()
        torch.cuda.synchronize()
    return launches_of({event.key: event.count for event in record.key_averages()})


def launches_of(calls: Mapping[str, int]) -> int:
    """Add up the calls of a profile that launch something."""
    return sum(n for name, n in calls.items() if _LAUNCH.match(name) or _COPY.match(name))


class Waits(NamedTuple):
    """Times that the host waited for the device, by line."""

    allowed: int
    lines: dict[str, int] | None
    """None if they were not counted."""

    raised_at: str | None = None
    """Line at which the mode "error" stopped, if it was tried."""

    @property
    def passed(self) -> bool:
        """Whether there were no more waits than allowed."""
        return self.raised_at is None and sum((self.lines or {}).values()) <= self.allowed


def find_waits(work: Work, device: torch.device, allowed: int) -> Waits:
    """Run work in torch's synchronisation debug modes.

    If no wait is allowed the mode is "error" at first; the mode "warn" then finds the other lines.
    Torch does not see all waits: neither copies of pageable memory nor `torch.cuda.synchronize`.
    """
    if device.type != "cuda":
        work()
        return Waits(allowed, None)
    if allowed == 0:
        raised_at = _first_wait(work)
        if raised_at is None:
            return Waits(0, {})
        return Waits(0, _all_waits(work), raised_at)
    return Waits(allowed, _all_waits(work))


def _first_wait(work: Work) -> str | None:
    with _debug_mode("error"):
        try:
            work()
        except RuntimeError as error:
            if _WAIT not in str(error):
                raise
            frames = traceback.extract_tb(error.__traceback__)
            frames_of_gidd = [frame for frame in frames if "gidd" in Path(frame.filename).parts]
            last = (frames_of_gidd or frames)[-1]
            return _place(last.filename, last.lineno)
    return None


def _all_waits(work: Work) -> dict[str, int]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with _debug_mode("warn"):
            work()
    waits = [warning for warning in caught if _WAIT in str(warning.message)]
    return dict(Counter(_place(warning.filename, warning.lineno) for warning in waits))


@contextmanager
def _debug_mode(mode: str) -> Generator[None]:
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the mode does not see all waits
        torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def _place(filename: str, line: int | None) -> str:
    return f"{'/'.join(Path(filename).parts[-2:])}:{line}"
