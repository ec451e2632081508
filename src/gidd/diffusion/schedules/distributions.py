"""The fixed noise distributions over token ids that schedules mix."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gidd.errors import ScheduleError
from gidd.vocab import Vocab

if TYPE_CHECKING:
    from jaxtyping import Float


def mask_noise(vocab: Vocab, like: Tensor | None = None) -> Float[Tensor, " V"]:
    """All mass on the mask token: m in the paper."""
    noise = _zeros(vocab, like)
    noise[require_mask(vocab)] = 1
    return noise


def uniform_noise(vocab: Vocab, like: Tensor | None = None) -> Float[Tensor, " V"]:
    """Equal mass on every token but the mask: u in the paper."""
    noise = _zeros(vocab, like) + 1 / vocab.num_data_tokens
    if vocab.mask_id is not None:
        noise[vocab.mask_id] = 0
    return noise


def require_mask(vocab: Vocab) -> int:
    """The mask id, or an error for a vocabulary that has none."""
    if vocab.mask_id is None:
        raise ScheduleError(
            "vocab.mask_id must be a token id for noise that masks, got None. "
            f"Give Vocab(size={vocab.size}, mask_id=...), or use UniformSchedule, which needs none."
        )
    return vocab.mask_id


def _zeros(vocab: Vocab, like: Tensor | None) -> Tensor:
    """A zero row over the vocabulary on the device and of the type of `like` (float64 on CPU)."""
    if like is None:
        return torch.zeros(vocab.size, dtype=torch.float64)
    return like.new_zeros(vocab.size)
