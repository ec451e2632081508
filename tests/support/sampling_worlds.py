"""Networks and distributions for the tests of samplers."""

import torch
from scipy.stats import chi2
from torch import Tensor

from gidd.diffusion.schedule import MixingSchedule
from gidd.models import Denoiser, DiT, DiTConfig
from gidd.sampling import FunctionNetwork, Plan, Session, State, start
from gidd.sources import MarkovSource
from gidd.sources.base import Source
from gidd.sources.enumeration import SmallWorld
from gidd.vocab import Vocab
from support.session_runs import run_state

VOCAB = Vocab(4, mask_id=3)


def world_of(schedule: MixingSchedule) -> SmallWorld:
    """A source of three tokens and three positions, small enough to enumerate."""
    return SmallWorld(MarkovSource.random(3, 0.3, rng=1), schedule, length=3)


def exact(source: Source, schedule: MixingSchedule) -> FunctionNetwork:
    """The exact denoiser; t is kept below 1, where given tokens have probability 0."""
    return FunctionNetwork(lambda z, t: source.leave_one_out(schedule, t.clamp_max(1 - 1e-9), z))


def tabulated(world: SmallWorld) -> FunctionNetwork:
    """The exact denoiser of a small world at one time, looked up in a table of 64 rows."""

    def x_theta(z: Tensor, t: Tensor) -> Tensor:
        assert (t == t[0]).all()
        table = world.leave_one_out(world.noisy, world.times(t[0].clamp_max(1 - 1e-9)))
        return table[index_of(world, z)]

    return FunctionNetwork(x_theta)


def index_of(world: SmallWorld, z: Tensor) -> Tensor:
    """Index of each sequence among the world's noisy sequences."""
    place = world.schedule.vocab.size ** torch.arange(world.length - 1, -1, -1)
    return (z * place).sum(-1)


def blank_state(schedule: MixingSchedule, num: int, length: int, seed: int = 0) -> State:
    """A state without given tokens: samples 0 .. num - 1 of one seed."""
    tokens, index = torch.zeros(num, length, dtype=torch.int64), torch.arange(num)
    everywhere = torch.ones_like(tokens, dtype=torch.bool)
    seeds = torch.full_like(index, seed)
    return start(schedule, tokens, ~everywhere, everywhere, everywhere, seeds, index)


def sampled(world: SmallWorld, plan: Plan, num: int, seed: int = 0) -> State:
    """`num` samples of the world's exact denoiser."""
    state = blank_state(world.schedule, num, world.length, seed)
    session = Session(tabulated(world), world.schedule, batch_size=num)
    run_state(session, state, plan)
    return state


def counts(world: SmallWorld, tokens: Tensor) -> Tensor:
    """Number of occurrences of each noisy sequence of the world [Z]."""
    return torch.bincount(index_of(world, tokens), minlength=len(world.noisy)).double()


def chi_square_p(observed: Tensor, distribution: Tensor) -> float:
    """p-value of the counts under `distribution`; impossible sequences must not occur."""
    possible = distribution > 1e-12
    assert not observed[~possible].any(), "a sequence of probability zero occurred"
    expected = distribution[possible] / distribution[possible].sum() * observed.sum()
    rare = expected < 5  # pooled, as the statistic is not chi-square distributed there
    o, e = observed[possible], expected
    o = torch.cat([o[~rare], o[rare].sum()[None]])
    e = torch.cat([e[~rare], e[rare].sum()[None]])
    if int((e > 0).sum()) == 1:
        return 1.0
    statistic = ((o - e).square() / e.clamp_min(1e-9))[e > 0].sum()
    return float(chi2.sf(float(statistic), int((e > 0).sum()) - 1))


def small_dit(vocab: Vocab, max_length: int = 32) -> DiT:
    """A DiT whose forward pass takes milliseconds."""
    config = DiTConfig(
        vocab_size=vocab.size,
        max_length=max_length,
        width=32,
        num_layers=2,
        num_heads=2,
        time_width=16,
    )
    return DiT(config)


def random_denoiser(vocab: Vocab, max_length: int = 32, gain: float = 1.0) -> Denoiser:
    """A small DiT with random weights, whose x_theta is neither flat nor certain.

    A smaller gain of its norms gives predictions that are easier to match.
    """
    model = Denoiser(small_dit(vocab, max_length), vocab).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(std=0.3, generator=generator)
            if "norm" in name:
                parameter.add_(gain)
    return model
