"""Metrics of a training step: `sums = metrics(noisy, loss)`, added up, then means."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, final

import torch
from torch import Tensor

from gidd.common.devices import copy_to
from gidd.diffusion.times import time_weights
from gidd.training.corruption import NoisyBatch
from gidd.training.objective import NoisyLoss

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

Metrics = dict[str, float]

_KINDS = ("masked", "replaced", "kept")
"""Kinds of noisy tokens: the mask, a random token, the clean token."""

NAMES: Final = (
    *("loss", "tokens", "nelbo", "valid", "bytes", "kl", "itakura_saito"),
    *(f"{prefix}_{kind}" for prefix in ("nelbo", "num") for kind in _KINDS),
)
"""Names of the sums."""


@final
class StepMetrics:
    """Sums over the tokens of a micro-batch, in the order of `NAMES`."""

    def __init__(self, token_bytes: Int[Tensor, " V"] | None = None) -> None:
        self.token_bytes = token_bytes
        """UTF-8 bytes of each token, in host memory; None if the tokenizer does not define them."""
        self._token_bytes_on: dict[torch.device, Tensor] = {}

    @torch.no_grad()
    def __call__(self, noisy: NoisyBatch, loss: NoisyLoss | Tensor) -> Float[Tensor, " K"]:
        """Return the sums over this rank's tokens; of a loss without terms, only the loss."""
        batch, num_targets = noisy.batch, noisy.num_targets
        if isinstance(loss, Tensor):
            nothing = torch.zeros_like(batch.valid, dtype=loss.dtype)
            return _sums(loss / noisy.scale, num_targets, [nothing] * (len(NAMES) - 2))
        z, (total, weight, kl, itakura_saito), reported = loss
        scored = batch.scored if reported is None else batch.scored & reported[:, None]
        valid = scored.to(weight.dtype)
        weight = weight * valid
        if noisy.time_power != 1:  # the density of times changes the loss, not the NELBO
            weight = weight * time_weights(noisy.t, noisy.eps, noisy.time_power)[:, None]
        nelbo, kinds = weight * (kl + itakura_saito), _kinds(noisy, z)
        per_token = [nelbo, valid, self.bytes_of(batch.tokens) * valid, weight * kl]
        per_token += [weight * itakura_saito, *(nelbo * kinds), *(valid * kinds)]
        return _sums(total / noisy.scale, num_targets, per_token)

    def bytes_of(self, tokens: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        """Return the UTF-8 bytes of each token; 0 if the tokenizer does not define them."""
        if self.token_bytes is None:
            return torch.zeros_like(tokens)
        device = tokens.device
        if device not in self._token_bytes_on:
            self._token_bytes_on[device] = copy_to(self.token_bytes, device)
        return self._token_bytes_on[device][tokens]


def summary(sums: Mapping[str, float]) -> Metrics:
    """Compute metrics per non-padding token; `nelbo_*` of the three kinds add up to `nelbo`."""
    valid = max(sums["valid"], 1)
    metrics = {"loss": sums["loss"] / max(sums["tokens"], 1)}
    if not sums["valid"]:
        return metrics
    means = ("nelbo", "kl", "itakura_saito", *(f"nelbo_{kind}" for kind in _KINDS))
    metrics |= {name: sums[name] / valid for name in means}
    metrics |= {f"share_{kind}": sums[f"num_{kind}"] / valid for kind in _KINDS}
    return metrics | per_unit(sums["nelbo"], valid, sums["bytes"])


def per_unit(nats: float, tokens: float, num_bytes: float) -> Metrics:
    """Convert a likelihood to perplexity, bits per token and bits per byte."""
    metrics = {"ppl": math.exp(min(nats / tokens, 700.0))}
    metrics["bits_per_token"] = nats / tokens / math.log(2)
    if num_bytes:
        metrics["bits_per_byte"] = nats / num_bytes / math.log(2)
    return metrics


def _kinds(noisy: NoisyBatch, z: Int[Tensor, "B L"]) -> Bool[Tensor, "3 B L"]:
    mask_id, kept = noisy.schedule.vocab.mask_id, z == noisy.batch.tokens
    masked = torch.zeros_like(kept) if mask_id is None else z == mask_id
    return torch.stack([masked, ~(masked | kept), kept])


def _sums(
    loss: Float[Tensor, ""], num_tokens: int | Int[Tensor, ""], per_token: list[Tensor]
) -> Tensor:
    """Return the loss, the number of tokens and sums over tokens, in few operators."""
    is_known = isinstance(num_tokens, int)
    count = loss.new_full((1,), num_tokens) if is_known else num_tokens.to(loss.dtype).view(1)
    return torch.cat([loss.detach().view(1), count, torch.stack(per_token).flatten(1).sum(1)])
