"""The diffusion transformer of the paper: bidirectional, told the time by adaptive layer norm."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, cast, final

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gidd.errors import ConfigError
from gidd.models.backbones.layers import Block, TimeEmbedding, layer_norm, modulate, rotation
from gidd.models.init import Initializer

if TYPE_CHECKING:
    from jaxtyping import Float, Int


@dataclass(frozen=True, kw_only=True)
class DiTConfig:
    """Sizes of a `DiT`. The classmethods are the named sizes, e.g. `DiTConfig.small(50258)`."""

    vocab_size: int
    """Rows of the embedding and of the head: at least `vocab.size`; more rows are padding."""

    max_length: int = 512
    """Longest sequence, in tokens; any shorter one is allowed too."""

    width: int
    """Features of a position (D)."""

    num_layers: int
    """Number of blocks."""

    num_heads: int
    """Attention heads; each has width / num_heads features, an even number."""

    time_width: int = 128
    """Features of the time that all blocks are told."""

    dropout: float = 0.0
    """Share of features dropped before each addition, in training only; the paper drops none."""

    checkpoint_activations: bool = False
    """Compute every block's activations twice instead of keeping them: less memory, more time."""

    def __post_init__(self) -> None:
        """Refuse impossible sizes, all of them in one message."""
        problems = list(self._problems())
        if problems:
            raise ConfigError("\n".join(problems))

    def _problems(self) -> Iterable[str]:
        positive = ("vocab_size", "max_length", "width", "num_layers", "num_heads", "time_width")
        values: dict[str, object] = {field: getattr(self, field) for field in positive}
        wrong = {field: v for field, v in values.items() if type(v) is not int or v < 1}
        for field, value in wrong.items():
            yield f"model.{field} must be a whole number of at least 1, got {value!r}."
        if not wrong and self.width % (2 * self.num_heads):
            yield (
                f"model.width must be an even multiple of model.num_heads = {self.num_heads}, got "
                f"{self.width}. Heads share the width equally and rotate features in pairs; "
                f"{2 * self.num_heads * max(1, self.width // (2 * self.num_heads))} would do."
            )
        if not 0 <= self.dropout < 1:
            yield (
                f"model.dropout must be in [0, 1), got {self.dropout}. "
                "It is the share of features dropped in training; the paper drops none."
            )

    @property
    def num_block_parameters(self) -> int:
        """Parameters of all blocks: what is usually called the non-embedding count."""
        attention_and_mlp = 12 * self.width**2 + (4 + 1) * self.width
        norms, modulation = 2 * self.width, 6 * self.width * (self.time_width + 1)
        return self.num_layers * (attention_and_mlp + norms + modulation)

    @classmethod
    def nano(cls, vocab_size: int, max_length: int = 512) -> Self:
        """1.0M parameters in the blocks: trains on a laptop in minutes."""
        return cls._sized(vocab_size, max_length, 128, 4, 4, time_width=64)

    @classmethod
    def micro(cls, vocab_size: int, max_length: int = 512) -> Self:
        """5.3M parameters in the blocks: trains on a laptop in hours."""
        return cls._sized(vocab_size, max_length, 256, 6, 4, time_width=64)

    @classmethod
    def tiny(cls, vocab_size: int, max_length: int = 512) -> Self:
        """28.4M parameters in the blocks, as in the paper."""
        return cls._sized(vocab_size, max_length, 512, 8, 8)

    @classmethod
    def small(cls, vocab_size: int, max_length: int = 512) -> Self:
        """92.1M parameters in the blocks, as in the paper."""
        return cls._sized(vocab_size, max_length, 768, 12, 12)

    @classmethod
    def base(cls, vocab_size: int, max_length: int = 512) -> Self:
        """321.2M parameters in the blocks, as in the paper."""
        return cls._sized(vocab_size, max_length, 1024, 24, 16)

    @classmethod
    def one_billion(cls, vocab_size: int, max_length: int = 512) -> Self:
        """1.04B parameters in the blocks."""
        return cls._sized(vocab_size, max_length, 2048, 20, 16)

    @classmethod
    def three_billion(cls, vocab_size: int, max_length: int = 512) -> Self:
        """3.01B parameters in the blocks."""
        return cls._sized(vocab_size, max_length, 3072, 26, 24)

    @classmethod
    def ten_billion(cls, vocab_size: int, max_length: int = 512) -> Self:
        """9.82B parameters in the blocks."""
        return cls._sized(vocab_size, max_length, 4096, 48, 32)

    @classmethod
    def _sized(
        cls,
        vocab_size: int,
        max_length: int,
        width: int,
        num_layers: int,
        num_heads: int,
        time_width: int = 128,
    ) -> Self:
        return cls(
            vocab_size=vocab_size,
            max_length=max_length,
            width=width,
            num_layers=num_layers,
            num_heads=num_heads,
            time_width=time_width,
        )


SIZES: dict[str, Callable[..., DiTConfig]] = {
    "nano": DiTConfig.nano,
    "micro": DiTConfig.micro,
    "tiny": DiTConfig.tiny,
    "small": DiTConfig.small,
    "base": DiTConfig.base,
    "1b": DiTConfig.one_billion,
    "3b": DiTConfig.three_billion,
    "10b": DiTConfig.ten_billion,
}
"""The named sizes, smallest first; each is a function of the vocabulary size."""


@final
class DiT(nn.Module):
    """A diffusion transformer from noisy tokens and their time to features for the head.

    A fresh model's logits are exactly zero: the head and all modulations start at 0 (adaLN-zero).
    For a large model, build under `torch.device("meta")`, then `to_empty` and `reset_parameters`.
    """

    def __init__(self, config: DiTConfig) -> None:
        super().__init__()
        self.config = config
        width, time_width = config.width, config.time_width
        self.embedding = nn.Embedding(config.vocab_size, width)
        self.time = TimeEmbedding(time_width)
        self.blocks = nn.ModuleList(
            Block(width, config.num_heads, time_width, config.dropout)
            for _ in range(config.num_layers)
        )
        self.final_norm = layer_norm(width)
        self.final_modulation = nn.Linear(time_width, 2 * width)
        self.head = nn.Linear(width, config.vocab_size)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, initial: Initializer | None = None) -> None:
        """Draw all weights anew, uniform in +-1/sqrt(inputs); the head and modulations are zero."""
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
            elif isinstance(module, nn.LayerNorm):
                module.weight.fill_(1)

    def hidden(self, z: Int[Tensor, "B L"], t: Float[Tensor, " B"]) -> Float[Tensor, "B L D"]:
        """The features that go into the head."""
        length = z.shape[1]
        if length > self.config.max_length:
            raise ConfigError(
                f"a sequence must have at most model.max_length = {self.config.max_length} tokens, "
                f"got {length}. Cut the sequences, or train a model with a larger max_length."
            )
        by = rotation(length, self.config.width // self.config.num_heads, z.device)
        condition = self.time(t)
        x = self.embedding(z)
        for block in self.blocks:
            if self.config.checkpoint_activations and self.training:
                x = cast(Tensor, checkpoint(block, x, condition, by, use_reentrant=False))
            else:
                x = block(x, condition, by)
        shift, scale = self.final_modulation(condition)[:, None, :].chunk(2, dim=-1)
        return modulate(self.final_norm(x), shift, scale)

    def forward(self, z: Int[Tensor, "B L"], t: Float[Tensor, " B"]) -> Float[Tensor, "B L rows"]:
        """Logits of all rows of the head; `Denoiser` makes a distribution of them."""
        return self.head(self.hidden(z, t))
