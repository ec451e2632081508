"""Networks and laws for the tests of samplers."""

import torch
from scipy.stats import chi2
from torch import Tensor

from gidd.diffusion.schedule import MixingSchedule
from gidd.models import Denoiser, DiT, DiTConfig
from gidd.sampling import Canvas, Engine, FunctionNetwork, Plan
from gidd.sources import MarkovSource
from gidd.sources.base import Source
from gidd.sources.enumeration import SmallWorld
from gidd.vocab import Vocab

VOCAB = Vocab(4, mask_id=3)


def world_of(schedule: MixingSchedule) -> SmallWorld:
    """Three tokens, three positions: the source of the exact tables."""
    return SmallWorld(MarkovSource.random(3, 0.3, rng=1), schedule, length=3)


def exact(source: Source, schedule: MixingSchedule) -> FunctionNetwork:
    """The best possible denoiser. Given tokens are impossible at t = 1 itself, so it never is."""
    return FunctionNetwork(lambda z, t: source.leave_one_out(schedule, t.clamp_max(1 - 1e-9), z))


def tabulated(world: SmallWorld) -> FunctionNetwork:
    """The same for all texts of a small world at one time: a table of 64 rows is looked up."""

    def x_theta(z: Tensor, t: Tensor) -> Tensor:
        assert (t == t[0]).all()
        table = world.leave_one_out(world.noisy, world.times(t[0].clamp_max(1 - 1e-9)))
        return table[number_of(world, z)]

    return FunctionNetwork(x_theta)


def number_of(world: SmallWorld, z: Tensor) -> Tensor:
    """Which of the world's noisy texts each is."""
    place = world.schedule.vocab.size ** torch.arange(world.length - 1, -1, -1)
    return (z * place).sum(-1)


def sampled(world: SmallWorld, plan: Plan, num: int, seed: int = 0) -> Canvas:
    """`num` texts of the world's exact denoiser."""
    canvas = Canvas.blank(world.schedule, num, world.length, seed)
    engine = Engine(tabulated(world), world.schedule, rows_per_call=num)
    engine.run(canvas, plan)
    return canvas


def counts(world: SmallWorld, tokens: Tensor) -> Tensor:
    """How often each noisy text of the world occurs [Z]."""
    return torch.bincount(number_of(world, tokens), minlength=len(world.noisy)).double()


def chi_square_p(observed: Tensor, law: Tensor) -> float:
    """Chance of counts as far from `law` as these; what the law forbids must not occur."""
    possible = law > 1e-12
    assert not observed[~possible].any(), "a text of probability zero occurred"
    expected = law[possible] / law[possible].sum() * observed.sum()
    rare = expected < 5  # pooled, as the statistic is not chi-square distributed there
    o, e = observed[possible], expected
    o = torch.cat([o[~rare], o[rare].sum()[None]])
    e = torch.cat([e[~rare], e[rare].sum()[None]])
    if int((e > 0).sum()) == 1:
        return 1.0
    statistic = ((o - e).square() / e.clamp_min(1e-9))[e > 0].sum()
    return float(chi2.sf(float(statistic), int((e > 0).sum()) - 1))


def small_dit(vocab: Vocab, max_length: int = 32) -> DiT:
    """A network that takes milliseconds."""
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
    """A small DiT whose every weight matters and whose x_theta is neither flat nor certain.

    With a smaller gain of its norms it is easier to agree with.
    """
    model = Denoiser(small_dit(vocab, max_length), vocab).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(std=0.3, generator=generator)
            if "norm" in name:
                parameter.add_(gain)
    return model
