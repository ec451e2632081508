"""Texts of a Markov source with a known fraction of wrong tokens, and their exact denoiser."""

import torch
from torch import Tensor

from gidd.diffusion.schedule import MixingSchedule
from gidd.diffusion.schedules import HybridSchedule, UniformSchedule
from gidd.sampling import Session
from gidd.sampling.windows import WindowReader, WindowTokens
from gidd.sources import MarkovSource
from gidd.vocab import Vocab
from support.sampling_worlds import exact

SIZE, LENGTH = 50, 64
SOURCE = MarkovSource.random(SIZE, 0.05)
HYBRID = HybridSchedule(Vocab(SIZE + 1, mask_id=SIZE), 0.2)
UNIFORM = UniformSchedule(Vocab(SIZE, mask_id=None))


def noisy(x: Tensor, rate: float, seed: int = 0) -> Tensor:
    """Replace a fraction `rate` of the tokens, each by any other one."""
    generator = torch.Generator().manual_seed(seed)
    is_wrong = torch.rand(x.shape, generator=generator) < rate
    return torch.where(
        is_wrong, (x + torch.randint(1, SIZE, x.shape, generator=generator)) % SIZE, x
    )


def exact_reader(schedule: MixingSchedule, batch_size: int) -> WindowReader:
    return WindowReader(Session(exact(SOURCE, schedule), schedule, batch_size=batch_size))


def as_windows(rows: Tensor) -> list[WindowTokens]:
    """Every row is a window, every position is editable."""
    return [WindowTokens(tuple(row), (True,) * len(row)) for row in rows.tolist()]
