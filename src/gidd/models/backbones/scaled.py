"""A bidirectional transformer without time, for the authors' models of 3B and 10B parameters.

Parameters have the names of the published files. The factors of depth and width let one learning
rate serve all sizes; they are part of the network, in training and after it:

    x = x + (residual_scale / num_layers) f(norm(x))    for attention and for the MLP of each layer
    logits = head_scale head(norm(x))
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gidd.common.config.allowed import field_problems, number
from gidd.common.terminal import shorten
from gidd.errors import ConfigError
from gidd.models.backbones.dit_config import size_problems
from gidd.models.backbones.layers import (
    Embedding,
    Rotation,
    attention_mask,
    require_length,
    rotate,
    rotation,
)

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

_QUERIES = 256
"""Queries whose scores are in memory at once: torch's fused attention has no soft cap."""

_POSITIVE = number(lambda value: 0 < value < math.inf, "above 0")


@final
@dataclass(frozen=True, kw_only=True)
class ScaledConfig:
    """Sizes and constants of a `ScaledTransformer`."""

    vocab_size: int
    """Rows of the embedding and of the head."""

    max_length: int
    """Longest sequence, in tokens."""

    width: int
    """Hidden size; that of the MLPs is four times as large."""

    num_layers: int
    """Number of layers."""

    num_heads: int
    """Attention heads."""

    residual_scale: float = 4.0
    """The output of attention and MLP is multiplied by residual_scale / num_layers."""

    head_scale: float = 1.0
    """Factor of the logits; the published models have 512 / width."""

    soft_cap: float = 30.0
    """Attention scores s become soft_cap tanh(s / soft_cap)."""

    rotary_base: float = 10_000.0
    """Base of the wavelengths of rotary position embedding."""

    norm_eps: float = 1e-6
    """Added to the mean square in every RMS norm."""

    equal_blocks: ClassVar[str] = "layers"

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "max_length", "width", "num_layers", "num_heads")
        constants = ("residual_scale", "head_scale", "soft_cap", "rotary_base", "norm_eps")
        problems = list(size_problems(self, *sizes))
        problems += field_problems(self, **dict.fromkeys(constants, _POSITIVE))
        if not problems and self.width % (2 * self.num_heads):
            heads, width = shorten(self.num_heads), shorten(self.width)
            problems.append(f"width must be an even multiple of num_heads = {heads}, got {width}.")
        if problems:
            raise ConfigError("\n".join(problems))

    def build(self) -> ScaledTransformer:
        """Build the network."""
        return ScaledTransformer(self)


@final
class ScaledTransformer(nn.Module):
    """From noisy tokens to hidden states and logits; the time is ignored."""

    uses_time = False
    accepts_padding = True
    has_mixed_types = True

    def __init__(self, config: ScaledConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = Embedding(config.vocab_size, config.width)
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.num_layers))
        self.norm = _RMSNorm(config)
        self.head = nn.Linear(config.width, config.vocab_size, bias=False)

    @property
    def blocks(self) -> nn.ModuleList:
        """The layers, under the attribute name of `DiT`."""
        return self.layers

    def hidden(
        self,
        z: Int[Tensor, "B L"],
        t: Float[Tensor, " B"],
        valid: Bool[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "B L D"]:
        """Hidden states before the head, times `head_scale`.

        Those of valid tokens do not depend on padding.
        """
        config = self.config
        length = require_length(z, config.max_length)
        angles = rotation(length, config.width // config.num_heads, z.device, config.rotary_base)
        x, mask = self.embed_tokens(z), attention_mask(valid)
        for layer in self.layers:
            x = layer(x, angles, mask)
        return self.norm(x, config.head_scale)

    def forward(self, z: Int[Tensor, "B L"], t: Float[Tensor, " B"]) -> Float[Tensor, "B L rows"]:
        """Logits of all rows of the head; `Denoiser` converts them to a distribution."""
        return self.head(self.hidden(z, t))


class _RMSNorm(nn.Module):
    """Division by the root mean square, then a factor 1 + weight, both in float32."""

    def __init__(self, config: ScaledConfig) -> None:
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
    tokens, the same for every text: not normalised, not rotated, and visible to every query. A head
    that finds nothing to read in the text attends to them. Queries are rotated, so the score of
    this key depends on the absolute position: documents cannot be packed into a row. Queries and
    keys of the tokens are normalised over the whole width, before they are split into heads.
    """

    def __init__(self, config: ScaledConfig) -> None:
        super().__init__()
        width, self.soft_cap = config.width, config.soft_cap
        head_width = width // config.num_heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        self.q_norm, self.k_norm = _RMSNorm(config), _RMSNorm(config)
        self.k_bias = nn.Parameter(torch.zeros(config.num_heads, head_width))
        self.v_bias = nn.Parameter(torch.zeros(config.num_heads, head_width))

    def forward(
        self, x: Float[Tensor, "B L D"], angles: Rotation, mask: Bool[Tensor, "B 1 1 L"] | None
    ) -> Float[Tensor, "B L D"]:
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
        own, rest = (first - total).exp(), (scores - total).exp()
        return rest.to(v.dtype) @ v + (own * self.v_bias[:, None]).to(v.dtype)

    def _capped(self, scores: Tensor) -> Tensor:
        return self.soft_cap * (scores * (self.k_bias.shape[-1] ** -0.5 / self.soft_cap)).tanh()


class _MLP(nn.Module):
    """Two linear layers with a squared ReLU."""

    def __init__(self, config: ScaledConfig) -> None:
        super().__init__()
        self.up_proj = nn.Linear(config.width, 4 * config.width)
        self.down_proj = nn.Linear(4 * config.width, config.width)

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        return self.down_proj(F.relu(self.up_proj(x)).square())


class _Layer(nn.Module):
    """Attention and MLP, each with a norm and a residual connection with a factor of depth."""

    def __init__(self, config: ScaledConfig) -> None:
        super().__init__()
        self.factor = config.residual_scale / config.num_layers
        self.attn_layernorm = _RMSNorm(config)
        self.self_attn = _Attention(config)
        self.mlp_layernorm = _RMSNorm(config)
        self.mlp = _MLP(config)

    def forward(
        self, x: Float[Tensor, "B L D"], angles: Rotation, mask: Bool[Tensor, "B 1 1 L"] | None
    ) -> Float[Tensor, "B L D"]:
        attended = self.self_attn(self.attn_layernorm(x), angles, mask)
        x = torch.add(x, attended, alpha=self.factor)
        return torch.add(x, self.mlp(self.mlp_layernorm(x)), alpha=self.factor)
