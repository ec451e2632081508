"""Block-wise sampling: left to right, one block after the other.

The tokens of a block are sampled together; a finished block does not change any more. So text can
be shown in order while it is sampled: otherwise any token may still change until the last step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gidd.errors import ConfigError
from gidd.sampling.engine import Engine, OnStep
from gidd.sampling.jobs import Jobs
from gidd.sampling.request import Request, Sample
from gidd.sampling.trace import Edit

OnTokens = Callable[[tuple[int, ...]], None]
"""Called with the tokens of a finished block, and those given before it."""


async def sample_blocks(
    jobs: Jobs,
    engine: Engine,
    request: Request,
    block_length: int,
    *,
    on_step: OnStep | None = None,
    on_tokens: OnTokens | None = None,
) -> Sample:
    """Sample the blanks of a request in blocks, each with all steps of its plan.

    A block is conditioned on what is to its left, and on nothing to its right. After a stop token
    no other block is sampled, and the sequence is shorter than asked for.
    """
    if request.protected is not None:
        raise ConfigError(
            "request.protected must be None for block-wise sampling, which fills blanks and keeps "
            "given tokens. Use a corrector for tokens that were given."
        )
    blank = [i for i, token in enumerate(request.tokens) if token is None]
    tokens: tuple[int, ...] = ()
    text, edits, calls, num_steps = tokens, list[Edit](), 0, 0
    while len(tokens) < len(request.tokens) and len(text) == len(tokens):
        start = next((i for i in blank if i >= len(tokens)), len(request.tokens))
        end = min(start + block_length, len(request.tokens))
        part = replace(request, tokens=request.tokens[:end])
        given = replace(request, tokens=(*tokens, *request.tokens[len(tokens) : end]))
        (sample,) = await jobs.sample(engine, [given], on_step=on_step)
        edits += [edit._replace(step_index=num_steps + edit.step_index) for edit in sample.edits]
        calls, num_steps, done = calls + sample.calls, num_steps + len(request.plan), len(text)
        tokens, text = sample.tokens, part.truncate_at_stop(sample.tokens)
        if on_tokens is not None:
            on_tokens(text[done:])
    protected = request.are_protected[: len(tokens)]
    return Sample(tokens, text, protected, calls, tuple(edits))
