"""Sampling steps of a preset, in each precision: a part of `gpu.py`.

The weights are random. How many positions an ancestral step reads depends on the noise, not on
them; a self-correction call reads all of them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
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

    def ancestral(self) -> Session:
        """Return a session with sequences to sample."""
        tokens = [blanks(self._settings.length)] * self._settings.rows
        return self._session(tokens, sampling_plan(even_times(self._settings.num_steps)))

    def correction(self) -> Session:
        """Return a session with sequences of random tokens to correct."""
        settings = self._settings
        shape = settings.rows, settings.length
        tokens = torch.randint(settings.vocab.size - 1, shape).tolist()
        plan = corrector_plan(SelfCorrectionStep(), settings.num_corrections)
        return self._session([tuple(row) for row in tokens], plan)

    def _session(self, tokens: Sequence[tuple[int | None, ...]], plan: Plan) -> Session:
        session = Session(
            self._network,
            self._schedule,
            batch_size=self._settings.rows,
            device=self._settings.device,
        )
        for index, row in enumerate(tokens):
            protected = (False,) * len(row)
            session.submit(Request(tokens=row, plan=plan, sample_index=index, protected=protected))
        return session


def step(session: Session) -> None:
    """Make one step of all sequences."""
    for event in session.step():
        if event.error is not None:
            raise event.error


def _seconds(session: Session) -> list[float]:
    """Return the seconds of each step, to the last; a step ends when the host has its tokens."""
    seconds: list[float] = []
    while session.pending:
        start = time.perf_counter()
        step(session)
        seconds.append(time.perf_counter() - start)
    return seconds


@torch.no_grad()
def sampling_times(settings: Settings, precision: Precision) -> SamplingTimes:
    """Sample and correct once, after warm-up steps."""
    sampler = Sampler(settings, precision)
    session = sampler.ancestral()
    for _ in range(_WARM_UP):
        step(session)
    steps, corrections = _seconds(sampler.ancestral()), _seconds(sampler.correction())
    return SamplingTimes(
        step=median(steps),
        samples_per_second=settings.rows / sum(steps),
        correction=median(corrections),
    )


@torch.no_grad()
def sampling_launches(settings: Settings) -> int | None:
    """Count the launches of an ancestral step, after two others."""
    session = Sampler(settings, "bf16").ancestral()
    for _ in range(2):
        step(session)
    return count_launches(lambda: step(session), settings.device)
