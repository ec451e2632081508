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
from gidd.pipeline.noise_level import NoiseLevel, OnCallsDone, estimate_noise, expected_calls
from gidd.pipeline.options import LikelihoodOptions
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
    confidence: bool,
    on_calls: OnCallsDone | None,
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
    cuts = [
        TextWindows(each, [*map(pipe.token_texts.is_fixed, each)], pipe.context)
        for each in (tokens if confidence and pipe.can_score_visible_tokens else ())
    ]
    # forward passes done and expected: of the likelihood, then of the confidence in each text
    passes = [(0, 0), *((0, expected_calls(pipe.window_reader(), len(cut))) for cut in cuts)]

    def report(phase: int, done: int, expected: int) -> None:
        passes[phase] = done, expected
        if on_calls is not None:
            on_calls(*map(sum, zip(*passes, strict=True)))

    windows = [window.text(text, index) for index, (_, window, text) in enumerate(parts)]
    found, _ = estimate_likelihood(pipe, windows, options, on_calls=partial(report, 0))
    owners = torch.tensor([owner for owner, _, _ in parts])
    zeros = torch.zeros(len(texts), dtype=torch.float64)
    nelbo = zeros.index_add(0, owners, found.nelbo)
    variance = zeros.index_add(0, owners, found.standard_error.square())
    reconstruction = zeros.index_add(0, owners, found.draws[..., 1].mean(0))
    prior = zeros.index_add(0, owners, found.prior)
    calls = zeros.index_add(0, owners, torch.full(owners.shape, found.calls / len(parts)).double())
    task = {"task": "score", "parts": PARTS_RULE} | describe_estimate(options, len(found.draws))
    readings = run_jobs(
        partial(_read, pipe=pipe, cut=cut, on_calls=partial(report, i))
        for i, cut in enumerate(cuts, start=1)
    ) or [(None, None)] * len(texts)
    return [
        Scores(
            text=text,
            tokens=tuple(tokens[i]),
            confidence=readings[i][0],
            noise_level=readings[i][1],
            nelbo=float(nelbo[i]),
            standard_error=math.sqrt(float(variance[i])),
            reconstruction=float(reconstruction[i]),
            prior=float(prior[i]),
            calls=int(calls[i]),
            manifest=manifest(task, int(calls[i])),
        )
        for i, text in enumerate(texts)
    ]


async def _read(
    jobs: Jobs, pipe: Pipeline, cut: TextWindows, on_calls: OnCallsDone
) -> tuple[tuple[float, ...], NoiseLevel | None]:
    """Return x_theta of each token, and the noise level unless all tokens are line breaks etc."""
    frame = await score_tokens(jobs, pipe.engine, pipe.context, cut.tokens)
    noise = None
    if not all(cut.fixed):
        noise = await estimate_noise(jobs, pipe.window_reader(), cut, on_calls=on_calls)
    return tuple(frame.probability.tolist()), noise
