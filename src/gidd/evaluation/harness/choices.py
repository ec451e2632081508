"""Log-likelihoods of the choices of questions, with early stop once the ranking is decided.

All choices of a question share times and noise (common random numbers). After each repeat, a
one-sided paired t-test compares the best choice with every other one. Whether a question is stopped
depends on its own draws only: other questions, batches and order have no effect.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

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

    parts: tuple[ScoredText, ...]  # more than one if it does not fit into the context
    lengths: tuple[float, ...] = ()  # that its log-likelihood is divided by, for other rankings


class Question(NamedTuple):
    """Continuations that are compared with each other."""

    choices: tuple[Choice, ...]
    can_stop: bool = True  # only the ranking of the choices matters, not their log-likelihoods


@dataclass(frozen=True)
class EarlyStop:
    """When the ranking of the choices of a question is decided."""

    confidence: float = 0.99
    min_repeats: int = 3

    def is_decided(self, question: Question, draws: Sequence[Sequence[float]]) -> bool:
        """Whether the best choice is significantly the best, also by each kind of length.

        `draws` are the log-likelihoods of the choices in each repeat.
        """
        choices = question.choices
        if not question.can_stop or len(choices) < 2 or len(draws) < max(self.min_repeats, 2):
            return False
        drawn = torch.tensor(draws, dtype=torch.float64)
        lengths = torch.tensor([[1.0, *each.lengths] for each in choices], dtype=torch.float64)
        return all(self._has_best(drawn / scale) for scale in lengths.T)

    def _has_best(self, draws: Float[Tensor, "R C"]) -> bool:
        """Test the best mean against all others; equal draws of two choices decide nothing."""
        best = int(draws.mean(0).argmax())
        ahead = draws[:, best : best + 1] - draws
        t = ahead.mean(0) * math.sqrt(len(draws)) / ahead.std(0)  # inf if all draws lead equally
        limit = optional_package("scipy.stats", "eval").t.ppf(self.confidence, len(draws) - 1)
        return bool((t > limit)[torch.arange(draws.shape[1]) != best].all())


@dataclass(frozen=True)
class ChoiceScores:
    """Estimated log-likelihoods of the choices of a question."""

    loglikelihood: tuple[float, ...]
    standard_error: tuple[float | None, ...]  # None after a single repeat
    repeats: int
    is_decided: bool  # whether the question was stopped early
    forward_passes: int  # of single texts; a text that questions share counts for each


def score_questions(
    estimator: NelboEstimator,
    questions: Sequence[Question],
    *,
    repeats: int,
    stop: EarlyStop | None = None,
    on_passes: OnPasses | None = None,
) -> tuple[list[ChoiceScores], int]:
    """Estimate the log-likelihoods of all choices; equal texts are computed once.

    Questions that `stop` does not stop have all `repeats`. Returns the scores in the order of the
    questions, and the forward passes of single texts.
    """
    texts, place, numbers = list[ScoredText](), dict[object, int](), list[list[list[int]]]()
    for question in questions:
        numbers.append([[] for _ in question.choices])
        for of_choice, choice in zip(numbers[-1], question.choices, strict=True):
            for part in choice.parts:
                given = None if part.given is None else tuple(part.given.tolist())
                key = (tuple(part.tokens.tolist()), part.index, given)
                of_choice.append(place.setdefault(key, len(texts)))
                texts += [part] if of_choice[-1] == len(texts) else []
    done, expected = 0, len(texts) + repeats * estimator.forward_passes_per_repeat(len(texts))

    def count(number: int) -> None:
        nonlocal done
        done += number
        if on_passes is not None:
            on_passes(done, max(done, expected))

    prior = estimator.prior(texts, count).tolist()
    draws: list[list[list[float]]] = [[] for _ in questions]
    undecided = list(range(len(questions)))
    for repeat in range(repeats):
        needed = sorted({i for q in undecided for parts in numbers[q] for i in parts})
        expected = done + (repeats - repeat) * estimator.forward_passes_per_repeat(len(needed))
        drawn = estimator.draw([texts[i] for i in needed], repeat, count).sum(-1).tolist()
        value = {i: -each - prior[i] for i, each in zip(needed, drawn, strict=True)}
        for q in undecided:
            draws[q].append([sum(value[i] for i in parts) for parts in numbers[q]])
        if stop is not None and repeat + 1 < repeats:
            undecided = [q for q in undecided if not stop.is_decided(questions[q], draws[q])]
        if not undecided:
            break
    found: list[ChoiceScores] = []
    for q, drawn in enumerate(draws):
        table, num_texts = torch.tensor(drawn, dtype=torch.float64), sum(map(len, numbers[q]))
        errors: list[float | None] = [None] * len(numbers[q])
        if len(table) > 1:
            errors = (table.std(0) / math.sqrt(len(table))).tolist()
        passes = num_texts * estimator.has_ends
        passes += len(table) * estimator.forward_passes_per_repeat(num_texts)
        values = tuple(table.mean(0).tolist())
        is_decided = len(table) < repeats
        found.append(ChoiceScores(values, tuple(errors), len(table), is_decided, passes))
    return found, done
