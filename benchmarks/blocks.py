"""Cost of text in blocks: of a training step, and of a block far into a text.

    OMP_NUM_THREADS=1 python benchmarks/blocks.py --json

`step_ratio`: time of a training step in blocks of 16 divided by that of an ordinary step, for a DiT
of 6 layers and hidden size 256, 8 rows of 256 tokens, and a vocabulary of 4,096.
`block_64_ratio`: time of the 64th block of 32 tokens of a text, divided by that of the 1st, with
the cache; `block_64_ratio_without`: the same if keys and values are not kept.
`overhead`: time of a block at a context of 2,048 tokens divided by that of as many bare forward
passes of the block with the same keys and values, and one that computes its own.
`bytes_per_token`: memory of the cache, measured; `bytes_computed`: 2 x layers x hidden size x 4.
Times are CPU seconds of the process, which other processes hardly change; medians.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median

import torch
from script import parser_of, size

from gidd.data.batch import Batch
from gidd.diffusion import HybridSchedule
from gidd.diffusion.times import even_times
from gidd.diffusion.weighting import DynamicWeighting
from gidd.models import Denoiser, DiT, DiTConfig
from gidd.models.context import FinishedBlocks
from gidd.sampling import Request, Session, sampling_plan
from gidd.training import Corruption
from gidd.training.objectives import nelbo_objective
from gidd.vocab import Vocab

VOCAB = Vocab(size(4096, 32), mask_id=0)
SCHEDULE = HybridSchedule(VOCAB, 0.1)
BLOCK, CONTEXT = size(32, 4), size(4096, 64)
FAR = size(2048, 16)
STEPS = size(16, 2)
ROUNDS = size(5, 1)


def denoiser() -> Denoiser:
    """Return a network with small random weights."""
    torch.manual_seed(0)
    config = DiTConfig(
        vocab_size=VOCAB.size,
        max_length=CONTEXT,
        width=size(256, 16),
        num_layers=size(6, 1),
        num_heads=size(4, 2),
    )
    network = DiT(config)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.02)
    return Denoiser(network, VOCAB)


def timed(work: Callable[[], object]) -> float:
    """Return the CPU seconds that a call takes, in all threads."""
    start = time.process_time()
    work()
    return time.process_time() - start


def step_ratio() -> float:
    """Return the time of a training step in blocks over that of an ordinary one."""
    model, rows, length = denoiser().train(), size(8, 2), size(256, 16)
    tokens = torch.randint(1, VOCAB.size, (rows, length))
    batch = Batch(tokens, torch.ones_like(tokens, dtype=torch.bool), torch.arange(rows))
    plain = Corruption(schedule=SCHEDULE, weighting=DynamicWeighting(SCHEDULE))
    in_blocks = replace(plain, block_lengths=(size(16, 4),))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step(corrupt: Corruption) -> None:
        loss = nelbo_objective(model, corrupt(batch, 0, rows, 1 / tokens.numel()))
        loss.loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    pairs = [
        (timed(lambda: step(in_blocks)), timed(lambda: step(plain))) for _ in range(ROUNDS + 1)
    ]
    return median(ours / plain_time for ours, plain_time in pairs[1:])


def block_times(cache_bytes: int) -> tuple[float, float, int]:
    """Return the seconds of the 1st and the 64th block, and the bytes of the cache per token."""
    session = Session(
        denoiser().eval(),
        SCHEDULE,
        max_length=CONTEXT,
        block_lengths=(BLOCK,),
        cache_bytes=cache_bytes,
    )
    plan, far = sampling_plan(even_times(STEPS)), size(63, 4)
    first, last = list[float](), list[float]()
    for index in range(ROUNDS if cache_bytes else 1):
        tokens = torch.randint(1, VOCAB.size, (far * BLOCK,)).tolist()
        for given, times in (((), first), (tuple(tokens), last)):
            text = Request(tokens=(*given, *[None] * BLOCK), plan=plan, sample_index=index)
            block = replace(text, block_length=BLOCK)
            if given and cache_bytes:  # all but the page of the block before are there already
                before = replace(block, tokens=(*given[:-BLOCK], *[None] * BLOCK))
                session.sample([before])
            times.append(timed(lambda block=block: session.sample([block])))
    kept = session.cache.num_bytes // max(1, len(session.cache) * BLOCK)
    return median(first), median(last), kept


def overhead() -> float:
    """Return the time of a block after FAR tokens over that of its bare forward passes."""
    model, plan = denoiser().eval(), sampling_plan(even_times(STEPS))
    session = Session(model, SCHEDULE, max_length=CONTEXT, block_lengths=(BLOCK,))
    context = FinishedBlocks(1, FAR, BLOCK)
    page = torch.randn(size(6, 1), 2, size(4, 2), BLOCK, size(64, 8))
    for start in range(0, FAR, BLOCK):
        context.put(0, start, page)
    context.start[:] = FAR
    z, t = torch.randint(1, VOCAB.size, (1, BLOCK)), torch.full((1,), 0.5, dtype=torch.float64)

    @torch.no_grad()
    def bare() -> None:
        for _ in range(STEPS):
            model.distribution(model.hidden(z, t, context=context)[0])
        model.keys_and_values(z, context)

    ratios = list[float]()
    tokens = tuple(torch.randint(1, VOCAB.size, (FAR,)).tolist())
    for index in range(ROUNDS + 1):
        text = Request(tokens=(*tokens, *[None] * BLOCK), plan=plan, sample_index=index)
        block = replace(text, block_length=BLOCK)
        (sample,) = session.sample([replace(block, tokens=(*tokens[:-BLOCK], *[None] * BLOCK))])
        after = (*sample.tokens, *[None] * BLOCK)  # the page before it is computed, as in a text
        after_block = replace(block, tokens=after)
        ratio = timed(partial(session.sample, [after_block]))
        ratios.append(ratio / timed(bare))
    return median(ratios[1:])


def main() -> None:
    """Print the figures."""
    as_json = parser_of(__doc__).parse_args().json
    torch.set_num_threads(1)
    first, last, kept = block_times(1 << 30)
    without = block_times(0)
    figures = {
        "step_ratio": step_ratio(),
        "first_tokens_per_second": BLOCK / first,
        "block_64_ratio": last / first,
        "block_64_ratio_without": without[1] / without[0],
        "overhead": overhead(),
        "bytes_per_token": kept,
        "bytes_computed": 2 * size(6, 1) * size(256, 16) * 4,
    }
    for name, value in figures.items():
        print(f"{name} {value:.4g}")
    if as_json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
