"""Sampling steps of a preset, in each precision: a part of `gpu.py`.

The weights are random. How many positions an ancestral step reads depends on the noise, not on
them; a self-correction call reads all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import torch
from gpu_measure import Settings, count_launches

from gidd.diffusion.schedules import HybridSchedule
from gidd.diffusion.times import even_times
from gidd.models import Denoiser
from gidd.pipeline.precision import Precision, in_precision
from gidd.sampling import (
    Plan,
    Request,
    SelfCorrectionStep,
    Session,
    blanks,
    corrector_plan,
    sampling_plan,
)

_WARM_UP = 3


class SamplingTimes(NamedTuple):
    """Seconds of one precision."""

    step: float
    """Median of the ancestral steps of a sample."""

    samples_per_second: float
    correction: float
    """Median of self-correction calls."""


class Sampler:
    """The denoiser of a preset in one precision, and requests that fill a forward pass."""

    def __init__(self, settings: Settings, precision: Precision) -> None:
        torch.manual_seed(0)
        self._settings, vocab = settings, settings.vocab
        denoiser = Denoiser(settings.run.network_config(vocab.size).build(), vocab).eval()
        for parameter in denoiser.requires_grad_(False).parameters():
            parameter.normal_(0, 0.02)
        self._network = in_precision(denoiser, precision, settings.device)
        self._schedule = HybridSchedule(vocab, 0.1)

    def ancestral(self) -> list[float]:
        """Return the seconds of each step of sampling."""
        tokens = [blanks(self._settings.length)] * self._settings.rows
        return self._seconds(tokens, sampling_plan(even_times(self._settings.num_steps)))

    def correction(self) -> list[float]:
        """Return the seconds of each step of correcting random tokens."""
        settings = self._settings
        shape = settings.rows, settings.length
        tokens = torch.randint(settings.vocab.size - 1, shape).tolist()
        plan = corrector_plan(SelfCorrectionStep(), settings.num_corrections)
        return self._seconds([tuple(row) for row in tokens], plan)

    def _seconds(self, tokens: Sequence[tuple[int | None, ...]], plan: Plan) -> list[float]:
        """Return the seconds of each step; a step ends when the host has its tokens."""
        ends: list[float] = []
        self.sample(tokens, plan, on_step=lambda _: ends.append(time.perf_counter()))
        return [end - start for start, end in pairwise(ends)]

    def sample(
        self,
        tokens: Sequence[tuple[int | None, ...]],
        plan: Plan,
        on_step: Callable[[object], None] | None = None,
    ) -> None:
        """Make all steps of a plan."""
        session = Session(
            self._network,
            self._schedule,
            batch_size=self._settings.rows,
            device=self._settings.device,
        )
        requests = [
            Request(tokens=row, plan=plan, sample_index=index, protected=(False,) * len(row))
            for index, row in enumerate(tokens)
        ]
        session.sample(requests, on_step=on_step)


@torch.no_grad()
def sampling_times(settings: Settings, precision: Precision) -> SamplingTimes:
    """Sample and correct once, after warm-up steps."""
    sampler = Sampler(settings, precision)
    tokens = [blanks(settings.length)] * settings.rows
    sampler.sample(tokens, sampling_plan(even_times(_WARM_UP)))
    steps, corrections = sampler.ancestral(), sampler.correction()
    return SamplingTimes(
        step=median(steps),
        samples_per_second=settings.rows / sum(steps),
        correction=median(corrections),
    )


@torch.no_grad()
def sampling_launches(settings: Settings) -> int | None:
    """Count the launches of an ancestral step: of three steps, less those of the first two."""
    sampler, times = Sampler(settings, "bf16"), even_times(settings.num_steps)
    tokens = [blanks(settings.length)] * settings.rows
    counts: list[int] = []
    for num_steps in (1, 2, 3):  # the first is the warm-up
        plan = sampling_plan(times[: num_steps + 1])
        launches = count_launches(partial(sampler.sample, tokens, plan), settings.device)
        if launches is None:
            return None
        counts.append(launches)
    return counts[2] - counts[1]
