"""Layers of a diffusion transformer. Shapes: B batch, L length, D hidden size, H heads."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gidd.common.devices import constant_on, device_type
from gidd.diffusion.schedule import Flags, Sequences, Times
from gidd.errors import ConfigError
from gidd.models.context import Context, Extend

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

States: TypeAlias = 'Float[Tensor, "B L D"]'
Mask: TypeAlias = 'Bool[Tensor, "B 1 queries L"]'
"""True where a query reads a key."""
ROTARY_BASE = 10_000.0
TIME_FEATURES = 256
"""Number of sinusoidal features of the time."""


class Rotation(NamedTuple):
    """Cosines and sines of rotary position embedding, one row per position."""

    cos: Float[Tensor, "*rows L head_width"]
    sin: Float[Tensor, "*rows L head_width"]

    def at(self, positions: Int[Tensor, "B L"] | None) -> Rotation:
        """Return those of the positions of each row, for all heads; None: of all rows alike."""
        if positions is None:
            return self
        return Rotation(self.cos[positions][:, None], self.sin[positions][:, None])


def require_length(z: Sequences, max_length: int) -> int:
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

    No buffer, which would be rounded to bf16 and lost on the meta device.
    """
    return constant_on(_rotation, device, length, head_width, base)


def rotary_frequencies(head_width: int, device: torch.device, base: float) -> Tensor:
    """Return the angle between neighbouring positions, for each pair of a head."""
    exponent = torch.arange(0, head_width, 2, device=device, dtype=torch.float32) / head_width
    return 1.0 / base**exponent


def _rotation(device: torch.device, length: int, head_width: int, base: float) -> Rotation:
    position = torch.arange(length, device=device, dtype=torch.float32)
    angle = (position[:, None] * rotary_frequencies(head_width, device, base)).repeat(1, 2)
    return Rotation(angle.cos(), angle.sin())


def _time_frequencies(device: torch.device) -> Float[Tensor, " half"]:
    half = TIME_FEATURES // 2
    index = torch.arange(half, device=device, dtype=torch.float32)
    return torch.exp(-math.log(10_000.0) * index / half)


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


class Network(nn.Module):
    """A network with hidden states and a head."""

    head: nn.Linear
    hidden: Any

    def forward(self, z: Sequences, t: Times) -> Float[Tensor, "B L rows"]:
        """Logits of all rows of the head; `Denoiser` converts them to a distribution."""
        return self.head(self.hidden(z, t))


class RotaryTransformer(Network):
    """A transformer without time: embedding, layers of (x, angles, mask), norm and head."""

    uses_time = False
    accepts_padding = True

    def __init__(self, config: Any, layer: type[nn.Module], norm: type[nn.Module]) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = Embedding(config.vocab_size, config.width)
        self.layers = nn.ModuleList(layer(config) for _ in range(config.num_layers))
        self.norm = norm(config)
        self.head = nn.Linear(config.width, config.vocab_size, bias=False)

    @property
    def blocks(self) -> nn.ModuleList:
        """The layers, under the attribute name of `DiT`."""
        return self.layers

    def run_layers(
        self,
        z: Sequences,
        mask: Mask | None,
        start_id: int | None = None,
        context: Context | None = None,
    ) -> States:
        """Hidden states before the norm; the token `start_id` is read before the first."""
        config, positions = self.config, None if context is None else context.positions
        if positions is None:
            length = require_length(z, config.max_length) + (start_id is not None)
            z = z if start_id is None else F.pad(z, (1, 0), value=start_id)
        else:
            length = config.max_length + 1
        angles = rotation(length, config.width // config.num_heads, z.device, config.rotary_base)
        x, angles = self.embed_tokens(z), angles.at(positions)
        for k, layer in enumerate(self.layers):
            x = layer(x, angles, mask, *(() if context is None else (context.extend(k),)))
        return x


class TimeEmbedding(nn.Module):
    """Embedding of a time in [0, 1]: cosines and sines, then two linear layers.

    The time is not multiplied by 1000: the published weights were trained this way.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.input = nn.Linear(TIME_FEATURES, width)
        self.output = nn.Linear(width, width)

    def forward(self, t: Float[Tensor, " B"]) -> Float[Tensor, "B time_width"]:
        """Conditioning vector of all blocks."""
        angle = t.float()[:, None] * constant_on(_time_frequencies, t.device)
        features = torch.cat([angle.cos(), angle.sin()], dim=-1).to(self.input.weight.dtype)
        return F.silu(self.output(F.silu(self.input(features))))


def attention_mask(valid: Flags | None, segments: Sequences | None = None) -> Mask | None:
    """Return which keys each query reads: those of its segment, else the valid ones; None: all.

    Queries at padding read too, so that they are finite.
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
        self, x: States, angles: Rotation, mask: Mask | None, extend: Extend | None = None
    ) -> States:
        """Attend where the mask is True with rotated queries and keys; values are not rotated."""
        qkv = self.qkv(x)
        dtype, kind = qkv.dtype, device_type(qkv)
        if kind == "cpu" and qkv.requires_grad:
            qkv = qkv.float()  # torch's backward pass takes up to four times as long in bf16
        parts = qkv.unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        if kind == "cpu":
            q, k = rotate(parts[0], angles), rotate(parts[1], angles)
        else:  # half as many launches; slower on a CPU
            q, k = rotate(parts[:2], angles)
        k, v = (k, parts[2]) if extend is None else extend(k, parts[2])
        with torch.autocast(qkv.device.type, enabled=False):
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
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

    It reads neighbours from the first step on; attention takes hundreds of steps to learn that.
    """

    def __init__(self, width: int, num_positions: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_positions, width))

    def forward(
        self, x: States, valid: Flags | None = None, groups: Sequences | None = None
    ) -> States:
        """Add a weighted sum of each position's neighbours: those of its group, if there are any.

        Groups hide padding as well.
        """
        if groups is not None:
            return x + self._mixed_in_groups(x, groups)
        kernel = self.weight.t()[:, None, :].to(x.dtype)
        padding = len(self.weight) // 2
        read = x if valid is None else x.masked_fill(~valid[..., None], 0)
        mixed = F.conv1d(read.transpose(1, 2), kernel, padding=padding, groups=x.shape[-1])
        return x + mixed.transpose(1, 2)

    def _mixed_in_groups(self, x: States, groups: Sequences) -> States:
        reach, length, mixed = len(self.weight) // 2, x.shape[1], torch.zeros_like(x)
        states, numbers = F.pad(x, (0, 0, reach, reach)), F.pad(groups, (reach, reach), value=-2)
        for i, weight in enumerate(self.weight.to(x.dtype)):
            is_same = numbers[:, i : i + length] == groups
            mixed = torch.addcmul(mixed, states[:, i : i + length] * is_same[..., None], weight)
        return mixed


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
        x: States,
        condition: Float[Tensor, "B time_width"],
        angles: Rotation,
        valid: Flags | None = None,
        mask: Mask | None = None,
        extend: Extend | None = None,
        groups: Sequences | None = None,
    ) -> States:
        """Apply local mixing of valid tokens, if any, then attention by the mask, then the MLP."""
        if self.mixing is not None:
            x = self.mixing(x, valid, groups)
        parts = self.modulation(condition)[:, None, :].chunk(6, dim=-1)
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = parts
        attended = self.attention(
            modulate(self.attention_norm(x), shift_a, scale_a), angles, mask, extend
        )
        x = x + gate_a * self.dropout(attended)
        return x + gate_m * self.dropout(self.mlp(modulate(self.mlp_norm(x), shift_m, scale_m)))
