"""Sampling in blocks, from left to right: a block is finished before the next one begins.

A network that was trained in blocks reads finished ones by their keys and values, which the session
keeps; its blocks begin at multiples of their length, and a text can be longer than its context.
Other networks read all tokens again in each step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from gidd.errors import ConfigError
from gidd.sampling.plan import Plan
from gidd.sampling.progress import Event, OnStep
from gidd.sampling.request import Edit, Request, Sample
from gidd.sampling.session import Session


def next_block(
    session: Session, request: Request, tokens: tuple[int, ...], block_length: int
) -> Request | None:
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
    part = request.first(_block_end(session, request, done, block_length))
    block = replace(part, tokens=(*tokens, *part.tokens[done:]))
    return replace(block, block_length=block_length) if session.block_lengths else block


def _block_end(session: Session, request: Request, done: int, block_length: int) -> int:
    length = len(request.tokens)
    start = next((i for i in range(done, length) if request.tokens[i] is None), length)
    if session.block_lengths:
        start -= start % block_length
    return min(start + block_length, length)


def blocks_of(session: Session, request: Request, block_length: int) -> list[Request]:
    """Return the requests of all blocks; the tokens of earlier blocks are blanks."""
    cached = block_length if session.block_lengths else None
    blocks, done = list[Request](), 0
    while done < len(request.tokens):
        done = _block_end(session, request, done, block_length)
        blocks.append(replace(request.first(done), block_length=cached))
    return blocks


def cost_of_blocks(session: Session, request: Request, block_length: int, revise: int = 0) -> int:
    """Return the largest cost of a request that is sampled in blocks."""
    blocks = blocks_of(session, request, block_length)
    corrections = len(split_plan(request.plan)[1]) if revise else 0
    more = corrections * revise * block_length * len(blocks)  # of the plan, a block is counted
    return more + sum(map(session.cost, blocks))


def split_plan(plan: Plan) -> tuple[Plan, Plan]:
    """Return the steps of a plan down to its lowest noise, and the corrector steps after them."""
    first = len(plan)
    while first and plan.steps[first - 1].t == plan.steps[first - 1].s:
        first -= 1
    return Plan(plan.steps[:first]), Plan(plan.steps[first:])


async def sample_blocks(
    session: Session,
    request: Request,
    block_length: int,
    *,
    revise: int = 0,
    index: int = 0,
    on_step: OnStep | None = None,
    is_end: Callable[[tuple[int, ...]], bool] | None = None,
) -> Sample:
    """Sample the blanks of a request in blocks, from left to right (see `next_block`).

    After a stop token, or tokens for which `is_end` is true, there is no other block, and the
    sequence is shorter than requested. The steps of all blocks are counted together, and `index` is
    the one of their events. With `revise`, the corrector steps at the end of the plan read a block
    together with so many finished blocks before it, and may change these again.
    """
    plan, corrections = split_plan(request.plan) if revise else (request.plan, Plan(()))
    if revise and not (session.block_lengths and corrections):
        missing = (
            "a corrector at the end of the plan" if session.block_lengths else "such a network"
        )
        raise ConfigError(
            "revise must be 0 without a network that was trained in blocks and a corrector, got "
            f"{revise}. Use {missing}."
        )
    tokens, text, edits, forward_passes, num_steps = (), (), list[Edit](), 0, 0
    total = len(request.plan) * len(blocks_of(session, request, block_length))

    def report(events: Sequence[Event]) -> None:
        assert on_step is not None
        done = [num_steps + event.steps_done for event in events]
        pairs = zip(events, done, strict=True)
        on_step([replace(event, steps_done=n, num_steps=total) for event, n in pairs])

    while (block := next_block(session, request, tokens, block_length)) is not None:
        reads = [replace(block, plan=plan)]
        for read in reads:
            sample = await session.run(read, first_index=index, on_step=on_step and report)
            edits += [
                edit._replace(step_index=num_steps + edit.step_index) for edit in sample.edits
            ]
            forward_passes += sample.forward_passes
            num_steps += len(read.plan)
            tokens, text = sample.tokens, sample.text
            if corrections and len(reads) == 1:
                opened = replace(block, tokens=tokens, plan=corrections, num_open=revise + 1)
                given = enumerate(request.are_protected[: len(tokens)])
                flags = tuple(is_given or i < opened.row_start for i, is_given in given)
                reads.append(replace(opened, protected=flags, first_step=num_steps))
        if len(text) < len(tokens) or (is_end is not None and is_end(text)):
            break
    protected = request.are_protected[: len(tokens)]
    return Sample(tokens, text, protected, forward_passes, tuple(edits))
