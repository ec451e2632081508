"""Fixed noise distributions over the vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gidd.errors import ScheduleError
from gidd.vocab import Vocab

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


def mask_noise(vocab: Vocab, like: Tensor | None = None) -> Float[Tensor, " V"]:
    """Return the distribution with all mass on the mask token (m in the paper)."""
    if vocab.mask_id is None:
        raise ScheduleError(
            "vocab.mask_id must be a token id for noise that masks, got None. "
            f"Use Vocab(size={vocab.size}, mask_id=...), or UniformSchedule, which needs no mask."
        )
    noise = _zeros(vocab, like)
    noise[vocab.mask_id] = 1
    return noise


def uniform_noise(vocab: Vocab, like: Tensor | None = None) -> Float[Tensor, " V"]:
    """Return the uniform distribution over all tokens but the mask (u in the paper)."""
    noise = _zeros(vocab, like) + 1 / vocab.num_data_tokens
    if vocab.mask_id is not None:
        noise[vocab.mask_id] = 0
    return noise


def _zeros(vocab: Vocab, like: Tensor | None) -> Tensor:
    """Zeros [V] with the device and type of `like` (float64 on CPU if None)."""
    import torch

    if like is None:
        return torch.zeros(vocab.size, dtype=torch.float64)
    return like.new_zeros(vocab.size)
