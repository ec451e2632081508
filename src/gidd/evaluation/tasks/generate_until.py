"""Answers of requests to generate text: blanks after a context, filled and cut at stop strings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gidd.evaluation.tasks.continuations import stable_index
from gidd.pipeline import Pipeline
from gidd.pipeline.options import SamplingOptions
from gidd.sampling import Request

MAX_GENERATED = 256
"""Default number of blanks, as in lm-evaluation-harness; at most half the context."""

_FIELDS = ("steps", "temperature", "top_k", "top_p", "min_p", "sampler", "mesh")


class GeneratedTexts(NamedTuple):
    """Generated texts in the order of the requests."""

    texts: list[str]
    calls: int
    """Forward passes."""

    truncated: int
    """Requests whose context was truncated."""


def generate_texts(
    pipe: Pipeline, requests: Sequence[tuple[Any, ...]], max_length: int, seed: int
) -> GeneratedTexts:
    """Fill `max_gen_toks` blanks after each context; its last tokens are kept if it is too long.

    A request is (context, settings) with `until`, `max_gen_toks` and sampling options. Without
    `do_sample` the temperature is 0. The random numbers of a sample depend on its context.
    """
    made: list[Request] = []
    truncated = 0
    for context, settings in requests:
        tokens = pipe.token_texts.encode(context, "a context")
        number = _num_blanks(settings, max_length)
        kept = tokens[-(max_length - number) :]
        truncated += len(kept) < len(tokens)
        options = _options(settings, number)
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
    samples = pipe.engine.sample(made)
    texts: list[str] = []
    for (_, settings), request, sample in zip(requests, made, samples, strict=True):
        start = sum(token is not None for token in request.tokens)
        text = "".join(pipe.token_texts(sample.text[start:]))
        texts.append(cut_at(text, settings.get("until") or ()))
    return GeneratedTexts(texts, sum(sample.calls for sample in samples), truncated)


def cut_at(text: str, stops: str | Sequence[str]) -> str:
    """Return the text before the first of some stop strings."""
    stops = [stops] if isinstance(stops, str) else stops
    found = [place for stop in stops if stop and (place := text.find(stop)) >= 0]
    return text[: min(found, default=len(text))]


def _num_blanks(settings: Mapping[str, Any], max_length: int) -> int:
    wanted = settings.get("max_gen_toks", settings.get("max_new_tokens"))
    if wanted is None:
        return min(MAX_GENERATED, max(1, max_length // 2))
    return max(1, min(int(wanted), max_length - 1))


def _options(settings: Mapping[str, Any], num_blanks: int) -> SamplingOptions:
    """Return sampling options; by default a step per blank, at most those of `generate`."""
    values: dict[str, Any] = {"steps": min(SamplingOptions().steps, num_blanks)}
    values |= {name: settings[name] for name in _FIELDS if settings.get(name) is not None}
    if not settings.get("do_sample", "temperature" in values):
        values["temperature"] = 0.0
    return SamplingOptions(**values)
