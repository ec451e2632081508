"""Random schedules, weightings and inputs for property tests.

`SCHEDULE_BUILDERS` and `WEIGHTING_BUILDERS` say how to build each built-in class. A new schedule or
weighting needs an entry there; then all property tests cover it.
"""

from collections.abc import Callable, Sequence

import torch
from hypothesis import strategies as st
from torch import Tensor

from gidd.common.config.registry import builtin_components
from gidd.diffusion.schedule import MixingSchedule
from gidd.diffusion.schedules import (
    Cosine,
    Curve,
    FirstReleaseSchedule,
    FunctionalSchedule,
    FunctionAmount,
    FunctionCurve,
    HybridSchedule,
    Linear,
    LinearAmount,
    MaskedSchedule,
    MixtureComponent,
    MixtureSchedule,
    PeakedAmount,
    Polynomial,
    UniformSchedule,
    mask_noise,
    uniform_noise,
)
from gidd.diffusion.weighting import (
    ClampWeighting,
    DynamicWeighting,
    ElboWeighting,
    TightWeighting,
    Weighting,
)
from gidd.vocab import Vocab

SCHEDULE_TYPES: list[type[MixingSchedule]] = [
    *builtin_components("schedule").values(),
    FunctionalSchedule,  # has no name, since Python functions cannot be saved
]
WEIGHTING_TYPES: list[type[Weighting]] = [*builtin_components("weighting").values()]

unit = st.floats(0, 1)
times = st.lists(st.floats(1e-3, 1 - 1e-3), min_size=1, max_size=4)


def curve_from_unit(u: float) -> Curve:
    """A curve for every number in [0, 1]; all kinds of curve occur."""
    if u < 0.2:
        return Linear()
    if u < 0.4:
        return Cosine()
    if u < 0.6:
        return FunctionCurve(lambda t: (1 - t) * (1 + t / 2))
    return Polynomial(0.5 + 5 * (u - 0.6))


def hybrid(vocab: Vocab, u: Sequence[float]) -> HybridSchedule:
    """p_uniform in [0, 0.9], a tenth of the cube at exactly 0; gamma in [0.2, 2]."""
    return HybridSchedule(vocab, p_uniform=max(0.0, u[0] - 0.1), gamma=0.2 + 1.8 * u[1])


def mixture(vocab: Vocab, u: Sequence[float]) -> MixtureSchedule:
    """Mask (or, without one, uniform noise), uniform and rank-frequency noise in any ratio."""
    rank = torch.arange(1, vocab.size + 1, dtype=torch.float64)
    zipf = uniform_noise(vocab) / rank
    main = uniform_noise(vocab) if vocab.mask_id is None else mask_noise(vocab)
    components = (
        MixtureComponent(main, LinearAmount()),
        MixtureComponent(uniform_noise(vocab), PeakedAmount(0.8 * u[0], 0.2 + 1.8 * u[1])),
        MixtureComponent(zipf / zipf.sum(), FunctionAmount(lambda t: u[2] * t.square())),
    )
    return MixtureSchedule(vocab, components)


def functional(vocab: Vocab, u: Sequence[float]) -> FunctionalSchedule:
    """A curve's alpha, and noise that drifts from uniform to the mask as t grows."""
    curve = curve_from_unit(u[0])

    def beta_pi(t: Tensor) -> Tensor:
        start = uniform_noise(vocab, t)
        end = start if vocab.mask_id is None else mask_noise(vocab, t)
        drift = (u[1] * t)[:, None]
        return curve.beta(t)[:, None] * ((1 - drift) * start + drift * end)

    return FunctionalSchedule(vocab, curve.alpha, beta_pi)


def first_release(vocab: Vocab, u: Sequence[float]) -> FirstReleaseSchedule:
    """B between its minimum and 1e-6, so that the chain exists up to t = 1 - 1e-12."""
    odds = (1 / max(1e-6 * u[0], 1e-12) - 1) * 2 / vocab.size
    return FirstReleaseSchedule(vocab, p_uniform=1 / (1 + odds))


SCHEDULE_BUILDERS: dict[
    type[MixingSchedule], Callable[[Vocab, Sequence[float]], MixingSchedule]
] = {
    MaskedSchedule: lambda vocab, u: MaskedSchedule(vocab, curve_from_unit(u[0])),
    UniformSchedule: lambda vocab, u: UniformSchedule(vocab, curve_from_unit(u[0])),
    HybridSchedule: hybrid,
    MixtureSchedule: mixture,
    FunctionalSchedule: functional,
    FirstReleaseSchedule: first_release,
}
"""For each schedule class a valid schedule from any three numbers in [0, 1]."""

WEIGHTING_BUILDERS: dict[type[Weighting], Callable[[MixingSchedule], Weighting]] = {
    ElboWeighting: ElboWeighting,
    ClampWeighting: ClampWeighting,
    DynamicWeighting: DynamicWeighting,
    TightWeighting: TightWeighting,
}
"""For each weighting class the weighting with its default options."""


def schedule_from_unit_cube(
    kind: type[MixingSchedule], vocab: Vocab, u: Sequence[float]
) -> MixingSchedule:
    assert kind in SCHEDULE_BUILDERS, (
        f"{kind.__name__} is a built-in schedule but not in SCHEDULE_BUILDERS of tests/support/"
        "strategies.py: add a function that builds one from a vocabulary and three numbers in "
        "[0, 1], so that the property tests cover it."
    )
    return SCHEDULE_BUILDERS[kind](vocab, u)


def default_weighting(kind: type[Weighting], schedule: MixingSchedule) -> Weighting:
    assert kind in WEIGHTING_BUILDERS, (
        f"{kind.__name__} is a built-in weighting but not in WEIGHTING_BUILDERS of tests/support/"
        "strategies.py: add a function that builds it for a schedule, so that the property tests "
        "cover it."
    )
    return WEIGHTING_BUILDERS[kind](schedule)


@st.composite
def schedules(draw: st.DrawFn) -> MixingSchedule:
    """Any built-in schedule, any parameters; the mask anywhere, or none where that is allowed."""
    size = draw(st.integers(3, 6))
    with_mask = draw(st.booleans())
    kinds = SCHEDULE_TYPES if with_mask else [UniformSchedule, MixtureSchedule, FunctionalSchedule]
    vocab = Vocab(size, mask_id=draw(st.integers(0, size - 1)) if with_mask else None)
    kind = draw(st.sampled_from(kinds))
    return schedule_from_unit_cube(kind, vocab, draw(st.tuples(unit, unit, unit)))


def as_times(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def data_tokens(vocab: Vocab) -> Tensor:
    """Every token that clean text may contain."""
    return torch.tensor([v for v in range(vocab.size) if v != vocab.mask_id])


def random_x_theta(vocab: Vocab, *shape: int, seed: int = 0) -> Tensor:
    """A random denoiser output [*shape, V]: positive, normalised, zero on the mask."""
    logits = torch.randn(*shape, vocab.size, generator=torch.Generator().manual_seed(seed)).double()
    if vocab.mask_id is not None:
        logits[..., vocab.mask_id] = -torch.inf
    return (2 * logits).softmax(-1)


def all_pairs(vocab: Vocab) -> tuple[Tensor, Tensor]:
    """Every pair of a clean and a noisy token, as two flat tensors [X * V]."""
    return torch.cartesian_prod(data_tokens(vocab), torch.arange(vocab.size)).unbind(-1)
