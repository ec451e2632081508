"""The likelihood of texts, the confidence in their tokens, and their noise level."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypedDict

import torch

from gidd.common.allowed import SEED, integer, number, optional, require_arguments
from gidd.diffusion.constants import TRAINING_EPS
from gidd.diffusion.likelihood import NUM_NODES, NUM_REPEATS, ScoredText, estimate_nelbo
from gidd.diffusion.times import GRIDS
from gidd.pipeline.confidence import score_tokens
from gidd.pipeline.noise_level import NoiseLevel, OnCallsDone, estimate_noise, expected_calls
from gidd.pipeline.results import ResultManifest, Scores
from gidd.sampling.jobs import Jobs, run_jobs
from gidd.sampling.network import require_finite_predictions
from gidd.sampling.window_reader import TextWindows

if TYPE_CHECKING:
    from gidd.pipeline.loaded_model import LoadedModel

PARTS_RULE = "texts longer than the context are split into parts, scored independently, added up"


class ScoreSettings(TypedDict, total=False):
    """Settings of `Pipeline.score`."""

    nodes: int
    repeats: int
    max_se: float | None
    max_calls: int | None
    seed: int
    grid: str
    confidence: bool
    on_calls: OnCallsDone | None


def score_texts(
    pipe: LoadedModel,
    texts: Sequence[str],
    tokens: Sequence[Sequence[int]],
    manifest: Callable[[ResultManifest, int], ResultManifest],
    *,
    nodes: int = NUM_NODES,
    repeats: int = NUM_REPEATS,
    max_se: float | None = None,
    max_calls: int | None = None,
    seed: int = 0,
    grid: str = "sine",
    confidence: bool = True,
    on_calls: OnCallsDone | None = None,
) -> list[Scores]:
    """Return the scores of tokenized texts."""
    remedy = f"The standard error is estimated from the repeats; the default is {NUM_REPEATS}."
    require_arguments(
        seed=(seed, SEED),
        nodes=(nodes, integer(1, 1_000_000, f"The default is {NUM_NODES}.")),
        repeats=(repeats, integer(2, 1_000_000, remedy)),
        max_se=(max_se, optional(number(lambda value: value > 0, "above 0"))),
        max_calls=(max_calls, optional(integer(1))),
    )
    if not texts:
        return []
    parts = [
        (owner, part)
        for owner, each in enumerate(tokens)
        for part in torch.tensor(each).split(pipe.context)
    ]
    estimator = pipe.nelbo_estimator(grid=grid, nodes=nodes, seed=seed)
    cuts = _windows(pipe, tokens) if confidence and pipe.can_score_visible_tokens else []
    expected = (expected_calls(pipe.window_reader(), len(cut)) for cut in cuts)
    phases = _CallPhases(on_calls, 0, *expected)
    found = estimate_nelbo(
        estimator,
        [ScoredText(part, index) for index, (_, part) in enumerate(parts)],
        repeats=repeats,
        max_se=max_se,
        max_calls=max_calls,
        on_calls=phases.phase(0),
    )
    require_finite_predictions(bool(found.nelbo.isfinite().all()))
    owners = torch.tensor([owner for owner, _ in parts])
    zeros = torch.zeros(len(texts), dtype=torch.float64)
    nelbo = zeros.index_add(0, owners, found.nelbo)
    variance = zeros.index_add(0, owners, found.standard_error.square())
    reconstruction = zeros.index_add(0, owners, found.draws[..., 1].mean(0))
    prior = zeros.index_add(0, owners, found.prior)
    calls = zeros.index_add(0, owners, torch.full(owners.shape, found.calls / len(parts)).double())
    task = {"task": "score", "seed": seed, "nodes": nodes, "repeats": len(found.draws)}
    task |= {"grid": grid, "estimator": GRIDS[grid].description, "parts": PARTS_RULE}
    task |= {"eps": TRAINING_EPS, "max_se": max_se, "max_calls": max_calls}
    readings = run_jobs(
        partial(_read, pipe=pipe, cut=cut, on_calls=phases.phase(i))
        for i, cut in enumerate(cuts, start=1)
    )
    return [
        Scores(
            text=text,
            tokens=tuple(tokens[i]),
            confidence=readings[i].confidence if readings else None,
            noise_level=readings[i].noise_level if readings else None,
            nelbo=float(nelbo[i]),
            standard_error=math.sqrt(float(variance[i])),
            reconstruction=float(reconstruction[i]),
            prior=float(prior[i]),
            calls=int(calls[i]),
            manifest=manifest(task, int(calls[i])),
        )
        for i, text in enumerate(texts)
    ]


class _CallPhases:
    """Adds up the forward passes of phases, each of which reports its own."""

    def __init__(self, on_calls: OnCallsDone | None, *expected: int) -> None:
        self._on_calls = on_calls
        self._done = [0] * len(expected)
        self._expected = list(expected)

    def phase(self, number: int) -> OnCallsDone | None:
        """Return the callback of a phase; None if no callback was given."""
        return None if self._on_calls is None else partial(self._report, number)

    def _report(self, number: int, done: int, expected: int) -> None:
        self._done[number], self._expected[number] = done, expected
        if self._on_calls is not None:
            self._on_calls(sum(self._done), sum(self._expected))


def _windows(pipe: LoadedModel, texts: Sequence[Sequence[int]]) -> list[TextWindows]:
    is_fixed = pipe.token_texts.is_fixed
    return [TextWindows(each, [*map(is_fixed, each)], pipe.context) for each in texts]


class _Reading(NamedTuple):
    """What a network that was trained with uniform noise predicts about the tokens of a text."""

    confidence: tuple[float, ...]
    """x_theta of each token."""

    noise_level: NoiseLevel | None
    """Estimated fraction of wrong tokens; None if all tokens are line breaks or such."""


async def _read(
    jobs: Jobs, pipe: LoadedModel, cut: TextWindows, on_calls: OnCallsDone | None
) -> _Reading:
    frame = await score_tokens(jobs, pipe.engine, pipe.context, cut.tokens)
    noise = None
    if not all(cut.fixed):
        noise = await estimate_noise(jobs, pipe.window_reader(), cut, on_calls=on_calls)
    return _Reading(tuple(frame.probability.tolist()), noise)
