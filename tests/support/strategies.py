"""Random schedules and inputs for property tests."""

import torch
from hypothesis import strategies as st
from torch import Tensor

from gidd.diffusion.schedule import MixingSchedule
from gidd.diffusion.schedules import (
    SCHEDULES,
    FunctionalSchedule,
    MixtureSchedule,
    UniformSchedule,
)
from gidd.vocab import Vocab

unit = st.floats(0, 1)
times = st.lists(st.floats(1e-3, 1 - 1e-3), min_size=1, max_size=4)


@st.composite
def schedules(draw: st.DrawFn) -> MixingSchedule:
    """Any listed schedule, any parameters; the mask anywhere, or none where that is allowed."""
    size = draw(st.integers(3, 6))
    with_mask = draw(st.booleans())
    kinds = SCHEDULES if with_mask else (UniformSchedule, MixtureSchedule, FunctionalSchedule)
    vocab = Vocab(size, mask_id=draw(st.integers(0, size - 1)) if with_mask else None)
    return draw(st.sampled_from(kinds)).from_unit_cube(vocab, draw(st.tuples(unit, unit, unit)))


def as_times(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def data_tokens(vocab: Vocab) -> Tensor:
    """Every id that a clean text may contain."""
    return torch.tensor([v for v in range(vocab.size) if v != vocab.mask_id])


def random_x_theta(vocab: Vocab, *shape: int, seed: int = 0) -> Tensor:
    """A random denoiser output [*shape, V]: positive, normalised, zero on the mask."""
    logits = torch.randn(*shape, vocab.size, generator=torch.Generator().manual_seed(seed)).double()
    if vocab.mask_id is not None:
        logits[..., vocab.mask_id] = -torch.inf
    return (2 * logits).softmax(-1)


def all_pairs(vocab: Vocab) -> tuple[Tensor, Tensor]:
    """Every clean token beside every noisy one, as one text each [X * V]."""
    return torch.cartesian_prod(data_tokens(vocab), torch.arange(vocab.size)).unbind(-1)
