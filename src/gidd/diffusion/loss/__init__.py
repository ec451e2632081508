"""The training loss: `batch` (times, noise, loss), `fused` (with the head), `token_terms`."""

from typing import TYPE_CHECKING

from gidd.common.lazy import lazy_exports

if TYPE_CHECKING:
    from gidd.diffusion.loss.batch import (
        DiffusionLoss as DiffusionLoss,
        HiddenAndHead as HiddenAndHead,
        diffusion_loss as diffusion_loss,
        loss_at as loss_at,
        noisy_tokens as noisy_tokens,
        what_is_read as what_is_read,
    )
    from gidd.diffusion.loss.fused import (
        CHUNK_TOKENS as CHUNK_TOKENS,
        CHUNK_TOKENS_OF_KERNELS as CHUNK_TOKENS_OF_KERNELS,
        HEAD_AND_LOSS as HEAD_AND_LOSS,
        HEAD_ROWS as HEAD_ROWS,
        FusedLoss as FusedLoss,
        fused_cross_entropy as fused_cross_entropy,
        fused_loss as fused_loss,
    )

__getattr__, __dir__ = lazy_exports(__name__)
