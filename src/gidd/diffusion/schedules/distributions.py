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
    return _is_mask(vocab, like)


def uniform_noise(vocab: Vocab, like: Tensor | None = None) -> Float[Tensor, " V"]:
    """Return the uniform distribution over all tokens but the mask (u in the paper)."""
    return (1 - _is_mask(vocab, like)) * (1 / vocab.num_data_tokens)


def _is_mask(vocab: Vocab, like: Tensor | None) -> Tensor:
    """1 at the mask, 0 elsewhere, with the device and type of `like` (float64 on CPU if None)."""
    import torch

    device, dtype = (None, torch.float64) if like is None else (like.device, like.dtype)
    ids = torch.arange(vocab.size, device=device)
    return (ids == (-1 if vocab.mask_id is None else vocab.mask_id)).to(dtype)
