"""The bound over blocks: -log p(x) <= the sum of the NELBOs of the blocks, given what is before."""

import math

import pytest
import torch
from support.cases import few

from gidd.diffusion import HybridSchedule, MaskedSchedule, UniformSchedule
from gidd.sources import HiddenMarkovSource, MarkovSource
from gidd.sources.enumeration import SmallWorld, block_worlds, exact_nodes
from gidd.vocab import Vocab

LENGTH = 4
MASKED = Vocab(3, mask_id=2)
SCHEDULES = {
    "masked": MaskedSchedule(MASKED),
    "hybrid": HybridSchedule(MASKED, 0.2),
    "uniform": UniformSchedule(Vocab(2)),
}
SOURCES = {
    "markov": MarkovSource.random(2, 0.5, rng=1),
    "hidden": HiddenMarkovSource.random(3, 2, 0.5, rng=1),
}
NODES = exact_nodes(96)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("block_length", [1, 2, 3, 4])
def test_entropies_of_blocks_given_what_is_before_add_up(source, block_length):
    worlds = block_worlds(SOURCES[source], SCHEDULES["masked"], LENGTH, block_length)
    blocks = [range(w.length)[len(w.given) :] for w in worlds]
    assert [i for block in blocks for i in block] == list(range(LENGTH))
    whole = SmallWorld(SOURCES[source], SCHEDULES["masked"], LENGTH)
    assert math.fsum(w.entropy for w in worlds) == pytest.approx(whole.entropy, abs=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "source", "block_length"), few(SCHEDULES, SOURCES, [1, 2, 4], every=9)
)
def test_the_optimal_denoiser_is_tight_at_every_block_length(name, source, block_length):
    worlds = block_worlds(SOURCES[source], SCHEDULES[name], LENGTH, block_length)
    nelbo = math.fsum(world.nelbo(world.leave_one_out, NODES) for world in worlds)
    entropy = SmallWorld(SOURCES[source], SCHEDULES[name], LENGTH).entropy
    assert nelbo == pytest.approx(entropy, abs=1e-8)


def tempered(world):
    """A denoiser that is too sure of itself."""

    def denoiser(z, t):
        p = world.leave_one_out(z, t).square()
        total = p.sum(-1, keepdim=True)
        return p / total.masked_fill(total == 0, 1)

    return denoiser


@pytest.mark.slow
@pytest.mark.parametrize("name", few(SCHEDULES, every=3))
def test_blocks_of_one_token_are_an_autoregressive_likelihood(name):
    source = SOURCES["hidden"]
    worlds = block_worlds(source, SCHEDULES[name], LENGTH, 1)
    nelbo = math.fsum(world.nelbo(tempered(world), NODES) for world in worlds)
    # -E log p(x) of the model that draws each token from the tempered distribution
    cost = torch.zeros(())
    for world in worlds:
        place = world.length - 1
        predicted = tempered(world)(world.clean, torch.zeros(len(world.clean)))[:, place]
        own = predicted.gather(-1, world.clean[:, place, None]).squeeze(-1)
        cost = cost - world.clean_distribution @ own.log()
    assert nelbo == pytest.approx(float(cost), abs=1e-8)
