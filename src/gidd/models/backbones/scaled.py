"""A bidirectional transformer without time, for the authors' models of 3B and 10B parameters.

Parameters have the names of the published files. Factors let one learning rate serve all sizes:

    x = x + (residual_scale / num_layers) f(norm(x))    for attention and for the MLP of each layer
    logits = head_scale head(norm(x))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gidd.common.config.allowed import POSITIVE
from gidd.diffusion.schedule import Flags, Sequences, Times
from gidd.models.backbones.dit_config import Size, require_sizes
from gidd.models.backbones.layers import (
    Mask,
    RotaryTransformer,
    Rotation,
    States,
    attention_mask,
    rotate,
)

if TYPE_CHECKING:
    from jaxtyping import Float

_QUERIES = 256
"""Queries whose scores are in memory at once: torch's fused attention has no soft cap."""


@final
@dataclass(frozen=True, kw_only=True)
class GiddScalingConfig:
    """Sizes and constants of a `ScaledTransformer`."""

    vocab_size: Size
    """Rows of the embedding and of the head."""
    max_length: Size
    """Longest sequence, in tokens."""
    width: Size
    """Hidden size; that of the MLPs is four times as large."""
    num_layers: Size
    """Number of layers."""
    num_heads: Size
    """Attention heads."""
    residual_scale: Annotated[float, POSITIVE] = 4.0
    """The output of attention and MLP is multiplied by residual_scale / num_layers."""
    head_scale: Annotated[float, POSITIVE] = 1.0
    """Factor of the logits; the published models have 512 / width."""
    soft_cap: Annotated[float, POSITIVE] = 30.0
    """Attention scores s become soft_cap tanh(s / soft_cap)."""
    rotary_base: Annotated[float, POSITIVE] = 10_000.0
    """Base of the wavelengths of rotary position embedding."""
    norm_eps: Annotated[float, POSITIVE] = 1e-6
    """Added to the mean square in every RMS norm."""
    equal_blocks: ClassVar[str] = "layers"

    __post_init__ = require_sizes

    def build(self) -> ScaledTransformer:
        """Build the network."""
        return ScaledTransformer(self)


@final
class ScaledTransformer(RotaryTransformer):
    """From noisy tokens to hidden states and logits; the time is ignored."""

    has_mixed_types = True

    def __init__(self, config: GiddScalingConfig) -> None:
        super().__init__(config, _Layer, _RMSNorm)

    def hidden(self, z: Sequences, t: Times, valid: Flags | None = None) -> Float[Tensor, "B L D"]:
        """Hidden states before the head, times `head_scale`; they do not depend on padding."""
        return self.norm(self.run_layers(z, attention_mask(valid)), self.config.head_scale)


class _RMSNorm(nn.Module):
    """Division by the root mean square, then a factor 1 + weight, both in float32."""

    def __init__(self, config: GiddScalingConfig) -> None:
        super().__init__()
        self.eps = config.norm_eps
        self.weight = nn.Parameter(torch.zeros(config.width))

    def forward(self, x: Float[Tensor, "... D"], factor: float = 1.0) -> Float[Tensor, "... D"]:
        wide = x.float()
        scale = factor * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * scale * (1 + self.weight.float())).to(x.dtype)


class _Attention(nn.Module):
    """Bidirectional attention with soft-capped scores and one more key and value per head.

    The rows of `k_bias` and `v_bias`, one per head, are a key and a value in front of those of the
    tokens: not normalised, not rotated, and visible to every query. As queries are rotated, the
    score of this key depends on the absolute position: documents cannot be packed into a row. Other
    queries and keys are normalised over the whole width, before they are split into heads.
    """

    def __init__(self, config: GiddScalingConfig) -> None:
        super().__init__()
        width, self.soft_cap = config.width, config.soft_cap
        head_width = width // config.num_heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        self.q_norm, self.k_norm = _RMSNorm(config), _RMSNorm(config)
        self.k_bias = nn.Parameter(torch.zeros(config.num_heads, head_width))
        self.v_bias = nn.Parameter(torch.zeros(config.num_heads, head_width))

    def forward(self, x: States, angles: Rotation, mask: Mask | None) -> States:
        parts = self.q_norm(self.q_proj(x)), self.k_norm(self.k_proj(x)), self.v_proj(x)
        q, k, v = (part.unflatten(-1, (len(self.k_bias), -1)).transpose(1, 2) for part in parts)
        k, queries = rotate(k, angles), rotate(q, angles).split(_QUERIES, dim=2)
        mixed = [self._attend(some, k, v, mask) for some in queries]
        return self.o_proj(torch.cat(mixed, dim=2).transpose(1, 2).flatten(2))

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Attend to the tokens and to the first key, whose scores stay apart: aligned products."""
        first = self._capped((q.float() * self.k_bias[:, None]).sum(-1, keepdim=True))
        scores = self._capped((q @ k.mT).float())
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        total = torch.logaddexp(scores.logsumexp(-1, keepdim=True), first)
        bias_weight, rest = (first - total).exp(), (scores - total).exp()
        return rest.to(v.dtype) @ v + (bias_weight * self.v_bias[:, None]).to(v.dtype)

    def _capped(self, scores: Tensor) -> Tensor:
        return self.soft_cap * (scores * (self.k_bias.shape[-1] ** -0.5 / self.soft_cap)).tanh()


class _MLP(nn.Module):
    """Two linear layers with a squared ReLU."""

    def __init__(self, config: GiddScalingConfig) -> None:
        super().__init__()
        self.up_proj = nn.Linear(config.width, 4 * config.width)
        self.down_proj = nn.Linear(4 * config.width, config.width)

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        return self.down_proj(F.relu(self.up_proj(x)).square())


class _Layer(nn.Module):
    """Attention and MLP, each with a norm and a residual connection with a factor of depth."""

    def __init__(self, config: GiddScalingConfig) -> None:
        super().__init__()
        self.factor = config.residual_scale / config.num_layers
        self.attn_layernorm = _RMSNorm(config)
        self.self_attn = _Attention(config)
        self.mlp_layernorm = _RMSNorm(config)
        self.mlp = _MLP(config)

    def forward(self, x: States, angles: Rotation, mask: Mask | None) -> States:
        attended = self.self_attn(self.attn_layernorm(x), angles, mask)
        x = torch.add(x, attended, alpha=self.factor)
        return torch.add(x, self.mlp(self.mlp_layernorm(x)), alpha=self.factor)
