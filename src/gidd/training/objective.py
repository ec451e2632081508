"""From a batch to the loss, and to the sums that every reported number is made of.

An objective holds the model, so that whatever spreads a module over ranks spreads it as a whole.
It returns sums over tokens, never means: those of all micro-batches and ranks are added up before
anything is divided.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gidd.data.batch import Batch
from gidd.diffusion.fused import CHUNK_TOKENS, fused_loss
from gidd.diffusion.process import noise
from gidd.diffusion.randomness import Stream, random_integers
from gidd.diffusion.schedule import MixingSchedule
from gidd.diffusion.times import TRAINING_EPS, stratified_times
from gidd.diffusion.weighting import Weighting
from gidd.models import AutoregressiveModel, Denoiser
from gidd.training.parallel import ShardableNetwork

if TYPE_CHECKING:
    from jaxtyping import Float, Int

Metrics = dict[str, float]


class ObjectiveOutput(NamedTuple):
    """What a micro-batch gives."""

    loss: Float[Tensor, ""]
    """Ready for `backward`."""

    sums: Float[Tensor, " K"]
    """Sums over this rank's tokens, without gradient, in the order of `Objective.names`."""


class Objective(nn.Module, ABC):
    """A model and what it is trained for."""

    names: tuple[str, ...]
    """Names of the sums."""

    @property
    @abstractmethod
    def network(self) -> ShardableNetwork:
        """The network, with the blocks that are spread over ranks."""

    @abstractmethod
    def num_targets(self, length: int) -> int:
        """Tokens of a sample of this length that have a loss."""

    @abstractmethod
    def forward(self, batch: Batch, step: int, num_samples: int, scale: float) -> ObjectiveOutput:
        """Loss, times `scale`, and sums of some samples of batch number `step`.

        `num_samples` is how many samples that batch has on all ranks together.
        """

    @abstractmethod
    def summary(self, sums: Mapping[str, float]) -> Metrics:
        """Means and shares from sums over as many tokens as there were."""


class DiffusionObjective(Objective):
    """The NELBO of Eq. 14, or its reweighted form, at one random time per sample."""

    names = (
        "loss",
        "tokens",
        "nelbo",
        "valid",
        "bytes",
        "kl",
        "itakura_saito",
        *(f"{what}_{kind}" for kind in ("masked", "replaced", "kept") for what in ("nelbo", "num")),
    )

    def __init__(
        self,
        denoiser: Denoiser,
        schedule: MixingSchedule,
        weighting: Weighting,
        *,
        seed: int = 0,
        eps: float = TRAINING_EPS,
        token_bytes: Int[Tensor, " V"] | None = None,
        chunk_tokens: int = CHUNK_TOKENS,
        compiled: bool = False,
    ) -> None:
        """`token_bytes`: bytes of text that each id stands for. The last two: `fused_loss`."""
        super().__init__()
        self.denoiser, self.schedule, self.weighting = denoiser, schedule, weighting
        self.seed, self.eps = seed, eps
        self.token_bytes = token_bytes
        self.chunk_tokens, self.compiled = chunk_tokens, compiled

    @property
    def network(self) -> ShardableNetwork:
        """The denoiser's backbone."""
        return cast(ShardableNetwork, self.denoiser.backbone)

    def num_targets(self, length: int) -> int:
        """All of them: padding enters the loss, though not the ELBO (App. E)."""
        return length

    def forward(self, batch: Batch, step: int, num_samples: int, scale: float) -> ObjectiveOutput:
        """Draw t and z_t, which belong to the sample, and score what the model makes of them."""
        x = batch.tokens
        slot = batch.sample_index % num_samples
        t = stratified_times(self.seed, step, slot, num_samples, self.eps)
        position = torch.arange(x.shape[1], device=x.device)
        u = random_integers(self.seed, Stream.NOISE, 0, batch.sample_index, position)
        z = noise(self.schedule, t, x, u)
        loss_weight = self.weighting(t, x, z)
        hidden = self.denoiser.hidden(z, t)
        loss, weight, kl, itakura_saito = fused_loss(
            self.schedule,
            t,
            x,
            z,
            hidden,
            *self.denoiser.head(),
            loss_weight * scale,
            self.chunk_tokens,
            self.compiled,
        )
        with torch.no_grad():
            weight, valid = weight * batch.valid, batch.valid
            nelbo = weight * (kl + itakura_saito)
            masked, kept = self._is_mask(z), z == x
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

    def _is_mask(self, z: Tensor) -> Tensor:
        mask_id = self.schedule.vocab.mask_id
        return torch.zeros_like(z, dtype=torch.bool) if mask_id is None else z == mask_id

    def summary(self, sums: Mapping[str, float]) -> Metrics:
        """The NELBO is per token of text; those of the three kinds of token add up to it."""
        valid = max(sums["valid"], 1)
        metrics = {"loss": sums["loss"] / max(sums["tokens"], 1)}
        for name in (
            "nelbo",
            "kl",
            "itakura_saito",
            "nelbo_masked",
            "nelbo_replaced",
            "nelbo_kept",
        ):
            metrics[name] = sums[name] / valid
        for kind in ("masked", "replaced", "kept"):
            metrics[f"share_{kind}"] = sums[f"num_{kind}"] / valid
        return metrics | per_unit(sums["nelbo"], valid, sums["bytes"])


class AutoregressiveObjective(Objective):
    """The twin: -log p(x_i | x_<i) of every token but the first."""

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
    def network(self) -> ShardableNetwork:
        """The model itself."""
        return cast(ShardableNetwork, self.model)

    def num_targets(self, length: int) -> int:
        """All but the first token."""
        return length - 1

    def forward(self, batch: Batch, step: int, num_samples: int, scale: float) -> ObjectiveOutput:
        """Score every next token; nothing is drawn, so nothing depends on the step."""
        del step, num_samples
        hidden = self.model.hidden(batch.tokens)[:, :-1].flatten(0, 1)
        labels, valid = batch.tokens[:, 1:], batch.valid[:, 1:]
        parts = zip(
            hidden.split(self.chunk_tokens), labels.flatten().split(self.chunk_tokens), strict=True
        )
        # logits of one chunk at a time, and again in the backward pass
        nll = torch.cat(
            [
                cast(Tensor, checkpoint(self._nll, states, label, use_reentrant=False))
                for states, label in parts
            ]
        ).view_as(labels)
        sums = (
            nll.sum(),
            torch.tensor(labels.numel()),
            (nll * valid).sum(),
            valid.sum(),
            num_bytes(self.token_bytes, labels, valid),
        )
        return ObjectiveOutput(
            nll.sum() * scale, torch.stack([part.detach().to(nll) for part in sums])
        )

    def summary(self, sums: Mapping[str, float]) -> Metrics:
        """Per token of text."""
        valid = max(sums["valid"], 1)
        metrics = {"loss": sums["loss"] / max(sums["tokens"], 1), "nll": sums["nll"] / valid}
        return metrics | per_unit(sums["nll"], valid, sums["bytes"])

    def _nll(self, states: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.model.head(states).float(), labels, reduction="none")


def num_bytes(token_bytes: Tensor | None, tokens: Tensor, valid: Tensor) -> Tensor:
    """Bytes of text that the valid tokens stand for; 0 where that is not known."""
    if token_bytes is None:
        return torch.zeros((), device=tokens.device)
    return (token_bytes.to(tokens.device)[tokens] * valid).sum()


def per_unit(nats: float, tokens: float, num_bytes: float) -> Metrics:
    """A likelihood in the units that people compare: perplexity, bits per token and per byte."""
    metrics = {"ppl": math.exp(min(nats / tokens, 700.0)), "bits_per_token": nats / tokens}
    metrics["bits_per_token"] /= math.log(2)
    if num_bytes:
        metrics["bits_per_byte"] = nats / num_bytes / math.log(2)
    return metrics
