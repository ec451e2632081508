"""Training on batches with given tokens: the same on any ranks, and from Python."""

import statistics
import time
from dataclasses import replace

import pytest
import torch
from support.ranks import run_ranks
from support.training_runs import tiny_run

from gidd.data.batch import Batch
from gidd.training import loop
from gidd.training.build import build_state
from gidd.training.metrics import summary
from gidd.training.parallel import DDP, FSDP
from gidd.training.world import open_world
from gidd.vocab import Vocab

VOCAB = Vocab(40, mask_id=39)
RUN = tiny_run(None, steps=50, accumulate=2)
SAMPLES, LENGTH = 8, 16


def batch_of(world, step):
    """Prompts of other lengths in every row: ranks have other numbers of targets."""
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(0, 6, (SAMPLES, 1), generator=generator) + torch.arange(LENGTH) % 30
    lengths = torch.randint(0, LENGTH, (SAMPLES, 1), generator=generator)
    given = torch.arange(LENGTH) < lengths
    numbers = step * SAMPLES + torch.arange(SAMPLES)
    own = slice(world.rank * SAMPLES // world.size, (world.rank + 1) * SAMPLES // world.size)
    return Batch(tokens, tokens >= 0, numbers, given).map(lambda part: part[own])


def train(run):
    """The losses of all steps, and the last gradient norm."""
    torch.set_num_threads(1)
    with open_world("cpu", 600) as world:
        state, losses, norm = build_state(run, VOCAB, world), [], 0.0
        for step in range(run.train.steps):
            found = loop.gradients(run, world, state, batch_of(world, step))
            sums, norm, _ = found.read()
            losses.append(summary(sums)["loss"])
            assert sums["tokens"] < SAMPLES * LENGTH
            loop.update(run, state, found)
        return losses, norm


@pytest.mark.long
def test_losses_do_not_depend_on_the_ranks():
    """The mean is over the targets of all ranks, of which each has another number."""
    ((alone, norm),) = run_ranks(train, 1, RUN)
    assert sum(alone[-10:]) < sum(alone[:10])
    for parallel in (DDP(), FSDP()):
        for losses, other in run_ranks(train, 2, replace(RUN, parallel=parallel)):
            assert losses == pytest.approx(alone, rel=1e-4)
            assert other == pytest.approx(norm, rel=1e-3)


@pytest.mark.perf
def test_a_half_given_batch_takes_no_more_time():
    """CPU time of steps in alternation, medians; the output layer skips given rows."""
    torch.set_num_threads(1)
    vocab, run = Vocab(8192, mask_id=8191), tiny_run(None, steps=50)
    run = replace(run, data=replace(run.data, length=128))
    tokens = torch.randint(8190, (8, 128), generator=torch.Generator().manual_seed(0))
    plain = Batch(tokens, tokens >= 0, torch.arange(8))
    batches = [plain, plain._replace(given=(torch.arange(128) < 64).expand(8, 128))]
    seconds = [[], []]
    with open_world("cpu", 600) as world:
        state = build_state(run, vocab, world)
        for number in range(42):
            start = time.process_time()
            found = loop.gradients(run, world, state, batches[number % 2])
            found.read()
            loop.update(run, state, found)
            seconds[number % 2].append(time.process_time() - start)
    ratio = statistics.median(seconds[1]) / statistics.median(seconds[0])
    print(f"half given / not given: {ratio:.3f}")
    assert ratio <= 1.02
