"""From what a caller asks for to requests, and from samples to results."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from gidd.errors import ConfigError, DataError
from gidd.pipeline.confidence import frames_of_masking
from gidd.pipeline.describe import plan_in_words, processors_in_words
from gidd.pipeline.results import Generation, ResultManifest, Trace
from gidd.pipeline.text import TokenTexts
from gidd.sampling import Frame, Plan, Processor, Request, Sample, Tokens, ban, prompt
from gidd.vocab import Vocab

_MOST = 2**63
"""Seeds and numbers are below this."""


def require_seed(field: str, value: int) -> int:
    """Refuse what no random stream has."""
    if not 0 <= value < _MOST:
        raise ConfigError(f"{field} must be in [0, 2**63), got {value}. Any such number will do.")
    return value


def with_blanks(length: int, before: Sequence[int], after: Sequence[int]) -> Tokens:
    """A prompt and a suffix with room between them."""
    if len(before) + len(after) >= length > 0:
        raise DataError(
            f"prompt and suffix must leave room in a text of {length} tokens, got {len(before)} "
            f"and {len(after)} tokens. Shorten them, or ask for a longer text within the context."
        )
    return prompt(length, before, after)


def requests(
    tokens: Tokens,
    plan: Plan,
    processors: tuple[Processor, ...],
    vocab: Vocab,
    *,
    num_samples: int,
    seed: int,
    start_index: int,
    stop: tuple[int, ...],
    never: frozenset[int],
) -> list[Request]:
    """`n` requests for one text with blanks; without a stop, tokens of `never` are not written."""
    if num_samples < 1:
        raise ConfigError(
            f"the number of texts must be at least 1, got {num_samples}. Ask for one."
        )
    require_seed("seed", seed)
    require_seed("the number of the last text", start_index + num_samples - 1)
    require_seed("start_index", start_index)
    if not stop:
        # before the cuts: they must not leave a banned token alone
        processors = (ban(vocab, never), *processors)
    return [
        Request(
            tokens=tokens,
            plan=plan,
            seed=seed,
            sample_index=number,
            processors=processors,
            stop=stop,
        )
        for number in range(start_index, start_index + num_samples)
    ]


def task(request: Request) -> ResultManifest:
    """What the manifest says of a request."""
    return {
        "task": "sample",
        "length": len(request.tokens),
        "given": sum(token is not None for token in request.tokens),
        "seed": request.seed,
        "sample_index": request.sample_index,
        "plan": plan_in_words(request.plan),
        "processors": processors_in_words(request.processors),
        "stop": list(request.stop),
    }


def generation(
    token_texts: TokenTexts,
    mask_id: int | None,
    request: Request,
    sample: Sample,
    judged: Frame | None,
    last: Frame | None,
    manifest: ResultManifest,
) -> Generation:
    """The result of a request.

    `judged` is the network's opinion on it and `last` the same through the request's processors,
    where the network can have an opinion and where frames are kept.
    """
    frames = sample.frames
    if judged is None:
        told = frames_of_masking(sample, mask_id)
        sure, frames = told[-1].probability, told if frames else ()
    else:
        sure = judged.probability
        if frames and last is not None:
            frames = (
                *frames,
                last._replace(step_index=frames[-1].step_index + 1, step="end", time=0.0),
            )
    trace = Trace(
        tokens=sample.tokens,
        protected=sample.protected,
        edits=sample.edits,
        frames=frames,
        calls=sample.calls,
    )
    return Generation(
        text="".join(token_texts(sample.text)),
        tokens=sample.text,
        filled=tuple(_filled(token_texts, request.tokens, sample.text)),
        confidence=tuple(sure[: len(sample.text)].tolist()),
        calls=sample.calls,
        trace=trace,
        manifest=manifest,
    )


def _filled(token_texts: TokenTexts, asked: Tokens, tokens: Sequence[int]) -> list[str]:
    """The text of each run of blanks."""
    position, filled = 0, list[str]()
    for blank, run in groupby(asked, key=lambda token: token is None):
        end = position + len(list(run))
        if blank:
            filled.append("".join(token_texts(tokens[position:end])))
        position = end
    return filled
