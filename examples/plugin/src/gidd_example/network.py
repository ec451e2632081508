"""A network: convolutions over the sequence and an MLP at every position."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

import gidd
from gidd.errors import ConfigError


@gidd.register("backbone", "conv")
@dataclass(frozen=True, kw_only=True)
class ConvConfig:
    """Sizes of a `ConvNet`. gidd supplies the first two, all others are options."""

    vocab_size: int
    """Rows of the embedding and of the head."""

    max_length: int
    """Longest sequence, in tokens."""

    width: int = 128
    """Hidden size."""

    num_layers: int = 4
    """Number of layers."""

    reach: int = 4
    """Tokens to each side that a layer combines."""

    def __post_init__(self) -> None:
        if self.reach < 0:
            raise ConfigError(f"reach must be at least 0, got {self.reach}.")

    def build(self) -> "ConvNet":
        """Build the network."""
        return ConvNet(self)


class ConvNet(nn.Module):
    """Hidden states of noisy tokens, `hidden`, and logits, `head`: all that gidd needs."""

    def __init__(self, config: ConvConfig) -> None:
        super().__init__()
        self.config = config  # saved with the weights
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.time = nn.Linear(1, config.width)
        self.mixers = nn.ModuleList(_Mixer(config) for _ in range(config.num_layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocab_size)

    def hidden(self, z: Tensor, t: Tensor) -> Tensor:
        """Return the hidden states [B, L, D] of noisy tokens z [B, L] at times t [B]."""
        h = self.embedding(z) + self.time(t[:, None])[:, None]
        for mixer in self.mixers:
            h = h + mixer(h)
        return self.norm(h)


class _Mixer(nn.Module):
    def __init__(self, config: ConvConfig) -> None:
        super().__init__()
        width, reach = config.width, config.reach
        self.norm = nn.LayerNorm(width)
        self.depthwise = nn.Conv1d(width, width, 2 * reach + 1, padding=reach, groups=width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, h: Tensor) -> Tensor:
        mixed = self.depthwise(self.norm(h).transpose(1, 2)).transpose(1, 2)
        return self.down(F.gelu(self.up(mixed)))
