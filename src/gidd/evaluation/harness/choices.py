"""Log-likelihoods of the choices of questions, with early stop once the ranking is decided.

All choices of a question share times and noise (common random numbers), so that differences
between them vary less than the log-likelihoods. After each repeat, a one-sided paired t-test
compares the best choice with every other one, in log-likelihoods and in length-normalised ones. A
question whose ranking is decided draws no further repeats. Whether a question is stopped depends on
its own draws only: other questions, batches and order have no effect.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, final

import torch
from torch import Tensor

from gidd.common.optional import optional_package
from gidd.diffusion.likelihood import NelboEstimator, ScoredText

if TYPE_CHECKING:
    from jaxtyping import Float

OnPasses = Callable[[int, int], None]
"""Called with the forward passes done and expected."""


class Choice(NamedTuple):
    """A continuation of a question."""

    parts: tuple[ScoredText, ...]
    """Its texts to score; more than one if it does not fit into the context."""

    lengths: tuple[float, ...] = ()
    """Lengths that its log-likelihood is divided by, for length-normalised rankings."""


@final
@dataclass(frozen=True)
class Question:
    """Continuations that are compared with each other."""

    choices: tuple[Choice, ...]

    can_stop: bool = True
    """Whether only the ranking of the choices matters, not their log-likelihoods."""


@final
@dataclass(frozen=True)
class EarlyStop:
    """When the ranking of the choices of a question is decided."""

    confidence: float = 0.99
    min_repeats: int = 3

    def is_decided(
        self, draws: Float[Tensor, "R C"], lengths: Sequence[Sequence[float]] = ()
    ) -> bool:
        """Whether the best choice is, for each list of lengths, significantly the best."""
        if len(draws) < max(self.min_repeats, 2):
            return False
        scales = [torch.tensor(each, dtype=draws.dtype) for each in lengths]
        return all(self._has_best(each) for each in [draws, *(draws / scale for scale in scales)])

    def _has_best(self, draws: Float[Tensor, "R C"]) -> bool:
        """Test the best mean against all others; equal draws of two choices decide nothing."""
        best = int(draws.mean(0).argmax())
        ahead = draws[:, best : best + 1] - draws
        t = ahead.mean(0) * math.sqrt(len(draws)) / ahead.std(0)  # inf if all draws lead equally
        limit = optional_package("scipy.stats", "eval").t.ppf(self.confidence, len(draws) - 1)
        return bool((t > limit)[torch.arange(draws.shape[1]) != best].all())


@final
@dataclass(frozen=True)
class ChoiceScores:
    """Estimated log-likelihoods of the choices of a question."""

    loglikelihood: tuple[float, ...]
    standard_error: tuple[float | None, ...]
    """None after a single repeat."""

    repeats: int
    is_decided: bool
    """Whether the question was stopped early."""

    calls: int
    """Forward passes of single texts; a text that questions share counts for each."""


class ScoredQuestions(NamedTuple):
    """Scores of questions in their order, and the forward passes of single texts."""

    scores: list[ChoiceScores]
    calls: int


@final
@dataclass
class _State:
    """A question whose repeats are being drawn."""

    question: Question
    texts: list[list[int]]
    """Number of the text of each part of each choice."""

    draws: list[list[float]] = field(default_factory=list[list[float]])
    """Minus the NELBO of each choice in each repeat."""

    is_decided: bool = False

    def decide(self, stop: EarlyStop) -> None:
        """Test whether the ranking is decided."""
        choices = self.question.choices
        if self.question.can_stop and len(choices) > 1:
            lengths = list(zip(*(choice.lengths for choice in choices), strict=True))
            drawn = torch.tensor(self.draws, dtype=torch.float64)
            self.is_decided = stop.is_decided(drawn, lengths)

    def scores(self, estimator: NelboEstimator) -> ChoiceScores:
        """Return means and standard errors."""
        draws = torch.tensor(self.draws, dtype=torch.float64)
        repeats, num_texts = len(draws), sum(map(len, self.texts))
        errors: list[float | None] = [None] * len(self.texts)
        if repeats > 1:
            errors = (draws.std(0) / math.sqrt(repeats)).tolist()
        return ChoiceScores(
            loglikelihood=tuple(draws.mean(0).tolist()),
            standard_error=tuple(errors),
            repeats=repeats,
            is_decided=self.is_decided,
            calls=num_texts * estimator.has_ends + repeats * estimator.calls_per_repeat(num_texts),
        )


def score_questions(
    estimator: NelboEstimator,
    questions: Sequence[Question],
    *,
    repeats: int,
    stop: EarlyStop | None = None,
    on_passes: OnPasses | None = None,
) -> ScoredQuestions:
    """Estimate the log-likelihoods of all choices; equal texts are computed once.

    Args:
        estimator: The model, its noise and the time grid.
        questions: The questions.
        repeats: Maximum number of repeats.
        stop: When to stop a question early; without it, all have `repeats` repeats.
        on_passes: Called with the forward passes done and expected, as they are done.
    """
    texts, states = _number_texts(questions)
    done, expected = 0, len(texts) + repeats * estimator.calls_per_repeat(len(texts))

    def count(number: int) -> None:
        nonlocal done
        done += number
        if on_passes is not None:
            on_passes(done, max(done, expected))

    prior = estimator.prior(texts, count).tolist()
    undecided = states
    for repeat in range(repeats):
        needed = sorted({i for state in undecided for parts in state.texts for i in parts})
        expected = done + (repeats - repeat) * estimator.calls_per_repeat(len(needed))
        drawn = estimator.draw([texts[i] for i in needed], repeat, count).sum(-1).tolist()
        value = {i: -each - prior[i] for i, each in zip(needed, drawn, strict=True)}
        for state in undecided:
            state.draws.append([sum(value[text] for text in parts) for parts in state.texts])
            if stop is not None and repeat + 1 < repeats:
                state.decide(stop)
        undecided = [state for state in undecided if not state.is_decided]
        if not undecided:
            break
    return ScoredQuestions([state.scores(estimator) for state in states], done)


def _number_texts(questions: Sequence[Question]) -> tuple[list[ScoredText], list[_State]]:
    """Return the different texts, and the questions with the numbers of their texts."""
    number: dict[object, int] = {}
    texts: list[ScoredText] = []

    def find(text: ScoredText) -> int:
        given = None if text.given is None else tuple(text.given.tolist())
        key = (tuple(text.tokens.tolist()), text.index, given)
        if key not in number:
            number[key] = len(texts)
            texts.append(text)
        return number[key]

    states = [
        _State(question, [[find(part) for part in choice.parts] for choice in question.choices])
        for question in questions
    ]
    return texts, states
