"""The likelihood of texts, and the confidence in their tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypedDict

import torch

from gidd.common.allowed import SEED, integer, number, optional, require_arguments
from gidd.diffusion.constants import TRAINING_EPS
from gidd.diffusion.likelihood import NUM_REPEATS, estimate_nelbo
from gidd.diffusion.nelbo import NUM_NODES
from gidd.diffusion.text_rows import TextTokens
from gidd.diffusion.time_grids import GRIDS
from gidd.pipeline.confidence import score_tokens
from gidd.pipeline.results import ResultManifest, Scores
from gidd.sampling.network import require_finite_predictions

if TYPE_CHECKING:
    from gidd.pipeline.pipeline import Pipeline

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
    on_calls: Callable[[int, int], None] | None


def score_texts(
    pipe: Pipeline,
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
    on_calls: Callable[[int, int], None] | None = None,
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
    found = estimate_nelbo(
        estimator,
        [TextTokens(part, index) for index, (_, part) in enumerate(parts)],
        repeats=repeats,
        max_se=max_se,
        max_calls=max_calls,
        on_calls=on_calls,
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
    return [
        Scores(
            text=text,
            tokens=tuple(tokens[i]),
            confidence=_confidence(pipe, tokens[i]) if confidence else None,
            nelbo=float(nelbo[i]),
            standard_error=math.sqrt(float(variance[i])),
            reconstruction=float(reconstruction[i]),
            prior=float(prior[i]),
            calls=int(calls[i]),
            manifest=manifest(task, int(calls[i])),
        )
        for i, text in enumerate(texts)
    ]


def _confidence(pipe: Pipeline, tokens: Sequence[int]) -> tuple[float, ...] | None:
    """Return x_theta of each token; None if the model cannot score visible tokens."""
    if not pipe.can_score_visible_tokens:
        return None
    return tuple(score_tokens(pipe.engine, pipe.context, tokens).probability.tolist())
