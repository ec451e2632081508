"""Blocks with a cache of keys and values: the same texts with any cache, alone and in company."""

from dataclasses import dataclass, replace

import pytest
import torch
from support.block_networks import LENGTH, VOCAB, block_denoiser
from support.sampling_worlds import chi_square_p, counts, world_of
from torch import Tensor

from gidd.diffusion import HybridSchedule, MaskedSchedule
from gidd.diffusion.times import even_times, sine_times
from gidd.errors import ConfigError
from gidd.models.context import FinishedBlocks
from gidd.sampling import (
    FunctionNetwork,
    GibbsSweep,
    Guidance,
    NetworkPredict,
    PosteriorCorrection,
    Request,
    Session,
    Temperature,
    Threshold,
    blanks,
    corrector_plan,
    gather,
    prompt,
    run_sync,
    sample,
    sample_blocks,
    sampling_plan,
    start,
)
from gidd.sampling.blocks import next_block
from gidd.sampling.cache import padded_to

SCHEDULE = HybridSchedule(VOCAB, 0.2)
LENGTHS = (4, 8, 12)
PLANS = [
    sampling_plan(even_times(3)),
    sampling_plan(sine_times(4), Threshold(fill=0.6)),
    sampling_plan(even_times(2), correctors=(GibbsSweep(distance=2),)),
    sampling_plan(even_times(3)) + corrector_plan(PosteriorCorrection(), 2, 0.01),
]
BYTES_PER_TOKEN = 2 * 2 * 32 * 4
"""Keys and values of two layers, 32 numbers of 4 bytes each."""


@pytest.fixture(autouse=True)
def short_capacity(monkeypatch):
    monkeypatch.setattr("gidd.sampling.cache.CAPACITY", 16)


def session_of(name="mixing", **settings) -> Session:
    options = {"max_length": LENGTH, "block_lengths": LENGTHS}
    return Session(block_denoiser(name, 0.4), SCHEDULE, **{**options, **settings})


def requests(num: int) -> list[tuple[Request, int, int]]:
    """Texts of mixed lengths, prompts, plans, seeds and processors; block length, and `revise`."""
    cases = []
    for k in range(num):
        prefix = tuple((7 * k + 3 * i) % 12 for i in range((0, 5, 12, 3)[k % 4]))
        request = Request(
            tokens=prompt(14 + 5 * (k % 7), prefix),
            plan=PLANS[k % len(PLANS)],
            seed=k % 3,
            sample_index=k,
            stop=(11,) if k % 5 == 0 else (),
            processors=(Temperature(0.8),) if k % 3 == 0 else (),
        )
        cases.append((request, 8 if k % 2 else 4, int(k % 8 in (3, 7) and k % 4 == 3)))
    return cases


def texts(session: Session, cases, at_once: int = 64):
    runs = (sample_blocks(session, r, n, revise=n == 4 and revise) for r, n, revise in cases)
    return run_sync(gather(runs, at_once))


@pytest.mark.parametrize("num", [4, pytest.param(200, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", ["mixing", pytest.param("converted", marks=pytest.mark.long)])
def test_texts_depend_on_no_cache_and_no_company(name, num):
    """Also where requests are parked for shorter ones, and where blocks are opened again."""
    cases = requests(num)
    expected = texts(session_of(name), cases, at_once=1)
    assert texts(session_of(name, cache_bytes=0), cases, at_once=1) == expected
    assert texts(session_of(name, cache_bytes=20 * BYTES_PER_TOKEN), cases) == expected
    # products of other shapes have other bits: batches of one size agree
    for rows in (2, 4) if num > 4 else (4,):
        together = texts(session_of(name, batch_size=rows), cases)
        for k in range(rows - 1, num, 4):
            alone = texts(session_of(name, batch_size=rows, cache_bytes=0), cases[k : k + 1])
            assert alone == [together[k]]


def test_a_session_is_the_plain_loop_with_keys_and_values_from_scratch():
    session, plan = session_of(), PLANS[0]
    request = Request(tokens=prompt(22, (1, 2, 3, 4, 5)), plan=plan, seed=4)
    expected = run_sync(sample_blocks(session, request, 8)).tokens
    tokens = ()
    while (block := next_block(session, request, tokens, 8)) is not None:
        pages, first = [], block.row_start
        for begin in range(0, first + 8, 8):
            context = FinishedBlocks(1, padded_to(begin), 8)
            for number, page in enumerate(pages):
                context.put(0, 8 * number, page)
            context.start[:], context.before[:] = begin, tokens[begin - 1] if begin else -1
            if begin < first:
                x = torch.tensor([tokens[begin : begin + 8]])
                with torch.no_grad():
                    pages.append(session.network.keys_and_values(x, context))
        own = [*block.tokens[first:], *[0] * (first + 8 - len(block.tokens))]
        given = torch.tensor([[v is not None for v in own]])
        valid = torch.arange(8)[None] < len(block.tokens) - first
        state = start(
            SCHEDULE,
            torch.tensor([[v or 0 for v in own]]),
            given,
            ~given,
            valid,
            torch.tensor([4]),
            torch.tensor([0]),
            torch.tensor([first]),
        )
        predict = NetworkPredict(session.network, VOCAB.size, context=context)
        with torch.no_grad():
            row = sample(predict, SCHEDULE, state, plan).tokens[0].tolist()
        tokens = (*tokens[:first], *row[: len(block.tokens) - first])
    assert tokens == expected


@dataclass
class ExactInBlocks:
    """The optimal denoiser of a source, whose keys are tokens; it counts the pages computed."""

    world: object
    pages: int = 0
    accepts_context = accepts_padding = True

    def keys_and_values(self, x: Tensor, context: FinishedBlocks) -> Tensor:
        self.pages += 1
        return x.double().expand(1, 2, 1, -1)[..., None].contiguous()

    def hidden(self, z: Tensor, t: Tensor, valid=None, context=None) -> Tensor:
        size = int(context.start[0])
        if size:
            before = context.stored[0, 0, :, 0, :size, 0].long()
            z = torch.cat([before, z], dim=1)
        given = torch.arange(z.shape[1]) < size
        times = t.clamp_max(1 - 1e-9)
        x_theta = self.world.source.leave_one_out(self.world.schedule, times, z, given)
        return x_theta[:, size:]

    def distribution(self, hidden: Tensor) -> Tensor:
        return hidden


@pytest.mark.slow
@pytest.mark.parametrize("noise", [pytest.param("masked", marks=pytest.mark.long), "hybrid"])
def test_blocks_with_the_optimal_denoiser_are_samples_of_the_source(noise):
    from support.sampling_worlds import VOCAB as SMALL

    schedule = MaskedSchedule(SMALL) if noise == "masked" else HybridSchedule(SMALL, 0.2)
    world = replace(world_of(schedule), length=4)
    network, num = ExactInBlocks(world), 500
    session = Session(network, schedule, batch_size=250, max_length=8, block_lengths=(2, 4))
    plan = sampling_plan(sine_times(20))
    runs = (
        sample_blocks(session, Request(tokens=blanks(4), plan=plan, sample_index=i), 2)
        for i in range(num)
    )
    tokens = torch.tensor([text.tokens for text in run_sync(gather(runs, num))])
    assert chi_square_p(counts(world, tokens), world.data_distribution) > 1e-3
    assert network.pages == len({tuple(row) for row in tokens[:, :2].tolist()})


def test_a_prefix_is_computed_once_and_a_chat_continues_its_cache():
    session = session_of()
    prefix = tuple(range(9))
    cases = [
        (Request(tokens=prompt(14, prefix), plan=PLANS[0], sample_index=i), 4, 0) for i in range(3)
    ]
    answers = texts(session, cases, at_once=1)
    assert session.cache.misses == 8 + 4 * len({a.tokens[:12] for a in answers})
    before = session.cache.misses
    turn = (*answers[0].tokens, 1, 2, 3)
    texts(session, [(Request(tokens=prompt(22, turn), plan=PLANS[0]), 4, 0)])
    assert session.cache.misses == before + 20 - 12  # its pages after those of the first turn
    assert session.cache.num_bytes == session.cache.misses * BYTES_PER_TOKEN


@pytest.mark.parametrize("pages", [0, 1, 3])
def test_the_cache_keeps_its_limit(pages):
    session = session_of(cache_bytes=pages * 4 * BYTES_PER_TOKEN)
    sizes = []
    request = Request(tokens=blanks(24), plan=PLANS[0])
    run_sync(
        sample_blocks(session, request, 4, on_step=lambda _: sizes.append(session.cache.num_bytes))
    )
    assert max(sizes) == pages * 4 * BYTES_PER_TOKEN


def test_a_text_is_longer_than_the_context():
    request = Request(tokens=prompt(75, (1, 2)), plan=PLANS[0], seed=2)
    session = session_of()
    text = run_sync(sample_blocks(session, request, 4))
    assert len(text.tokens) == 75
    assert run_sync(sample_blocks(session_of(cache_bytes=0), request, 4)) == text
    tokens, last = (), 0
    while (block := next_block(session, request, tokens, 4)) is not None:
        tokens, begin = text.tokens[: len(block.tokens)], block.window_start(LENGTH)
        assert begin % 4 == 0 and block.row_start + 4 - begin <= LENGTH
        assert begin == last or begin == last + LENGTH // 2
        last = begin
    assert last > 0
    # what is left out is not read
    tail = replace(block_of(text.tokens, 72), plan=PLANS[0], seed=2)
    other = tail.tokens[:last]
    changed = replace(tail, tokens=(*((v + 1) % 12 for v in other), *tail.tokens[last:]))
    assert session.sample([changed])[0].tokens[72:] == session.sample([tail])[0].tokens[72:]


def block_of(tokens, begin) -> Request:
    given = (*tokens[:begin], *[None] * (len(tokens) - begin))
    return Request(tokens=given, plan=PLANS[0], block_length=4)


def test_blocks_are_opened_again_and_every_edit_is_in_the_log():
    plan = PLANS[0] + corrector_plan(PosteriorCorrection(), 2, 0.3)
    changed = 0
    for seed in range(3):
        request = Request(tokens=prompt(24, (1, 2, 3)), plan=plan, seed=seed)
        session = session_of("dit")
        text = run_sync(sample_blocks(session, request, 4, revise=2))
        if seed == 0:
            assert text == run_sync(
                sample_blocks(session_of("dit", cache_bytes=0), request, 4, revise=2)
            )
        tokens, ends = {}, {}
        for edit in text.edits:
            if edit.position in tokens:
                assert tokens[edit.position] == edit.old
            tokens[edit.position] = edit.new
            block = edit.step_index // len(plan)
            is_earlier = edit.position < 4 * block
            assert not is_earlier or edit.step == "posterior_correction"
            assert edit.position >= 4 * (block - 2)
            changed += is_earlier
            ends[edit.position] = edit.new
        assert all(text.tokens[place] == token for place, token in ends.items())
        assert text.tokens[:3] == (1, 2, 3)
    assert changed


def test_the_end_of_a_text_ends_its_request():
    session = session_of()
    whole = run_sync(sample_blocks(session, Request(tokens=blanks(24), plan=PLANS[0]), 4))
    stop = whole.tokens[9]
    first = whole.tokens.index(stop)
    stopped = Request(tokens=blanks(24), plan=PLANS[0], stop=(stop,))
    text = run_sync(sample_blocks(session, stopped, 4))
    assert text.text == whole.tokens[:first] and len(text.tokens) == 4 * (first // 4 + 1)


BLOCK = Request(tokens=(*range(8), None), plan=PLANS[0], block_length=4)
REFUSED = {
    "no context": (
        lambda: Session(FunctionNetwork(lambda z, t: z), SCHEDULE, block_lengths=(4,)),
        "block_lengths must be ()",
    ),
    "not trained": (
        lambda: session_of(block_lengths=()).sample([BLOCK]),
        "request.block_length must be None",
    ),
    "whole": (
        lambda: session_of().sample([Request(tokens=blanks(13), plan=PLANS[0])]),
        "at most 12 tokens can be read together",
    ),
    "long": (
        lambda: session_of().sample([replace(BLOCK, num_open=4)]),
        "at most 12 tokens can be read together",
    ),
    "half": (
        lambda: session_of(max_length=12).sample([replace(BLOCK, num_open=2)]),
        "must be at most half of the context",
    ),
    "blanks": (
        lambda: session_of().sample([replace(BLOCK, tokens=(None, *BLOCK.tokens[1:]))]),
        "request.tokens must have no blanks before",
    ),
    "open": (
        lambda: session_of().sample([replace(BLOCK, block_length=None, num_open=2)]),
        "request.num_open must be 1 without blocks",
    ),
    "guidance": (
        lambda: session_of().sample([replace(BLOCK, guidance=Guidance(2.0, (12,) * 8 + (None,)))]),
        "request.guidance (guidance_scale) must be left out",
    ),
    "revise": (
        lambda: run_sync(
            sample_blocks(session_of(), Request(tokens=blanks(8), plan=PLANS[0]), 4, revise=1)
        ),
        "revise must be 0 without",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_in_blocks_is_refused(name):
    make, message = REFUSED[name]
    with pytest.raises(ConfigError, match=message.replace("(", r"\(").replace(")", r"\)")):
        make()
