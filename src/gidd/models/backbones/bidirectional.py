"""A bidirectional Llama or Qwen2 without time, for the checkpoints of LLaDA and Dream.

Parameters have the names that `transformers` gives them, so that Dream's files need no renaming.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gidd.common.config.allowed import POSITIVE, integer
from gidd.common.terminal import shorten
from gidd.diffusion.schedule import Flags, Sequences, Times
from gidd.errors import ConfigError
from gidd.models.backbones.dit_config import Size, require_sizes
from gidd.models.backbones.layers import (
    Mask,
    RotaryTransformer,
    Rotation,
    States,
    attention_mask,
    rotate,
)
from gidd.models.context import Context, Extend

if TYPE_CHECKING:
    from jaxtyping import Float


@final
@dataclass(frozen=True, kw_only=True)
class BidirectionalConfig:
    """Sizes and constants of a `BidirectionalTransformer`."""

    vocab_size: Size
    """Rows of the embedding and of the head."""
    max_length: Size
    """Longest sequence, in tokens."""
    width: Size
    """Hidden size."""
    mlp_width: Size
    """Size of the hidden layer of every MLP."""
    num_layers: Size
    """Number of layers."""
    num_heads: Size
    """Attention heads."""
    num_kv_heads: Size
    """Heads of keys and values, each shared by num_heads / num_kv_heads heads of queries."""
    rotary_base: Annotated[float, POSITIVE]
    """Base of the wavelengths of rotary position embedding; 10,000 is common."""
    norm_eps: Annotated[float, POSITIVE]
    """Added to the mean square in every RMS norm."""
    qkv_bias: bool = False
    """Whether queries, keys and values have a bias (Qwen2)."""
    tied_head: bool = False
    """Whether the head is the embedding."""
    shifted_mask_id: Annotated[int, integer(0)] | None = None
    """Mask id of a model whose output at a position predicts the next one (Dream), else None."""
    predicts_first: bool = False
    """Whether the output at the first position was trained to predict its own token, although the
    other outputs are shifted. Otherwise nothing predicts the first token: it must be visible."""
    start_id: Annotated[int, integer(0)] | None = None
    """This token is read before the first, and the output at a position predicts the next token, as
    in a causal model (conversions of `--init-from`)."""
    equal_blocks: ClassVar[str] = "layers"

    def __post_init__(self) -> None:
        require_sizes(self)
        if self.num_heads % self.num_kv_heads:
            kv_heads, got = shorten(self.num_kv_heads), shorten(self.num_heads)
            raise ConfigError(
                f"num_heads must be a multiple of num_kv_heads = {kv_heads}, got {got}."
            )

        if self.start_id is not None and self.start_id >= self.vocab_size:
            raise ConfigError(
                f"start_id must be below vocab_size = {self.vocab_size}, got {self.start_id}."
            )
        if self.start_id is not None and self.shifted_mask_id is not None:
            raise ConfigError("start_id and shifted_mask_id exclude each other. Give one of them.")

    def build(self) -> BidirectionalTransformer:
        """Build the network."""
        return BidirectionalTransformer(self)


@final
class BidirectionalTransformer(RotaryTransformer):
    """From noisy tokens to hidden states and logits; the time is ignored."""

    def __init__(self, config: BidirectionalConfig) -> None:
        super().__init__(config, _Layer, _RMSNorm)
        is_shifted = config.shifted_mask_id is not None
        # a shift crosses documents
        self.accepts_segments = not is_shifted and config.start_id is None
        self.accepts_context = not is_shifted
        self.needs_first_token = is_shifted and not config.predicts_first
        if config.tied_head:
            self.head.weight = self.embed_tokens.weight

    def hidden(
        self,
        z: Sequences,
        t: Times,
        valid: Flags | None = None,
        segments: Sequences | None = None,
        *,
        context: Context | None = None,
    ) -> Float[Tensor, "B L D"]:
        """Hidden states before the head, shifted to the position that they predict.

        They depend on valid tokens, or on those of their segment, only.
        """
        config = self.config
        if context is not None:
            return self.norm(self.run_layers(z, context.mask, context=context))
        if self.needs_first_token and bool((z[:, 0] == config.shifted_mask_id).any()):
            raise ConfigError(
                "the first token must not be masked, as nothing predicts it. Begin the prompt or "
                "template with text; texts cannot be scored with this model."
            )
        if config.start_id is not None:
            valid = None if valid is None else F.pad(valid, (1, 0), value=True)
            return self.norm(self.run_layers(z, attention_mask(valid), config.start_id))[:, :-1]
        x = self.norm(self.run_layers(z, attention_mask(valid, segments)))
        return x if config.shifted_mask_id is None else torch.cat([x[:, :1], x[:, :-1]], dim=1)


class _RMSNorm(nn.Module):
    """Division by the root mean square, in float32, and a weight."""

    def __init__(self, config: BidirectionalConfig) -> None:
        super().__init__()
        self.eps = config.norm_eps
        self.weight = nn.Parameter(torch.ones(config.width))

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * (wide * scale).to(x.dtype)


class _Attention(nn.Module):
    """Bidirectional attention, with heads of keys and values that several queries share."""

    def __init__(self, config: BidirectionalConfig) -> None:
        super().__init__()
        self.head_width = config.width // config.num_heads
        kv_width, bias = config.num_kv_heads * self.head_width, config.qkv_bias
        self.shared = config.num_heads // config.num_kv_heads
        self.q_proj = nn.Linear(config.width, config.width, bias=bias)
        self.k_proj = nn.Linear(config.width, kv_width, bias=bias)
        self.v_proj = nn.Linear(config.width, kv_width, bias=bias)
        self.o_proj = nn.Linear(config.width, config.width, bias=False)

    def forward(
        self, x: States, angles: Rotation, mask: Mask | None, extend: Extend | None = None
    ) -> States:
        q, k, v = (
            layer(x).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        k = rotate(k, angles)
        k, v = (k, v) if extend is None else extend(k, v)
        k, v = (heads.repeat_interleave(self.shared, dim=1) for heads in (k, v))
        mixed = F.scaled_dot_product_attention(rotate(q, angles), k, v, attn_mask=mask)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class _MLP(nn.Module):
    """A gated linear unit with SiLU."""

    def __init__(self, config: BidirectionalConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.width, config.mlp_width, bias=False)
        self.up_proj = nn.Linear(config.width, config.mlp_width, bias=False)
        self.down_proj = nn.Linear(config.mlp_width, config.width, bias=False)

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class _Layer(nn.Module):
    """Attention and MLP, each with a norm and a residual connection."""

    def __init__(self, config: BidirectionalConfig) -> None:
        super().__init__()
        self.input_layernorm = _RMSNorm(config)
        self.self_attn = _Attention(config)
        self.post_attention_layernorm = _RMSNorm(config)
        self.mlp = _MLP(config)

    def forward(
        self, x: States, angles: Rotation, mask: Mask | None, extend: Extend | None = None
    ) -> States:
        x = x + self.self_attn(self.input_layernorm(x), angles, mask, extend)
        return x + self.mlp(self.post_attention_layernorm(x))
