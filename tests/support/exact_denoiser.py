"""The exact denoiser of a source, with the interface of a network: hidden states and a head."""

import torch
from torch import Tensor

from gidd.diffusion.schedule import MixingSchedule
from gidd.diffusion.schedules import HybridSchedule, MaskedSchedule
from gidd.sources import MarkovSource
from gidd.sources.base import Source
from gidd.vocab import Vocab


class ExactDenoiser:
    """x_theta = p(x_i | Z without z_i): hidden states are its logarithm, the head is the identity.

    Tokens at `given` positions are known to be clean.
    """

    def __init__(
        self, source: Source, schedule: MixingSchedule, given: Tensor | None = None
    ) -> None:
        self.source, self.schedule, self.given = source, schedule, given
        self.forward_passes = self.batches = 0

    def hidden(self, z: Tensor, t: Tensor) -> Tensor:
        self.forward_passes += len(z)
        self.batches += 1
        x_theta = self.source.leave_one_out(self.schedule, t, z, self.given)
        return x_theta.log().clamp_min(-1e4)

    def head(self) -> tuple[Tensor, Tensor]:
        size = self.schedule.vocab.size
        bias = torch.zeros(size).double()
        bias[self.schedule.vocab.mask_id] = -torch.inf
        return torch.eye(size).double(), bias


def markov_world(p_uniform: float, num_tokens: int = 12) -> tuple[MarkovSource, MixingSchedule]:
    """Return a source of strongly dependent tokens in float64, and noise for it."""
    vocab = Vocab(num_tokens + 1, mask_id=num_tokens)
    generator = torch.Generator().manual_seed(0)
    rows = torch.rand(num_tokens, num_tokens, generator=generator, dtype=torch.float64) ** 6
    start = torch.full((num_tokens,), 1 / num_tokens, dtype=torch.float64)
    source = MarkovSource(start, rows / rows.sum(-1, keepdim=True))
    return source, HybridSchedule(vocab, p_uniform) if p_uniform else MaskedSchedule(vocab)
