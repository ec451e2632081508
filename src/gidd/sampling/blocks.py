"""Sampling in blocks, from left to right: a block is finished before the next one begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from gidd.errors import ConfigError
from gidd.sampling.progress import Event, OnStep
from gidd.sampling.request import Edit, Request, Sample
from gidd.sampling.session import Session


def next_block(request: Request, tokens: tuple[int, ...], block_length: int) -> Request | None:
    """Return the request of the block after `tokens`; None if all blocks are finished.

    Each block has all steps of the plan. A finished block does not change, and a block is
    conditioned on the tokens to its left only.
    """
    if request.protected is not None:
        raise ConfigError(
            "request.protected must be None for block-wise sampling, which keeps given tokens. "
            "Use a corrector for tokens that were given."
        )
    done = len(tokens)
    if done == len(request.tokens):
        return None
    part = request.first(_block_end(request, done, block_length))
    return replace(part, tokens=(*tokens, *part.tokens[done:]))


def _block_end(request: Request, done: int, block_length: int) -> int:
    length = len(request.tokens)
    start = next((i for i in range(done, length) if request.tokens[i] is None), length)
    return min(start + block_length, length)


def blocks_of(request: Request, block_length: int) -> list[Request]:
    """Return the requests of all blocks; the tokens of earlier blocks are blanks."""
    blocks, done = list[Request](), 0
    while done < len(request.tokens):
        done = _block_end(request, done, block_length)
        blocks.append(request.first(done))
    return blocks


def cost_of_blocks(session: Session, request: Request, block_length: int) -> int:
    """Return the largest cost of a request that is sampled in blocks."""
    return sum(map(session.cost, blocks_of(request, block_length)))


async def sample_blocks(
    session: Session,
    request: Request,
    block_length: int,
    *,
    index: int = 0,
    on_step: OnStep | None = None,
    is_end: Callable[[tuple[int, ...]], bool] | None = None,
) -> Sample:
    """Sample the blanks of a request in blocks, from left to right (see `next_block`).

    After a stop token, or tokens for which `is_end` is true, there is no other block, and the
    sequence is shorter than requested. The steps of all blocks are counted together, and `index` is
    the one of their events.
    """
    tokens, text, edits, forward_passes, num_steps = (), (), list[Edit](), 0, 0
    total = len(request.plan) * len(blocks_of(request, block_length))

    def report(events: Sequence[Event]) -> None:
        assert on_step is not None
        done = [num_steps + event.steps_done for event in events]
        pairs = zip(events, done, strict=True)
        on_step([replace(event, steps_done=n, num_steps=total) for event, n in pairs])

    while (block := next_block(request, tokens, block_length)) is not None:
        sample = await session.run(block, first_index=index, on_step=on_step and report)
        edits += [edit._replace(step_index=num_steps + edit.step_index) for edit in sample.edits]
        forward_passes += sample.forward_passes
        num_steps += len(request.plan)
        tokens, text = sample.tokens, sample.text
        if len(text) < len(tokens) or (is_end is not None and is_end(text)):
            break
    protected = request.are_protected[: len(tokens)]
    return Sample(tokens, text, protected, forward_passes, tuple(edits))
