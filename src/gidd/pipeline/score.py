"""The likelihood of texts, the confidence in their tokens, and their noise level."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gidd.diffusion.constants import TRAINING_EPS
from gidd.diffusion.likelihood import (
    NelboEstimate,
    NelboEstimator,
    RankGroup,
    ScoredText,
    estimate_nelbo,
)
from gidd.diffusion.times import GRIDS
from gidd.errors import ConfigError
from gidd.pipeline.generate import score_tokens
from gidd.pipeline.likelihood_options import LikelihoodOptions
from gidd.pipeline.noise_level import NoiseLevel, OnCallsDone, estimate_noise, expected_calls
from gidd.pipeline.results import ResultManifest, Scores
from gidd.sampling.jobs import Jobs, run_jobs
from gidd.sampling.network import require_finite_predictions
from gidd.sampling.windows import TextWindows

if TYPE_CHECKING:
    from jaxtyping import Int

    from gidd.pipeline.pipeline import Pipeline

PARTS_RULE = "texts longer than the context are split into parts, scored independently, added up"


class ScoringWindow(NamedTuple):
    """Tokens `start` to `stop` of a text, the first `num_given` of which are the condition."""

    start: int
    stop: int
    num_given: int

    def text(self, tokens: Int[Tensor, " n"], index: int) -> ScoredText:
        """Return the tokens of the window; `index` is the address of its random numbers."""
        part = tokens[self.start : self.stop]
        given = torch.arange(len(part)) < self.num_given if self.num_given else None
        return ScoredText(part, index, given)


def scoring_windows(
    num_tokens: int, length: int, stride: int, *, first: int = 0, fill: bool = False
) -> Iterator[ScoringWindow]:
    """Yield windows of at most `length` tokens that score each token from `first` on once.

    A window is given the `length - stride` tokens before those it scores, or all if there are
    fewer; with `fill`, as many as fit. With `fill`, tokens that fit into one window are scored in
    one.
    """
    if fill and num_tokens - first <= length:
        start = max(0, num_tokens - length)
        yield ScoringWindow(start, num_tokens, first - start)
        return
    context = length - stride
    while first < num_tokens:
        stop = min(num_tokens, first + length - min(first, context))
        start = max(0, stop - length if fill else first - context)
        yield ScoringWindow(start, stop, first - start)
        first = stop


def estimate_likelihood(
    pipe: Pipeline,
    texts: Sequence[ScoredText],
    options: LikelihoodOptions,
    ranks: RankGroup | None = None,
    on_calls: OnCallsDone | None = None,
) -> tuple[NelboEstimate, NelboEstimator]:
    """Return the NELBO of texts that fit into the context, and the estimator."""
    estimator = pipe.nelbo_estimator(
        grid=options.grid, nodes=options.nodes, seed=options.seed, ranks=ranks
    )
    found = estimate_nelbo(
        estimator,
        texts,
        repeats=options.repeats,
        max_se=options.max_se,
        max_calls=options.max_calls,
        on_calls=on_calls,
    )
    require_finite_predictions(bool(found.nelbo.isfinite().all()))
    return found, estimator


def describe_estimate(options: LikelihoodOptions, repeats: int) -> ResultManifest:
    """Return the settings of an estimate with this number of repeats, for a manifest."""
    return {
        "grid": options.grid,
        "estimator": GRIDS[options.grid].description,
        "eps": TRAINING_EPS,
        "nodes": options.nodes,
        "repeats": repeats,
        "max_se": options.max_se,
        "max_calls": options.max_calls,
        "seed": options.seed,
    }


def score_texts(
    pipe: Pipeline,
    texts: Sequence[str],
    tokens: Sequence[Sequence[int]],
    manifest: Callable[[ResultManifest, int], ResultManifest],
    options: LikelihoodOptions,
    *,
    confidence: bool = True,
    on_calls: OnCallsDone | None = None,
) -> list[Scores]:
    """Return the scores of tokenized texts."""
    if problems := "\n".join(options.problems()):
        raise ConfigError(problems)
    if not texts:
        return []
    parts = [
        (owner, window, torch.tensor(each))
        for owner, each in enumerate(tokens)
        for window in scoring_windows(len(each), pipe.context, pipe.context)
    ]
    cuts = _windows(pipe, tokens) if confidence and pipe.can_score_visible_tokens else []
    expected = (expected_calls(pipe.window_reader(), len(cut)) for cut in cuts)
    phases = _CallPhases(on_calls, 0, *expected)
    windows = [window.text(text, index) for index, (_, window, text) in enumerate(parts)]
    found, _ = estimate_likelihood(pipe, windows, options, on_calls=phases.phase(0))
    owners = torch.tensor([owner for owner, _, _ in parts])
    zeros = torch.zeros(len(texts), dtype=torch.float64)
    nelbo = zeros.index_add(0, owners, found.nelbo)
    variance = zeros.index_add(0, owners, found.standard_error.square())
    reconstruction = zeros.index_add(0, owners, found.draws[..., 1].mean(0))
    prior = zeros.index_add(0, owners, found.prior)
    calls = zeros.index_add(0, owners, torch.full(owners.shape, found.calls / len(parts)).double())
    task = {"task": "score", "parts": PARTS_RULE} | describe_estimate(options, len(found.draws))
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


def _windows(pipe: Pipeline, texts: Sequence[Sequence[int]]) -> list[TextWindows]:
    is_fixed = pipe.token_texts.is_fixed
    return [TextWindows(each, [*map(is_fixed, each)], pipe.context) for each in texts]


class _Reading(NamedTuple):
    """What a network that was trained with uniform noise predicts about the tokens of a text."""

    confidence: tuple[float, ...]
    """x_theta of each token."""

    noise_level: NoiseLevel | None
    """Estimated fraction of wrong tokens; None if all tokens are line breaks or such."""


async def _read(
    jobs: Jobs, pipe: Pipeline, cut: TextWindows, on_calls: OnCallsDone | None
) -> _Reading:
    frame = await score_tokens(jobs, pipe.engine, pipe.context, cut.tokens)
    noise = None
    if not all(cut.fixed):
        noise = await estimate_noise(jobs, pipe.window_reader(), cut, on_calls=on_calls)
    return _Reading(tuple(frame.probability.tolist()), noise)
