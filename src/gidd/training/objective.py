"""The loss of a batch, and the sums from which the reported metrics are computed.

An objective holds the model, so that DDP and FSDP wrap both together. It returns sums over tokens,
never means: sums of all micro-batches and ranks are added before anything is divided.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gidd.data.batch import Batch
from gidd.diffusion.fused import CHUNK_TOKENS
from gidd.diffusion.loss import loss_at
from gidd.diffusion.randomness import Stream, random_integers
from gidd.diffusion.schedule import MixingSchedule
from gidd.diffusion.schedules import HybridSchedule
from gidd.diffusion.times import TRAINING_EPS, stratified_times, time_weights
from gidd.diffusion.weighting import Weighting
from gidd.models import AutoregressiveModel, Denoiser

if TYPE_CHECKING:
    from jaxtyping import Float, Int

Metrics = dict[str, float]

_KINDS = ("masked", "replaced", "kept")
"""Kinds of noisy tokens: the mask, a random token, the clean token."""

_WARMUP_LEVELS = 32
"""Values of p_uniform while it grows."""


class ObjectiveOutput(NamedTuple):
    """Result of a micro-batch."""

    loss: Float[Tensor, ""]
    """Scaled; call `backward` on it."""

    sums: Float[Tensor, " K"]
    """Sums over this rank's tokens, detached, in the order of `Objective.names`."""


class Objective(nn.Module, ABC):
    """A model with its training loss."""

    names: tuple[str, ...]
    """Names of the sums."""

    @property
    @abstractmethod
    def network(self) -> nn.Module:
        """The network whose blocks are sharded over ranks."""

    @abstractmethod
    def num_targets(self, length: int) -> int:
        """Return the number of tokens with a loss in a sample of this length."""

    @abstractmethod
    def forward(self, batch: Batch, step: int, num_samples: int, scale: float) -> ObjectiveOutput:
        """Return the loss times `scale`, and the sums, of some samples of batch number `step`.

        `num_samples` is the size of the global batch, over all ranks.
        """

    @abstractmethod
    def summary(self, sums: Mapping[str, float]) -> Metrics:
        """Compute means and fractions from sums over any number of tokens."""


class DiffusionObjective(Objective):
    """The NELBO of Eq. 14, or its reweighted form, at one random time t per sample."""

    names = ("loss", "tokens", "nelbo", "valid", "bytes", "kl", "itakura_saito")
    names += tuple(f"{what}_{kind}" for kind in _KINDS for what in ("nelbo", "num"))

    def __init__(
        self,
        denoiser: Denoiser,
        schedule: MixingSchedule,
        weighting: Weighting,
        *,
        seed: int = 0,
        eps: float = TRAINING_EPS,
        token_bytes: Int[Tensor, " V"] | None = None,
        compiled: bool = False,
        p_uniform_warmup: int = 0,
        time_power: float = 1.0,
    ) -> None:
        """Take a model, its noise and its weights.

        Args:
            denoiser: The model.
            schedule: The noise.
            weighting: The weights of the loss.
            seed: Of times and noise.
            eps: Times are in [eps, 1 - eps].
            token_bytes: UTF-8 bytes of each token.
            compiled: As in `fused_loss`.
            p_uniform_warmup: Training steps in which p_uniform of hybrid noise grows from 0.
            time_power: As `power` in `stratify`.
        """
        super().__init__()
        self.denoiser, self.schedule, self.weighting = denoiser, schedule, weighting
        self.seed, self.eps, self.token_bytes, self.compiled = seed, eps, token_bytes, compiled
        self.p_uniform_warmup, self.time_power = p_uniform_warmup, time_power
        self._noise_by_level: dict[int, tuple[MixingSchedule, Weighting]] = {}

    @property
    def network(self) -> nn.Module:
        """The denoiser's backbone."""
        return cast(nn.Module, self.denoiser.backbone)

    def num_targets(self, length: int) -> int:
        """Return `length`: padding is part of the loss, but not of the NELBO (App. E)."""
        return length

    def forward(self, batch: Batch, step: int, num_samples: int, scale: float) -> ObjectiveOutput:
        """Draw t and z_t from (seed, sample) and compute the loss of the prediction (Eq. 14)."""
        x = batch.tokens
        schedule, weighting = self._noise_at(step)
        slot = batch.sample_index % num_samples
        t = stratified_times(self.seed, step, slot, num_samples, self.eps, power=self.time_power)
        position = torch.arange(x.shape[1], device=x.device)
        u = random_integers(self.seed, Stream.NOISE, 0, batch.sample_index, position)
        z, (loss, weight, kl, itakura_saito) = loss_at(
            self.denoiser, schedule, weighting, t, x, u, scale, compiled=self.compiled
        )
        with torch.no_grad():
            weight, valid = weight * batch.valid, batch.valid
            if self.time_power != 1:  # the density of times changes the loss, not the NELBO
                weight = weight * time_weights(t, self.eps, self.time_power)[:, None]
            nelbo = weight * (kl + itakura_saito)
            mask_id, kept = self.schedule.vocab.mask_id, z == x
            masked = torch.zeros_like(kept) if mask_id is None else z == mask_id
            kinds = (masked, ~masked & ~kept, kept)
            sums = (
                loss / scale,
                torch.tensor(x.numel()),
                nelbo.sum(),
                valid.sum(),
                num_bytes(self.token_bytes, x, valid),
                (weight * kl).sum(),
                (weight * itakura_saito).sum(),
                *(part for k in kinds for part in (nelbo[k].sum(), (k & valid).sum())),
            )
            return ObjectiveOutput(loss, torch.stack([part.to(loss) for part in sums]))

    def _noise_at(self, step: int) -> tuple[MixingSchedule, Weighting]:
        """Return noise and weights of a training step, while p_uniform grows; in few levels.

        Evaluations have the noise that training ends with.
        """
        if not self.training or step >= self.p_uniform_warmup:
            return self.schedule, self.weighting
        level = _WARMUP_LEVELS * step // self.p_uniform_warmup
        if level not in self._noise_by_level:  # checking a schedule takes time
            schedule = cast(HybridSchedule, self.schedule)
            schedule = replace(schedule, p_uniform=schedule.p_uniform * level / _WARMUP_LEVELS)
            self._noise_by_level[level] = schedule, replace(self.weighting, schedule=schedule)
        return self._noise_by_level[level]

    def summary(self, sums: Mapping[str, float]) -> Metrics:
        """Compute metrics per non-padding token; `nelbo_*` of the three kinds add up to `nelbo`."""
        valid = max(sums["valid"], 1)
        metrics = {"loss": sums["loss"] / max(sums["tokens"], 1)}
        means = ("nelbo", "kl", "itakura_saito", *(f"nelbo_{kind}" for kind in _KINDS))
        metrics |= {name: sums[name] / valid for name in means}
        metrics |= {f"share_{kind}": sums[f"num_{kind}"] / valid for kind in _KINDS}
        return metrics | per_unit(sums["nelbo"], valid, sums["bytes"])


class AutoregressiveObjective(Objective):
    """Autoregressive baseline: -log p(x_i | x_<i) of every token but the first."""

    names = ("loss", "tokens", "nll", "valid", "bytes")

    def __init__(
        self,
        model: AutoregressiveModel,
        *,
        token_bytes: Int[Tensor, " V"] | None = None,
        chunk_tokens: int = CHUNK_TOKENS,
    ) -> None:
        super().__init__()
        self.model, self.token_bytes, self.chunk_tokens = model, token_bytes, chunk_tokens

    @property
    def network(self) -> nn.Module:
        """The model itself."""
        return self.model

    def num_targets(self, length: int) -> int:
        """Return the number of tokens after the first."""
        return length - 1

    def forward(self, batch: Batch, step: int, num_samples: int, scale: float) -> ObjectiveOutput:
        """Compute the next-token cross-entropy; nothing is random, so `step` is not used."""
        del step, num_samples
        hidden = self.model.hidden(batch.tokens)[:, :-1].flatten(0, 1)
        labels, valid = batch.tokens[:, 1:], batch.valid[:, 1:]
        size = self.chunk_tokens
        # saves memory: logits of one chunk at a time, recomputed in the backward pass
        chunks = zip(hidden.split(size), labels.flatten().split(size), strict=True)
        parts = [checkpoint(self._nll, *chunk, use_reentrant=False) for chunk in chunks]
        nll = torch.cat(cast("list[Tensor]", parts)).view_as(labels)
        loss, num_labels = nll.sum(), torch.tensor(labels.numel())
        size_in_bytes = num_bytes(self.token_bytes, labels, valid)
        sums = (loss, num_labels, (nll * valid).sum(), valid.sum(), size_in_bytes)
        return ObjectiveOutput(loss * scale, torch.stack([part.detach().to(nll) for part in sums]))

    def summary(self, sums: Mapping[str, float]) -> Metrics:
        """Compute metrics per non-padding token."""
        valid = max(sums["valid"], 1)
        metrics = {"loss": sums["loss"] / max(sums["tokens"], 1), "nll": sums["nll"] / valid}
        return metrics | per_unit(sums["nll"], valid, sums["bytes"])

    def _nll(self, states: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.model.head(states).float(), labels, reduction="none")


def num_bytes(token_bytes: Tensor | None, tokens: Tensor, valid: Tensor) -> Tensor:
    """Return the UTF-8 bytes of the valid tokens; 0 if the tokenizer does not define them."""
    if token_bytes is None:
        return torch.zeros((), device=tokens.device)
    return (token_bytes.to(tokens.device)[tokens] * valid).sum()


def per_unit(nats: float, tokens: float, num_bytes: float) -> Metrics:
    """Convert a likelihood to perplexity, bits per token and bits per byte."""
    metrics = {"ppl": math.exp(min(nats / tokens, 700.0))}
    metrics["bits_per_token"] = nats / tokens / math.log(2)
    if num_bytes:
        metrics["bits_per_byte"] = nats / num_bytes / math.log(2)
    return metrics
