"""The loss of noisy tokens: `loss = objective(denoiser, noisy)`, a function of the registry.

Losses are sums over tokens, never means: micro-batches and ranks are added before anything is
divided.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, cast, final

import torch
from torch import Tensor, nn

from gidd.diffusion.categorical import draw
from gidd.diffusion.loss import CHUNK_TOKENS, FusedLoss, what_is_read
from gidd.diffusion.randomness import Stream
from gidd.models import Denoiser
from gidd.training.corruption import NoisyBatch

if TYPE_CHECKING:
    from jaxtyping import Bool, Int


class NoisyLoss(NamedTuple):
    """The loss of noisy tokens, with the terms that are reported."""

    z: Int[Tensor, "B L"]
    terms: FusedLoss
    reported: Bool[Tensor, " B"] | None = None
    """Samples whose terms are the NELBO, which is reported; None: all samples."""

    @property
    def loss(self) -> Tensor:
        """The loss, scaled; call `backward` on it."""
        return self.terms.loss


LossFunction = Callable[[Denoiser, NoisyBatch], NoisyLoss | Tensor]
"""A registered objective: the loss of a noisy batch, a sum over targets times `noisy.scale`.

It is what `gidd.training.objectives.nelbo_objective` returns or, if only the loss is to be
reported, a scalar tensor.
"""


@final
class TrainedModel(nn.Module):
    """The denoiser as DDP and FSDP2 wrap it: they see the forward pass of an objective as one."""

    def __init__(self, denoiser: Denoiser, attention_warmup: int = 0) -> None:
        super().__init__()
        self.denoiser = denoiser
        self.attention_warmup = attention_warmup

    @property
    def network(self) -> nn.Module:
        """The denoiser's backbone, whose blocks are sharded over ranks."""
        return cast(nn.Module, self.denoiser.backbone)

    def forward(self, objective: LossFunction, noisy: NoisyBatch) -> NoisyLoss | Tensor:
        """Return the loss of a noisy batch."""
        if self.attention_warmup:
            network: Any = self.network
            network.visible_future = min(noisy.step / self.attention_warmup, 1.0)
        return objective(self.denoiser, noisy)


def predict(denoiser: Denoiser, noisy: NoisyBatch) -> Int[Tensor, "B L"]:
    """Draw each token from x_theta(z, t): one more forward pass, without a gradient."""
    with without_gradient(denoiser):
        parts = noisy.valid, noisy.batch.segments, noisy.block_index
        visible: Any = what_is_read(noisy.batch.tokens, *parts)
        hidden = denoiser.hidden(noisy.z, noisy.t, **visible).flatten(0, 1)
        denoiser.gather_head()
        u = noisy.random(Stream.TOKEN).flatten()[:, None]
        rows = zip(hidden.split(CHUNK_TOKENS), u.split(CHUNK_TOKENS), strict=True)
        drawn = [draw(denoiser.distribution(states), u).squeeze(-1) for states, u in rows]
        return torch.cat(drawn).view_as(noisy.z)


@contextmanager
def without_gradient(denoiser: Denoiser) -> Generator[None]:
    """Compute no gradients inside, as `torch.no_grad`.

    The cache of autocast is off: the forward pass with a gradient must not reuse casts of here.
    """
    kind = next(denoiser.parameters()).device.type
    dtype, enabled = torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
    with torch.no_grad(), torch.autocast(kind, dtype, enabled, cache_enabled=False):
        yield
