"""From requests of lm_eval to tokens: continuations to score, blanks to fill."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

from gidd.diffusion.likelihood import NelboEstimator, ScoredText
from gidd.diffusion.process import sample_prior
from gidd.diffusion.randomness import Stream, random_integers
from gidd.errors import DataError
from gidd.pipeline import Pipeline
from gidd.pipeline.options import SamplingOptions
from gidd.pipeline.score import scoring_windows
from gidd.pipeline.text import TokenDecoder
from gidd.sampling import Request

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


def stable_index(texts: Iterable[str], number: int = 0) -> int:
    """Return an index of random numbers that depends on the set of texts, not on their order."""
    digest = hashlib.sha256(number.to_bytes(8, "big"))
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
    return tuple(w.text(text, stable_index(question, number)) for number, w in enumerate(windows))


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
    weight, bias = estimator.model.head()
    states = hidden[0, ~given].float()
    predicted = torch.addmm(bias.float(), states, weight.float().T).argmax(-1)
    return bool((predicted == x[~given]).all())


def generate_texts(
    pipe: Pipeline, requests: Sequence[tuple[Any, ...]], max_length: int, seed: int
) -> tuple[list[str], int, int]:
    """Fill `max_gen_toks` blanks after each context; its last tokens are kept if it is too long.

    A request is (context, settings) of lm_eval; without `do_sample` the temperature is 0. Returns
    the texts, the number of forward passes, and of requests whose context was truncated.
    """
    made, truncated, texts = list[Request](), 0, list[str]()
    for context, settings in requests:
        tokens = pipe.token_texts.encode(context, "a context")
        wanted = settings.get("max_gen_toks", settings.get("max_new_tokens"))
        if wanted is None:
            wanted = min(_MAX_GENERATED, max_length // 2)
        number = max(1, min(int(wanted), max_length - 1))
        kept = tokens[-(max_length - number) :]
        truncated += len(kept) < len(tokens)
        # by default a step per blank, at most the default of `generate`
        values: dict[str, Any] = {"steps": min(SamplingOptions().steps, number)}
        values |= {n: v for n, v in settings.items() if n in _SAMPLING and v is not None}
        if not settings.get("do_sample", "temperature" in values):
            values["temperature"] = 0.0
        options = SamplingOptions(**values)
        made.append(
            Request(
                tokens=(*kept, *[None] * number),
                plan=options.plan(),
                seed=seed,
                sample_index=stable_index([context]),
                processors=options.processors(),
                stop=tuple(sorted(pipe.tokenizer.terminator_ids)),
            )
        )
    samples = pipe.session.sample(made)
    for (_, settings), request, sample in zip(requests, made, samples, strict=True):
        start = sum(token is not None for token in request.tokens)
        text = "".join(pipe.token_texts(sample.text[start:]))
        texts.append(cut_at(text, settings.get("until") or ()))
    return texts, sum(sample.forward_passes for sample in samples), truncated


def cut_at(text: str, stops: str | Sequence[str]) -> str:
    """Return the text before the first of some stop strings."""
    stops = [stops] if isinstance(stops, str) else stops
    found = [place for stop in stops if stop and (place := text.find(stop)) >= 0]
    return text[: min(found, default=len(text))]
