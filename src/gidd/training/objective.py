"""The loss of a batch, and the sums from which the reported metrics are computed.

An objective holds the model, so that DDP and FSDP wrap both together. It returns sums over tokens,
never means: sums of all micro-batches and ranks are added before anything is divided.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, cast, final

import torch
from torch import Tensor, nn

from gidd.common.devices import copy_to, positions
from gidd.data.batch import Batch
from gidd.diffusion.categorical import draw
from gidd.diffusion.loss import CHUNK_TOKENS, FusedLoss, fused_cross_entropy, loss_at, noisy_tokens
from gidd.diffusion.randomness import Stream, random_integers
from gidd.diffusion.schedule import MixingSchedule
from gidd.diffusion.schedules import HybridSchedule
from gidd.diffusion.times import TRAINING_EPS, stratified_times, time_weights
from gidd.diffusion.weighting import Weighting
from gidd.models import AutoregressiveModel, Denoiser, Head
from gidd.training.objectives import nelbo
from gidd.training.parallel import gather

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

Metrics = dict[str, float]

_KINDS = ("masked", "replaced", "kept")
"""Kinds of noisy tokens: the mask, a random token, the clean token."""

_WARMUP_LEVELS = 32  # values of p_uniform while it grows


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
    def num_targets(self, batch: Batch) -> int | Int[Tensor, ""]:
        """Return the number of tokens with a loss; on the device if some tokens are given."""

    @abstractmethod
    def forward(
        self, batch: Batch, step: int, num_samples: int, scale: float | Tensor
    ) -> ObjectiveOutput:
        """Return the loss times `scale`, and the sums, of some samples of batch number `step`.

        `num_samples` is the size of the global batch, over all ranks.
        """

    @abstractmethod
    def summary(self, sums: Mapping[str, float]) -> Metrics:
        """Compute means and fractions from sums over any number of tokens."""

    def bytes_of(self, tokens: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        """Return the UTF-8 bytes of each token; 0 if the tokenizer does not define them."""
        if self.token_bytes is None:
            return torch.zeros_like(tokens)
        device = tokens.device
        if device not in self._token_bytes_on:
            self._token_bytes_on[device] = copy_to(self.token_bytes, device)
        return self._token_bytes_on[device][tokens]


@final
@dataclass(frozen=True, kw_only=True)
class NoisyBatch:
    """A micro-batch with its times and noise: what a registered objective computes a loss of."""

    batch: Batch
    """Clean tokens, given tokens, segments and the index of each sample."""
    t: Float[Tensor, " B"]
    """Time of each sample."""
    z: Int[Tensor, "B L"]
    """Noisy tokens; `dataclasses.replace` makes a batch with others."""
    fixed: Bool[Tensor, "B L"] | None
    """Tokens that are neither noised nor scored: given ones, and padding if it is ignored."""
    valid: Bool[Tensor, "B L"] | None
    """False at padding that is hidden from the network; None if none is."""
    schedule: MixingSchedule
    weighting: Weighting
    scale: float | Tensor
    """Factor of the sum over targets."""
    step: int


class NoisyLoss(NamedTuple):
    """The loss of noisy tokens, with the terms that are reported."""

    z: Int[Tensor, "B L"]
    terms: FusedLoss
    reported: Bool[Tensor, " B"] | None = None
    """Samples whose terms are the NELBO, which is reported; None: all samples."""


LossFunction = Callable[["DiffusionObjective", NoisyBatch], NoisyLoss | Tensor]
"""A registered objective: the loss of a noisy batch, a sum over targets times `noisy.scale`.

It is what `model.nelbo` returns or, if only the loss is to be reported, a scalar tensor.
"""


class DiffusionObjective(Objective):
    """A denoiser and its loss, by default the NELBO of Eq. 14, at one random time t per sample."""

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
        hides_padding: bool = False,
        loss: LossFunction = nelbo,
    ) -> None:
        """Take a model, its noise and its weights; for other settings see `Diffusion`.

        `token_bytes` are the UTF-8 bytes of each token, `compiled` is as in `fused_loss`. With
        `hides_padding`, padding is neither part of the loss nor read by the network, which must
        accept padding; without, it is learned like text (App. E).
        """
        super().__init__(token_bytes)
        self.denoiser, self.schedule, self.weighting = denoiser, schedule, weighting
        self.seed, self.eps, self.compiled = seed, eps, compiled
        self.p_uniform_warmup, self.time_power = p_uniform_warmup, time_power
        self.hides_padding, self.loss = hides_padding, loss
        self._noise_by_level: dict[int, tuple[MixingSchedule, Weighting]] = {}

    @property
    def network(self) -> nn.Module:
        """The denoiser's backbone."""
        return cast(nn.Module, self.denoiser.backbone)

    def num_targets(self, batch: Batch) -> int | Int[Tensor, ""]:
        """Count all tokens but given ones: padding is in the loss, not in the NELBO (App. E)."""
        given = self._fixed(batch)
        return batch.tokens.numel() if given is None else (~given).sum()

    def forward(
        self, batch: Batch, step: int, num_samples: int, scale: float | Tensor
    ) -> ObjectiveOutput:
        """Draw t and z_t from (seed, sample) and compute the loss of the prediction."""
        x = batch.tokens
        schedule, weighting = self._noise_at(step)
        slot = batch.sample_index % num_samples
        t = stratified_times(self.seed, step, slot, num_samples, self.eps, power=self.time_power)
        position = positions(x.shape[1], x.device)
        u = random_integers(self.seed, Stream.NOISE, 0, batch.sample_index, position)
        given = self._fixed(batch)
        noisy = NoisyBatch(
            batch=batch,
            t=t,
            z=noisy_tokens(schedule, t, x, u, given),
            fixed=given,
            valid=batch.valid if self.hides_padding else None,
            schedule=schedule,
            weighting=weighting,
            scale=scale,
            step=step,
        )
        found = self.loss(self, noisy)
        if isinstance(found, Tensor):  # without terms, only the loss is reported
            nothing = torch.zeros_like(batch.valid, dtype=found.dtype)
            per_token = [nothing] * (len(self.names) - 2)
            return ObjectiveOutput(found, _sums(found / scale, self.num_targets(batch), per_token))
        z, (loss, weight, kl, itakura_saito), reported = found
        with torch.no_grad():
            scored = batch.scored if reported is None else batch.scored & reported[:, None]
            valid = scored.to(weight.dtype)
            weight = weight * valid
            if self.time_power != 1:  # the density of times changes the loss, not the NELBO
                weight = weight * time_weights(t, self.eps, self.time_power)[:, None]
            nelbo, kinds = weight * (kl + itakura_saito), self._kinds(x, z)
            per_token = [nelbo, valid, self.bytes_of(x) * valid, weight * kl]
            per_token += [weight * itakura_saito, *(nelbo * kinds), *(valid * kinds)]
            return ObjectiveOutput(loss, _sums(loss / scale, self.num_targets(batch), per_token))

    def nelbo(self, noisy: NoisyBatch) -> NoisyLoss:
        """Compute the (reweighted) NELBO of the prediction from z, with a gradient."""
        terms = loss_at(
            self,
            noisy.schedule,
            noisy.weighting,
            noisy.t,
            noisy.batch.tokens,
            noisy.z,
            noisy.scale,
            compiled=self.compiled,
            given=noisy.fixed,
            valid=noisy.valid,
            segments=noisy.batch.segments,
        )
        return NoisyLoss(noisy.z, terms)

    def predict(self, noisy: NoisyBatch) -> Int[Tensor, "B L"]:
        """Draw each token from x_theta(z, t): one more forward pass, without a gradient."""
        with self.without_gradient():
            hidden = self.hidden(noisy.z, noisy.t, noisy.valid, noisy.batch.segments).flatten(0, 1)
            gather(self.denoiser.backbone.head)
            u = self.random(noisy, Stream.TOKEN).flatten()[:, None]
            rows = zip(hidden.split(CHUNK_TOKENS), u.split(CHUNK_TOKENS), strict=True)
            drawn = [draw(self.denoiser.distribution(h), each).squeeze(-1) for h, each in rows]
            return torch.cat(drawn).view_as(noisy.z)

    def random(self, noisy: NoisyBatch, stream: Stream) -> Int[Tensor, "B L"]:
        """Return random integers in [0, 2**62), a function of (seed, stream, sample, position)."""
        position = positions(noisy.z.shape[1], noisy.z.device)
        return random_integers(self.seed, stream, 0, noisy.batch.sample_index, position)

    @contextmanager
    def without_gradient(self) -> Generator[None]:
        """Compute no gradients inside, as `torch.no_grad`.

        The cache of autocast is off: the forward pass with a gradient must not reuse casts of here.
        """
        kind = next(self.parameters()).device.type
        dtype, enabled = torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
        with torch.no_grad(), torch.autocast(kind, dtype, enabled, cache_enabled=False):
            yield

    def _fixed(self, batch: Batch) -> Bool[Tensor, "B L"] | None:
        """Return the tokens that are neither noised nor scored, or None if there are none."""
        if not self.hides_padding:
            return batch.given
        return ~batch.valid if batch.given is None else batch.given | ~batch.valid

    def hidden(
        self,
        z: Int[Tensor, "B L"],
        t: Float[Tensor, " B"],
        valid: Bool[Tensor, "B L"] | None = None,
        segments: Int[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "B L D"]:
        """Compute the hidden states of the denoiser."""
        return self.denoiser.hidden(z, t, valid, segments)

    def head(self) -> Head:
        """Return the head of the denoiser, gathered from all ranks if it is sharded."""
        gather(self.denoiser.backbone.head)
        return self.denoiser.head()

    def _kinds(self, x: Int[Tensor, "B L"], z: Int[Tensor, "B L"]) -> Bool[Tensor, "3 B L"]:
        mask_id, kept = self.schedule.vocab.mask_id, z == x
        masked = torch.zeros_like(kept) if mask_id is None else z == mask_id
        return torch.stack([masked, ~(masked | kept), kept])

    def _noise_at(self, step: int) -> tuple[MixingSchedule, Weighting]:
        """Return noise and weights of a training step, while p_uniform grows in few levels."""
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
        if not sums["valid"]:
            return metrics
        means = ("nelbo", "kl", "itakura_saito", *(f"nelbo_{kind}" for kind in _KINDS))
        metrics |= {name: sums[name] / valid for name in means}
        metrics |= {f"share_{kind}": sums[f"num_{kind}"] / valid for kind in _KINDS}
        return metrics | per_unit(sums["nelbo"], valid, sums["bytes"])


class AutoregressiveObjective(Objective):
    """Autoregressive baseline: -log p(x_i | x_<i) of every token but the first."""

    names = ("loss", "tokens", "nll", "valid", "bytes")

    def __init__(
        self, model: AutoregressiveModel, *, token_bytes: Int[Tensor, " V"] | None = None
    ) -> None:
        super().__init__(token_bytes)
        self.model = model

    @property
    def network(self) -> nn.Module:
        """The model itself."""
        return self.model

    def num_targets(self, batch: Batch) -> int | Int[Tensor, ""]:
        """Count the tokens after the first that are not given."""
        later = batch.tokens[:, 1:]
        return later.numel() if batch.given is None else (~batch.given[:, 1:]).sum()

    def forward(
        self, batch: Batch, step: int, num_samples: int, scale: float | Tensor
    ) -> ObjectiveOutput:
        """Compute the next-token cross-entropy; nothing is random, so `step` is not used."""
        del step, num_samples
        hidden = self.model.hidden(batch.tokens)[:, :-1].flatten(0, 1)
        labels, valid = batch.tokens[:, 1:], batch.scored[:, 1:]
        if batch.given is not None:  # the head reads what is scored
            rows = ~batch.given[:, 1:]
            hidden, labels, valid = hidden[rows.flatten()], labels[rows], valid[rows]
        head = self.model.head
        gather(head)
        bias = cast("Tensor | None", head.bias)
        loss, nll = fused_cross_entropy(labels.flatten(), hidden, head.weight, bias, scale)
        with torch.no_grad():
            nll, valid = nll.view_as(labels), valid.to(nll.dtype)
            per_token = [nll * valid, valid, self.bytes_of(labels) * valid]
            return ObjectiveOutput(loss, _sums(nll.sum(), labels.numel(), per_token))

    def summary(self, sums: Mapping[str, float]) -> Metrics:
        """Compute metrics per non-padding token."""
        valid = max(sums["valid"], 1)
        metrics = {"loss": sums["loss"] / max(sums["tokens"], 1), "nll": sums["nll"] / valid}
        return metrics | per_unit(sums["nll"], valid, sums["bytes"])


def _sums(
    loss: Float[Tensor, ""], num_tokens: int | Int[Tensor, ""], per_token: list[Tensor]
) -> Tensor:
    """Return the loss, the number of tokens and sums over tokens, in few operators."""
    is_known = isinstance(num_tokens, int)
    count = loss.new_full((1,), num_tokens) if is_known else num_tokens.to(loss.dtype).view(1)
    return torch.cat([loss.detach().view(1), count, torch.stack(per_token).flatten(1).sum(1)])


def per_unit(nats: float, tokens: float, num_bytes: float) -> Metrics:
    """Convert a likelihood to perplexity, bits per token and bits per byte."""
    metrics = {"ppl": math.exp(min(nats / tokens, 700.0))}
    metrics["bits_per_token"] = nats / tokens / math.log(2)
    if num_bytes:
        metrics["bits_per_byte"] = nats / num_bytes / math.log(2)
    return metrics
