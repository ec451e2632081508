"""Texts in blocks: each is what a request for it alone gives, with what is before it."""

import pytest
import torch
from support.counting_network import CountingNetwork
from support.sampling_worlds import random_denoiser

from gidd.diffusion.schedules import MaskedSchedule
from gidd.diffusion.times import even_times
from gidd.errors import ConfigError
from gidd.sampling import (
    Request,
    Session,
    Threshold,
    blanks,
    gather,
    prompt,
    run_sync,
    sample_blocks,
    sampling_plan,
)
from gidd.sampling.blocks import next_block
from gidd.vocab import Vocab

VOCAB = Vocab(17, mask_id=16)
SCHEDULE = MaskedSchedule(VOCAB)
MODEL = random_denoiser(VOCAB, max_length=32)
PLAN = sampling_plan(even_times(4), Threshold(fill=1.0))
BLANKS = blanks(4)


def request(index: int, tokens=BLANKS) -> Request:
    return Request(tokens=tokens, plan=PLAN, sample_index=index)


def test_blocks_are_sampled_from_left_to_right():
    session, parts, tokens = Session(MODEL, SCHEDULE), [], ()
    given = prompt(11, (1, 2))
    sample = run_sync(sample_blocks(session, request(0, given), 4))
    assert sample.tokens == sample.text and sample.tokens[:2] == (1, 2)
    while (block := next_block(session, request(0, given), tokens, 4)) is not None:
        parts.append(block)
        tokens = session.sample([block])[0].tokens
    assert [len(part.tokens) for part in parts] == [6, 10, 11]
    assert tokens == sample.tokens
    assert sample.forward_passes == 4 + 4 + 1 and len(sample.tokens) == 11
    # a block is what a request for it alone gives, with what is before it
    (again,) = session.sample([request(0, prompt(10, sample.tokens[:6]))])
    assert again.tokens == sample.tokens[:10]
    tokens = [16] * 11
    tokens[:2] = 1, 2
    for edit in sample.edits:
        assert tokens[edit.position] == edit.old
        tokens[edit.position] = edit.new
    assert tuple(tokens) == sample.tokens
    assert [edit.step_index for edit in sample.edits] == sorted(e.step_index for e in sample.edits)


def test_no_block_follows_a_stop_token():
    session = Session(MODEL, SCHEDULE)
    whole = run_sync(sample_blocks(session, request(0, blanks(12)), 3))
    stop = whole.tokens[4]
    first = whole.tokens.index(stop)
    stopped = Request(tokens=blanks(12), plan=PLAN, stop=(stop,))
    sample = run_sync(sample_blocks(session, stopped, 3))
    assert sample.text == whole.tokens[:first]
    assert len(sample.tokens) == 3 * (first // 3 + 1) < 12
    assert torch.tensor(sample.protected).logical_not().all()


def test_many_block_wise_samples_share_forward_passes():
    network = CountingNetwork(MODEL)
    session = Session(network, SCHEDULE, batch_size=4, pad_to_multiple_of=16, max_length=32)

    together = run_sync(gather(sample_blocks(session, request(i, blanks(8)), 4) for i in range(4)))
    assert network.forward_passes == 8
    assert run_sync(sample_blocks(session, request(2, blanks(8)), 4)) == together[2]


def test_tokens_that_may_change_are_not_sampled_in_blocks():
    session = Session(MODEL, SCHEDULE)
    wrong = Request(tokens=(1, 2), plan=PLAN, protected=(False, False))
    with pytest.raises(ConfigError, match=r"request.protected must be None for block-wise"):
        run_sync(sample_blocks(session, wrong, 4))


def test_events_count_the_steps_of_all_blocks():
    events = []
    run_sync(
        sample_blocks(
            Session(MODEL, SCHEDULE), request(0, blanks(8)), 4, index=5, on_step=events.extend
        )
    )
    assert [(event.index, event.steps_done, event.num_steps) for event in events] == [
        (5, steps, 8) for steps in range(1, 9)
    ]
