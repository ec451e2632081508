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
from torch import Tensor, nn

from gidd.common.devices import copy_to, positions
from gidd.data.batch import Batch
from gidd.diffusion.loss import fused_cross_entropy, loss_at
from gidd.diffusion.randomness import Stream, random_integers
from gidd.diffusion.schedule import MixingSchedule
from gidd.diffusion.schedules import HybridSchedule
from gidd.diffusion.times import TRAINING_EPS, stratified_times, time_weights
from gidd.diffusion.weighting import Weighting
from gidd.models import AutoregressiveModel, Denoiser, Head
from gidd.training.parallel import gather

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

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

    def __init__(self, token_bytes: Int[Tensor, " V"] | None) -> None:
        super().__init__()
        self.token_bytes = token_bytes
        """UTF-8 bytes of each token, in host memory; None if the tokenizer does not define them."""

        self._token_bytes_on: dict[torch.device, Tensor] = {}

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

    def _bytes_of(self, tokens: Int[Tensor, "B L"]) -> Int[Tensor, "B L"]:
        """Return the UTF-8 bytes of each token; 0 if the tokenizer does not define them."""
        if self.token_bytes is None:
            return torch.zeros_like(tokens)
        device = tokens.device
        if device not in self._token_bytes_on:
            self._token_bytes_on[device] = copy_to(self.token_bytes, device)
        return self._token_bytes_on[device][tokens]


class DiffusionObjective(Objective):
    """The NELBO of Eq. 14, or its reweighted form, at one random time t per sample."""

    names = ("loss", "tokens", "nelbo", "valid", "bytes", "kl", "itakura_saito")
    names += tuple(f"{what}_{kind}" for what in ("nelbo", "num") for kind in _KINDS)

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
        super().__init__(token_bytes)
        self.denoiser, self.schedule, self.weighting = denoiser, schedule, weighting
        self.seed, self.eps, self.compiled = seed, eps, compiled
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
        position = positions(x.shape[1], x.device)
        u = random_integers(self.seed, Stream.NOISE, 0, batch.sample_index, position)
        z, (loss, weight, kl, itakura_saito) = loss_at(
            self, schedule, weighting, t, x, u, scale, compiled=self.compiled
        )
        with torch.no_grad():
            valid = batch.valid.to(weight.dtype)
            weight = weight * valid
            if self.time_power != 1:  # the density of times changes the loss, not the NELBO
                weight = weight * time_weights(t, self.eps, self.time_power)[:, None]
            nelbo, kinds = weight * (kl + itakura_saito), self._kinds(x, z)
            per_token = [nelbo, valid, self._bytes_of(x) * valid, weight * kl]
            per_token += [weight * itakura_saito, *(nelbo * kinds), *(valid * kinds)]
            return ObjectiveOutput(loss, _sums(loss / scale, per_token))

    def hidden(self, z: Int[Tensor, "B L"], t: Float[Tensor, " B"]) -> Float[Tensor, "B L D"]:
        """Compute the hidden states of the denoiser."""
        return self.denoiser.hidden(z, t)

    def head(self) -> Head:
        """Return the head of the denoiser, gathered from all ranks if it is sharded."""
        gather(self.denoiser.backbone.head)
        return self.denoiser.head()

    def _kinds(self, x: Int[Tensor, "B L"], z: Int[Tensor, "B L"]) -> Bool[Tensor, "3 B L"]:
        """Return which noisy tokens are of each kind in `_KINDS`."""
        mask_id, kept = self.schedule.vocab.mask_id, z == x
        masked = torch.zeros_like(kept) if mask_id is None else z == mask_id
        return torch.stack([masked, ~(masked | kept), kept])

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
        chunk_tokens: int | None = None,
    ) -> None:
        super().__init__(token_bytes)
        self.model, self.chunk_tokens = model, chunk_tokens

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
        head = self.model.head
        gather(head)
        bias = cast("Tensor | None", head.bias)
        loss, nll = fused_cross_entropy(
            labels.flatten(), hidden, head.weight, bias, scale, self.chunk_tokens
        )
        with torch.no_grad():
            nll, valid = nll.view_as(labels), valid.to(nll.dtype)
            sums = _sums(nll.sum(), [nll * valid, valid, self._bytes_of(labels) * valid])
        return ObjectiveOutput(loss, sums)

    def summary(self, sums: Mapping[str, float]) -> Metrics:
        """Compute metrics per non-padding token."""
        valid = max(sums["valid"], 1)
        metrics = {"loss": sums["loss"] / max(sums["tokens"], 1), "nll": sums["nll"] / valid}
        return metrics | per_unit(sums["nll"], valid, sums["bytes"])


def _sums(loss: Float[Tensor, ""], per_token: list[Tensor]) -> Tensor:
    """Return the loss, the number of tokens and sums over tokens, in few operators."""
    num_tokens = loss.new_full((1,), per_token[0].numel())
    return torch.cat([loss.detach().view(1), num_tokens, torch.stack(per_token).sum((1, 2))])


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
