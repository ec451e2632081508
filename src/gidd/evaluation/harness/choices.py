"""Choices and continuations of questions: log-likelihoods with early stop, and generated texts.

All choices of a question share times and noise (common random numbers). After each repeat, a
one-sided paired t-test compares the best choice with every other one. Whether a question is stopped
depends on its own draws only: other questions, batches and order have no effect.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor

from gidd.common.optional import optional_package
from gidd.diffusion.likelihood import NelboEstimator, ScoredText
from gidd.diffusion.process import sample_prior
from gidd.diffusion.randomness import Stream, random_integers
from gidd.errors import DataError
from gidd.pipeline import Pipeline
from gidd.pipeline.options import SamplingOptions
from gidd.pipeline.score import scoring_windows
from gidd.pipeline.text import TokenDecoder, end_of_text
from gidd.sampling import Request

if TYPE_CHECKING:
    from jaxtyping import Float

OnPasses = Callable[[int, int], None]  # called with the forward passes done and expected


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
        lengths = torch.tensor([[1.0, *choice.lengths] for choice in choices], dtype=torch.float64)
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
                condition = None if part.given is None else tuple(part.given.tolist())
                key = (tuple(part.tokens.tolist()), part.index, condition)
                of_choice.append(place.setdefault(key, len(texts)))
                texts += [part] if of_choice[-1] == len(texts) else []
    done, expected = 0, len(texts) + repeats * estimator.forward_passes_per_repeat(len(texts))

    def count(num_passes: int) -> None:
        nonlocal done
        done += num_passes
        if on_passes is not None:
            on_passes(done, max(done, expected))

    prior = estimator.prior(texts, count).tolist()
    draws: list[list[list[float]]] = [[] for _ in questions]
    undecided = list(range(len(questions)))
    for repeat in range(repeats):
        needed = sorted({i for q in undecided for parts in numbers[q] for i in parts})
        expected = done + (repeats - repeat) * estimator.forward_passes_per_repeat(len(needed))
        drawn = estimator.draw([texts[i] for i in needed], repeat, count).sum(-1).tolist()
        value = {i: -nelbo - prior[i] for i, nelbo in zip(needed, drawn, strict=True)}
        for q in undecided:
            draws[q].append([sum(value[i] for i in parts) for parts in numbers[q]])
        if stop is not None and repeat + 1 < repeats:
            undecided = [q for q in undecided if not stop.is_decided(questions[q], draws[q])]
        if not undecided:
            break
    scores: list[ChoiceScores] = []
    for q, drawn in enumerate(draws):
        table, num_texts = torch.tensor(drawn, dtype=torch.float64), sum(map(len, numbers[q]))
        errors: list[float | None] = [None] * len(numbers[q])
        if len(table) > 1:
            errors = (table.std(0) / math.sqrt(len(table))).tolist()
        passes = num_texts * estimator.has_ends
        passes += len(table) * estimator.forward_passes_per_repeat(num_texts)
        values = tuple(table.mean(0).tolist())
        is_decided = len(table) < repeats
        scores.append(ChoiceScores(values, tuple(errors), len(table), is_decided, passes))
    return scores, done


_MAX_GENERATED = 256  # default number of blanks, as in lm_eval; at most half the context
_SAMPLING = {"steps", "temperature", "top_k", "top_p", "min_p", "sampler", "timestep_spacing"}


class Continuation(NamedTuple):
    """Tokens of a context and of its continuation, encoded together."""

    tokens: tuple[int, ...]
    start: int  # number of tokens of the context


def encode_continuation(texts: TokenDecoder, context: str, continuation: str) -> Continuation:
    """Encode both together, and split them after the tokens of the context alone.

    Spaces at the end of the context belong to the continuation, as in lm-evaluation-harness. The
    continuation has at least one token, also if its text is merged with the end of the context.
    """
    head = context.rstrip()
    whole = texts.encode(context + continuation, "a context with its continuation")
    if not continuation or not whole:
        raise DataError(f"a continuation must not be empty, got {continuation!r} to score.")
    start = len(texts.encode(head, "a context")) if head else 0
    return Continuation(tuple(whole), min(start, len(whole) - 1))


def stable_index(texts: Iterable[str], index: int = 0) -> int:
    """Return an index of random numbers that depends on the set of texts, not on their order."""
    digest = hashlib.sha256(index.to_bytes(8, "big"))
    for text in sorted(set(texts)):
        data = text.encode()
        digest.update(len(data).to_bytes(8, "big") + data)
    return int.from_bytes(digest.digest()[:8], "big") >> 2  # 62 bits


def conditional_parts(
    tokens: Sequence[int], start: int, size: int, question: Sequence[str]
) -> tuple[ScoredText, ...]:
    """Return the texts that score the tokens from `start` on, given those before.

    If they fit into `size` tokens there is one, with the last tokens; otherwise each is given up to
    half of `size` before the tokens that it scores.
    """
    text = torch.tensor(tokens)
    windows = scoring_windows(len(tokens), size, size - size // 2, first=start, fill=True)
    return tuple(w.text(text, stable_index(question, index)) for index, w in enumerate(windows))


def joint_parts(
    tokens: Sequence[int], start: int, size: int, question: Sequence[str]
) -> tuple[ScoredText, ...]:
    """Return the text that scores context and continuation: the last `size` tokens of both.

    A continuation that does not fit is scored by `conditional_parts`, so that none of its tokens
    are dropped.
    """
    if len(tokens) - start > size:
        return conditional_parts(tokens, start, size, question)
    return (ScoredText(torch.tensor(tokens[-size:]), stable_index(question)),)


@torch.no_grad()
def is_greedy(estimator: NelboEstimator, text: ScoredText) -> bool:
    """Whether x_theta at t = 1, where all scored tokens are noise, is highest at each of them."""
    x = text.tokens.to(estimator.device)
    given = torch.zeros_like(x, dtype=torch.bool)
    if text.given is not None:
        given = text.given.to(estimator.device)
    index, position = torch.tensor([text.index]).to(x), torch.arange(len(x)).to(x)
    u = random_integers(estimator.seed, Stream.PRIOR, 0, index, position)
    z = torch.where(given, x, sample_prior(estimator.schedule, u))
    hidden = estimator.model.hidden(z, torch.ones(1, device=x.device))
    states = hidden[0, ~given].float()
    if getattr(estimator.model, "has_linear_head", True):
        weight, bias = estimator.model.head()
        predicted = torch.addmm(bias.float(), states, weight.float().T).argmax(-1)
    else:
        predicted = cast(Any, estimator.model).distribution(states).argmax(-1)
    return bool((predicted == x[~given]).all())


def generate_texts(
    pipe: Pipeline, requests: Sequence[tuple[Any, ...]], max_length: int, seed: int
) -> tuple[list[str], int, int]:
    """Fill `max_gen_toks` blanks after each context; its last tokens are kept if it is too long.

    A request is (context, settings) of lm_eval; without `do_sample` the temperature is 0. Returns
    the texts, the number of forward passes, and of requests whose context was truncated.
    """
    made, truncated, texts = list[Request](), 0, list[str]()
    stop = tuple(sorted(pipe.tokenizer.terminator_ids))
    for context, settings in requests:
        tokens = pipe.decoder.encode(context, "a context")
        wanted = settings.get("max_gen_toks", settings.get("max_new_tokens"))
        wanted = min(_MAX_GENERATED, max_length // 2) if wanted is None else wanted
        num_new = max(1, min(int(wanted), max_length - 1))
        kept = tokens[-(max_length - num_new) :]
        truncated += len(kept) < len(tokens)
        # by default a step per blank, at most the default of `generate`
        values: dict[str, Any] = {"steps": min(SamplingOptions().steps, num_new)}
        values |= {n: v for n, v in settings.items() if n in _SAMPLING and v is not None}
        if not settings.get("do_sample", "temperature" in values):
            values["temperature"] = 0.0
        options = SamplingOptions(**values)
        made.append(
            Request(
                tokens=(*kept, *[None] * num_new),
                plan=options.plan(),
                seed=seed,
                sample_index=stable_index([context]),
                processors=options.processors(),
                stop=stop,
            )
        )
    samples = pipe.session.sample(made)
    for (_, settings), request, sample in zip(requests, made, samples, strict=True):
        start = sum(token is not None for token in request.tokens)
        text, until = "".join(pipe.decoder(sample.text[start:])), settings.get("until") or ()
        stops = [until] if isinstance(until, str) else [stop for stop in until if stop]
        texts.append(text[: end_of_text(text, stops)])
    return texts, sum(sample.forward_passes for sample in samples), truncated
