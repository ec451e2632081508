"""Layers of a diffusion transformer. Shapes: B batch, L length, D hidden size, H heads."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gidd.common.devices import kind_of
from gidd.errors import ConfigError

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

ROTARY_BASE = 10_000.0
TIME_FEATURES = 256
"""Number of sinusoidal features of the time."""


class Rotation(NamedTuple):
    """Cosines and sines of rotary position embedding, one row per position."""

    cos: Float[Tensor, "L head_width"]
    sin: Float[Tensor, "L head_width"]


def require_length(z: Int[Tensor, "B L"], max_length: int) -> int:
    """Return the length of sequences, or raise if it exceeds the context of a network."""
    if (length := z.shape[1]) > max_length:
        raise ConfigError(
            f"a sequence can have at most model.max_length = {max_length} tokens, got {length}."
        )
    return length


def rotation(
    length: int, head_width: int, device: torch.device, base: float = ROTARY_BASE
) -> Rotation:
    """Rotary angles of positions 0 .. length - 1, always float32.

    No buffer, which would be rounded to bf16 and lost on the meta device: a CPU computes them in
    every forward pass; for a GPU, where each operation is a launch, they are kept.
    """
    compute = _kept_rotation if device.type == "cuda" else _rotation
    return compute(length, head_width, device, base)


def _rotation(length: int, head_width: int, device: torch.device, base: float) -> Rotation:
    exponent = torch.arange(0, head_width, 2, device=device, dtype=torch.float32) / head_width
    frequency = 1.0 / base**exponent
    position = torch.arange(length, device=device, dtype=torch.float32)
    angle = (position[:, None] * frequency).repeat(1, 2)
    return Rotation(angle.cos(), angle.sin())


@lru_cache(maxsize=64)
def _kept_rotation(length: int, head_width: int, device: torch.device, base: float) -> Rotation:
    with torch.inference_mode(False):  # used in training as well
        return _rotation(length, head_width, device, base)


def _time_frequencies(device: torch.device) -> Float[Tensor, " half"]:
    half = TIME_FEATURES // 2
    index = torch.arange(half, device=device, dtype=torch.float32)
    return torch.exp(-math.log(10_000.0) * index / half)


@lru_cache(maxsize=64)
def _kept_time_frequencies(device: torch.device) -> Float[Tensor, " half"]:
    with torch.inference_mode(False):
        return _time_frequencies(device)


def rotate(x: Float[Tensor, "... L head_width"], angles: Rotation) -> Tensor:
    """Rotate the pairs (i, i + head_width / 2) of every head by the angles of its position."""
    first, second = x.chunk(2, dim=-1)
    rotated = x * angles.cos + torch.cat([-second, first], dim=-1) * angles.sin
    return rotated.to(x.dtype)


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Shift and scale normalised hidden states (adaptive layer norm)."""
    return x * (1 + scale) + shift


def layer_norm(width: int) -> nn.LayerNorm:
    """Layer norm with a weight and no bias; torch computes mean and variance in float32."""
    return nn.LayerNorm(width, eps=1e-5, bias=False)


class Embedding(nn.Embedding):
    """Embedding of tokens."""

    def reset_parameters(self) -> None:
        """Initialise, except on the meta device: torch would import its compiler, in 2 s."""
        if not self.weight.is_meta:
            super().reset_parameters()


class TimeEmbedding(nn.Module):
    """Embedding of a time in [0, 1]: cosines and sines, then two linear layers.

    Unlike in many other models the time is not multiplied by 1000: the published weights were
    trained this way.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.input = nn.Linear(TIME_FEATURES, width)
        self.output = nn.Linear(width, width)

    def forward(self, t: Float[Tensor, " B"]) -> Float[Tensor, "B time_width"]:
        """Conditioning vector of all blocks."""
        kept = t.device.type == "cuda"
        frequencies = (_kept_time_frequencies if kept else _time_frequencies)(t.device)
        angle = t.float()[:, None] * frequencies
        features = torch.cat([angle.cos(), angle.sin()], dim=-1).to(self.input.weight.dtype)
        return F.silu(self.output(F.silu(self.input(features))))


def attention_mask(
    valid: Bool[Tensor, "B L"] | None, segments: Int[Tensor, "B L"] | None = None
) -> Bool[Tensor, "B 1 queries L"] | None:
    """Return which keys each query reads: those of its segment, else the valid ones; None: all.

    The queries at padding are computed too, from valid keys or from padding, so that they are
    finite.
    """
    if segments is not None:
        return segments[:, None, :, None] == segments[:, None, None, :]
    return None if valid is None else valid[:, None, None, :]


class Attention(nn.Module):
    """Bidirectional multi-head self-attention without biases."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(
        self,
        x: Float[Tensor, "B L D"],
        angles: Rotation,
        mask: Bool[Tensor, "B 1 queries L"] | None,
    ) -> Float[Tensor, "B L D"]:
        """Attend where the mask is True with rotated queries and keys; values are not rotated."""
        qkv = self.qkv(x)
        dtype, kind = qkv.dtype, kind_of(qkv)
        if kind == "cpu" and qkv.requires_grad:
            # on CPUs torch's backward pass takes up to four times as long in bf16, and was not
            # faster at any length tried
            qkv = qkv.float()
        parts = qkv.unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        if kind == "cpu":
            q, k = rotate(parts[0], angles), rotate(parts[1], angles)
        else:  # half as many launches; slower on a CPU
            q, k = rotate(parts[:2], angles)
        with torch.autocast(qkv.device.type, enabled=False):
            mixed = F.scaled_dot_product_attention(q, k, parts[2], attn_mask=mask)
        return self.out(mixed.to(dtype).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Two linear layers with a tanh-approximated GELU; the inner size is four times the outer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        """Apply to every position independently."""
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class LocalMixing(nn.Module):
    """Depthwise convolution over positions, added to its input; padding and outside count as 0.

    Attention of a new model is an average over all positions, from which a small model takes
    hundreds of steps to learn to read its neighbours. This layer reads them from the first step.
    """

    def __init__(self, width: int, num_positions: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_positions, width))

    def forward(
        self, x: Float[Tensor, "B L D"], valid: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "B L D"]:
        """Add a weighted sum of each position's neighbours."""
        kernel = self.weight.t()[:, None, :].to(x.dtype)
        padding = len(self.weight) // 2
        read = x if valid is None else x.masked_fill(~valid[..., None], 0)
        mixed = F.conv1d(read.transpose(1, 2), kernel, padding=padding, groups=x.shape[-1])
        return x + mixed.transpose(1, 2)


class Block(nn.Module):
    """Attention and MLP, each with adaptive layer norm, a gate and a residual connection."""

    def __init__(
        self, width: int, num_heads: int, time_width: int, dropout: float, mixing_width: int = 0
    ) -> None:
        super().__init__()
        self.mixing = LocalMixing(width, mixing_width) if mixing_width else None
        self.attention_norm = layer_norm(width)
        self.attention = Attention(width, num_heads)
        self.mlp_norm = layer_norm(width)
        self.mlp = MLP(width)
        self.modulation = nn.Linear(time_width, 6 * width)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "B L D"],
        condition: Float[Tensor, "B time_width"],
        angles: Rotation,
        valid: Bool[Tensor, "B L"] | None = None,
        mask: Bool[Tensor, "B 1 queries L"] | None = None,
    ) -> Float[Tensor, "B L D"]:
        """Apply local mixing of valid tokens, if any, then attention by the mask, then the MLP."""
        if self.mixing is not None:
            x = self.mixing(x, valid)
        parts = self.modulation(condition)[:, None, :].chunk(6, dim=-1)
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = parts
        attended = self.attention(modulate(self.attention_norm(x), shift_a, scale_a), angles, mask)
        x = x + gate_a * self.dropout(attended)
        return x + gate_m * self.dropout(self.mlp(modulate(self.mlp_norm(x), shift_m, scale_m)))
