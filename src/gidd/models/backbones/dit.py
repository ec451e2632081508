"""The diffusion transformer of the paper: bidirectional, conditioned on the time by adaLN."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast, final

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gidd.diffusion.schedule import Flags, Sequences, Times
from gidd.models.backbones.dit_config import DiTConfig
from gidd.models.backbones.layers import (
    Block,
    Embedding,
    LocalMixing,
    Network,
    TimeEmbedding,
    attention_mask,
    layer_norm,
    modulate,
    require_length,
    rotation,
)
from gidd.models.context import Context
from gidd.models.networks import Initializer

if TYPE_CHECKING:
    from jaxtyping import Float

_MIXING_BOUND = 0.2
"""Initial weights of local mixing are uniform in +-0.2: about a tenth of the input."""


@final
class DiT(Network):
    """A diffusion transformer (App. E) from noisy tokens and a time to hidden states and logits.

    The logits of a new model are exactly zero: head and modulations start at 0 (adaLN-zero).
    Build a large model under `torch.device("meta")`; then call `to_empty` and `reset_parameters`.
    """

    accepts_padding = accepts_context = True

    def __init__(self, config: DiTConfig) -> None:
        super().__init__()
        self.config = config
        self.uses_time = config.uses_time
        self.accepts_segments = not config.mixing_width  # mixing reads across documents
        width, time_width = config.width, config.time_width
        self.embedding = Embedding(config.vocab_size, width)
        self.time = TimeEmbedding(time_width)
        self.blocks = nn.ModuleList(
            Block(width, config.num_heads, time_width, config.dropout, config.mixing_width)
            for _ in range(config.num_layers)
        )
        self.final_norm = layer_norm(width)
        self.final_modulation = nn.Linear(time_width, 2 * width)
        self.head = nn.Linear(width, config.vocab_size)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, initial: Initializer | None = None) -> None:
        """Initialise all weights: uniform in +-1/sqrt(inputs); zero in the head and modulations."""
        initial = initial or Initializer()
        zero = {self.head, self.final_modulation} | {block.modulation for block in self.blocks}
        for module in self.modules():
            if module in zero:
                for parameter in module.parameters():
                    parameter.zero_()
            elif isinstance(module, nn.Linear):
                for parameter in module.parameters():
                    initial.uniform(parameter, module.in_features**-0.5)
            elif isinstance(module, nn.Embedding):
                initial.uniform(module.weight, module.embedding_dim**-0.5)
            elif isinstance(module, LocalMixing):
                initial.uniform(module.weight, _MIXING_BOUND)
            elif isinstance(module, nn.LayerNorm):
                module.weight.fill_(1)

    def hidden(
        self,
        z: Sequences,
        t: Times,
        valid: Flags | None = None,
        segments: Sequences | None = None,
        *,
        context: Context | None = None,
    ) -> Float[Tensor, "B L D"]:
        """Hidden states before the head; they depend on valid tokens, or on their segment, only."""
        length = require_length(z, self.config.max_length)
        positions = None if context is None else context.positions
        length = length if positions is None else self.config.max_length
        angles = rotation(length, self.config.width // self.config.num_heads, z.device)
        mask = attention_mask(valid, segments) if context is None else context.mask
        same = self.time(self.config.time_input(t)), angles.at(positions), valid, mask
        x = self.embedding(z)
        for k, block in enumerate(self.blocks):
            further = () if context is None else (context.extend(k), context.groups)
            if self.config.checkpoint_activations and self.training:
                x = cast(Tensor, checkpoint(block, x, *same, *further, use_reentrant=False))
            else:
                x = block(x, *same, *further)
        shift, scale = self.final_modulation(same[0])[:, None, :].chunk(2, dim=-1)
        return modulate(self.final_norm(x), shift, scale)
