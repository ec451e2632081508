"""The likelihood of texts, the confidence in their tokens, and their noise level."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gidd.common.config.allowed import require_allowed
from gidd.diffusion.constants import TRAINING_EPS
from gidd.diffusion.likelihood import (
    NelboEstimate,
    NelboEstimator,
    RankGroup,
    ScoredText,
    estimate_nelbo,
)
from gidd.diffusion.times import GRIDS
from gidd.errors import DataError
from gidd.pipeline.generate import score_tokens
from gidd.pipeline.noise_level import (
    OnForwardPassesDone,
    estimate_noise,
    expected_forward_passes,
    reading_cost,
)
from gidd.pipeline.options import CLEAN_TIME, LikelihoodOptions
from gidd.pipeline.results import NoiseLevel, ResultManifest, Scores
from gidd.sampling.limits import Budget
from gidd.sampling.network import require_finite_predictions
from gidd.sampling.tasks import gather, run_sync
from gidd.sampling.windows import TextWindows

if TYPE_CHECKING:
    from jaxtyping import Bool, Int

    from gidd.diffusion.schedule import Times
    from gidd.pipeline.pipeline import Pipeline
    from gidd.sampling.predict import Rows

PARTS_RULE = "texts longer than the context are split into parts, scored independently, added up"


class TokenProbability(NamedTuple):
    """x_theta at one position of a text."""

    probability: float
    """Of the token that is there."""
    top: tuple[tuple[int, float], ...]
    """The most likely tokens and their probabilities."""


@dataclass(frozen=True)
class _ReadTop:
    """Reads x_theta of the token at each position, and the most likely tokens."""

    k: int

    def __call__(self, rows: Rows, t: Times) -> tuple[Tensor, ...]:
        def most_likely(p: Tensor, _: Tensor) -> tuple[Tensor, ...]:
            return tuple(p.topk(min(self.k, p.shape[-1])))

        return rows.current, *rows.read(most_likely)


def token_probabilities(pipe: Pipeline, tokens: Sequence[int], top: int) -> list[TokenProbability]:
    """Return x_theta at each position of a text at the lowest noise level."""
    cut = TextWindows(tokens, [False] * len(tokens), pipe.window)
    windows = [(window, CLEAN_TIME) for window in cut]
    reader, function = pipe.window_reader(), _ReadTop(max(1, top))
    results: list[TokenProbability] = []
    values = run_sync(reader.read(windows, function))
    for part, (written, probabilities, others) in zip(cut.parts, values, strict=True):
        for i in range(part.own_slice.start, part.own_slice.stop):
            pairs = zip(others[i, :top].tolist(), probabilities[i, :top].tolist(), strict=True)
            results.append(TokenProbability(float(written[i]), tuple(pairs)))
    return results


class ScoringWindow(NamedTuple):
    """Tokens `start` to `stop` of a text, the first `num_given` of which are the condition."""

    start: int
    stop: int
    num_given: int

    def text(
        self, tokens: Int[Tensor, " n"], index: int, given: Bool[Tensor, " n"] | None = None
    ) -> ScoredText:
        """Return the tokens of the window; `index` is the address of its random numbers.

        `given` are further tokens of the condition.
        """
        part = tokens[self.start : self.stop]
        before = torch.arange(len(part)) < self.num_given if self.num_given else None
        if given is not None:
            given = given[self.start : self.stop]
            before = given if before is None else before | given
        return ScoredText(part, index, before)


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


def _parts(pipe: Pipeline, num_tokens: int, first: int) -> Iterator[ScoringWindow]:
    """Yield the parts of a text from token `first` on, which are scored independently.

    A network that predicts canvases is given all tokens before each, as many as fit.
    """
    if pipe.canvas_length is None:
        yield from scoring_windows(
            num_tokens, pipe.context, pipe.context, first=first, fill=bool(first)
        )
        return
    for own_start in range(first, num_tokens, pipe.canvas_length):
        stop = min(own_start + pipe.canvas_length, num_tokens)
        start = max(0, stop - pipe.context)
        yield ScoringWindow(start, stop, own_start - start)


def estimate_likelihood(
    pipe: Pipeline,
    texts: Sequence[ScoredText],
    options: LikelihoodOptions,
    ranks: RankGroup | None = None,
    on_forward_passes: OnForwardPassesDone | None = None,
) -> tuple[NelboEstimate, NelboEstimator]:
    """Return the NELBO of texts that fit into the context, and the estimator."""
    estimator = pipe.nelbo_estimator(
        grid=options.grid, nodes=options.nodes, seed=options.seed, ranks=ranks
    )
    passes = estimator.has_ends + options.repeats * estimator.forward_passes_per_repeat(1)
    Budget.current().reserve(passes * sum(len(text.tokens) for text in texts))
    estimate = estimate_nelbo(
        estimator,
        texts,
        repeats=options.repeats,
        max_se=options.max_se,
        max_forward_passes=options.max_forward_passes,
        on_forward_passes=on_forward_passes,
    )
    require_finite_predictions(bool(estimate.nelbo.isfinite().all()))
    return estimate, estimator


def describe_estimate(options: LikelihoodOptions, repeats: int) -> ResultManifest:
    """Return the settings of an estimate with this number of repeats, for a manifest."""
    return {
        "grid": options.grid,
        "estimator": GRIDS[options.grid].description,
        "eps": TRAINING_EPS,
        "nodes": options.nodes,
        "repeats": repeats,
        "max_se": options.max_se,
        "max_forward_passes": options.max_forward_passes,
        "seed": options.seed,
    }


def score_texts(
    pipe: Pipeline,
    texts: Sequence[str],
    tokens: Sequence[Sequence[int]],
    prompt: Sequence[int],
    options: LikelihoodOptions,
    confidence: bool,
    on_forward_passes: OnForwardPassesDone | None,
) -> list[Scores]:
    """Return the scores of tokenized texts, given the tokens of a prompt."""
    require_allowed(options)
    if not texts:
        return []
    longest = max(map(len, tokens))
    if prompt and len(prompt) + longest > pipe.context:
        raise DataError(
            f"prompt and text must fit into the model's context of {pipe.context:,} tokens, got "
            f"{len(prompt):,} and {longest:,} tokens."
        )
    parts = [
        (owner, window, text)
        for owner, text_tokens in enumerate(tokens)
        for text in [torch.tensor([*prompt, *text_tokens])]
        for window in _parts(pipe, len(text), len(prompt))
    ]
    cuts = [
        TextWindows(
            [*prompt, *text_tokens],
            [True] * len(prompt) + [*map(pipe.decoder.is_fixed, text_tokens)],
            pipe.window,
        )
        for text_tokens in (tokens if confidence and pipe.can_score_visible_tokens else ())
    ]
    # forward passes done and expected: of the likelihood, then of the confidence in each text
    expected_passes = partial(expected_forward_passes, pipe.window_reader())
    passes = [(0, 0), *((0, expected_passes(len(cut))) for cut in cuts)]

    def report(phase: int, done: int, expected: int) -> None:
        passes[phase] = done, expected
        if on_forward_passes is not None:
            on_forward_passes(*map(sum, zip(*passes, strict=True)))

    Budget.current().reserve(sum(reading_cost(pipe.window_reader(), cut) for cut in cuts))
    windows = [window.text(text, index) for index, (_, window, text) in enumerate(parts)]
    estimate, _ = estimate_likelihood(pipe, windows, options, on_forward_passes=partial(report, 0))
    owners = torch.tensor([owner for owner, _, _ in parts])

    def totals(values: Tensor) -> list[float]:
        zeros = torch.zeros(len(texts), dtype=torch.float64)
        return zeros.index_add(0, owners, values.double()).tolist()

    nelbo, variance = totals(estimate.nelbo), totals(estimate.standard_error.square())
    reconstruction, prior = totals(estimate.draws[..., 1].mean(0)), totals(estimate.prior)
    forward_passes = totals(torch.full(owners.shape, estimate.forward_passes / len(parts)))
    task = {"task": "score", "parts": PARTS_RULE} | describe_estimate(options, len(estimate.draws))
    readings = run_sync(
        gather([_read(pipe, cut, partial(report, i)) for i, cut in enumerate(cuts, start=1)])
    ) or [(None, None)] * len(texts)
    return [
        Scores(
            text=texts[i],
            tokens=tuple(tokens[i]),
            confidence=probabilities and probabilities[len(prompt) :],
            noise_level=noise,
            nelbo=nelbo[i],
            standard_error=math.sqrt(variance[i]),
            reconstruction=reconstruction[i],
            prior=prior[i],
            forward_passes=int(forward_passes[i]),
            manifest=task,
        )
        for i, (probabilities, noise) in enumerate(readings)
    ]


async def _read(
    pipe: Pipeline, cut: TextWindows, on_forward_passes: OnForwardPassesDone
) -> tuple[tuple[float, ...], NoiseLevel | None]:
    """Return x_theta of each token, and the noise level unless all tokens are line breaks etc."""
    frame = await score_tokens(pipe, cut.tokens)
    confidence, reader = tuple(frame.probability.tolist()), pipe.window_reader()
    if all(cut.fixed):
        return confidence, None
    return confidence, await estimate_noise(reader, cut, on_forward_passes=on_forward_passes)
