"""Sizes of the diffusion transformer, importable without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, final

from gidd.common.config.allowed import (
    Allowed,
    choice,
    integer,
    problems_of,
    require_none,
    within,
)
from gidd.common.terminal import shorten

if TYPE_CHECKING:
    from torch import Tensor

    from gidd.models.backbones.dit import DiT

_LEAST_ALPHA = 1e-3
"""Of the log-linear noise alpha = 1 - (1 - 1e-3) t, which MDLM, SEDD and Duo were trained with."""


_SIZE = integer(1)._replace(text="an integer of at least 1")
Size = Annotated[int, _SIZE]
"""A field of a configuration that counts something."""
_RATE = within(lambda rate: 0 <= rate < 1, "in [0, 1)", "The paper uses 0.")


def _is_mixing_width(value: object) -> bool:
    return type(value) is int and (value == 0 or (value > 0 and value % 2 == 1))


_MIXING = Allowed(_is_mixing_width, "0 or an odd number", "7 is common.")


class NamedSize(NamedTuple):
    """The options of a size, and a function from the vocabulary size to a `DiTConfig`."""

    width: int
    num_layers: int
    num_heads: int
    time_width: int = 128

    def __call__(self, vocab_size: int, max_length: int = 512) -> DiTConfig:
        """Return the sizes of a `DiT`."""
        return DiTConfig(vocab_size=vocab_size, max_length=max_length, **self._asdict())


def require_sizes(config: Any) -> None:
    """Raise `ConfigError` for fields that are not allowed, or a width that heads cannot share."""
    problems = list(problems_of(config))
    are_sizes = _SIZE.contains(config.width) and _SIZE.contains(config.num_heads)
    if are_sizes and config.width % (2 * config.num_heads):
        example = 2 * config.num_heads * max(1, config.width // (2 * config.num_heads))
        problems.append(
            f"width must be an even multiple of num_heads = {shorten(config.num_heads)}, got "
            f"{shorten(config.width)}. Use {shorten(example)}, for example."
        )
    require_none(problems)


@dataclass(frozen=True, kw_only=True)
class DiTConfig:
    """Sizes of a `DiT`. The attributes below are named sizes, e.g. `DiTConfig.small(50258)`."""

    # with the number of parameters in the blocks; tiny, small and base are those of the paper
    nano = NamedSize(128, 4, 4, time_width=64)  # 1.0M: trains on a laptop in minutes
    micro = NamedSize(256, 6, 4, time_width=64)  # 5.3M: trains on a laptop in hours
    tiny = NamedSize(512, 8, 8)  # 28.4M
    small = NamedSize(768, 12, 12)  # 92.1M
    base = NamedSize(1024, 24, 16)  # 321.2M
    one_billion = NamedSize(2048, 20, 16)  # 1.04B
    three_billion = NamedSize(3072, 26, 24)  # 3.01B
    ten_billion = NamedSize(4096, 48, 32)  # 9.82B

    vocab_size: Size
    """Rows of the embedding and of the head: at least `vocab.size`; more rows are padding."""
    max_length: Size = 512
    """Longest sequence, in tokens; any shorter one is allowed too."""
    width: Size
    """Hidden size (D)."""
    num_layers: Size
    """Number of blocks."""
    num_heads: Size
    """Attention heads; the head size, width / num_heads, must be even."""
    time_width: Size = 128
    """Size of the time embedding that conditions every block."""
    dropout: Annotated[float, _RATE] = 0.0
    """Dropout rate before each residual addition, in training only; the paper uses 0."""
    mixing_width: Annotated[int, _MIXING] = 0
    """Positions that a depthwise convolution before each block mixes, an odd number; 0: none.
    Small models learn faster with 7; the paper's sizes and published checkpoints have none."""
    checkpoint_activations: bool = False
    """Recompute the activations of each block in the backward pass: less memory, more time."""
    equal_blocks: ClassVar[str] = "blocks"

    def __post_init__(self) -> None:
        require_sizes(self)

    def build(self) -> DiT:
        """Build the network."""
        from gidd.models.backbones.dit import DiT

        return DiT(self)

    @property
    def uses_time(self) -> bool:
        """Whether hidden states depend on t."""
        return True

    def time_input(self, t: Tensor) -> Tensor:
        """Return what the time embedding gets at times t [B]."""
        return t

    @property
    def num_block_parameters(self) -> int:
        """Number of parameters of all blocks (the non-embedding count)."""
        attention_and_mlp = 12 * self.width**2 + (4 + 1) * self.width
        norms, modulation = 2 * self.width, 6 * self.width * (self.time_width + 1)
        mixing = self.mixing_width * self.width
        return self.num_layers * (attention_and_mlp + norms + modulation + mixing)


@final
@dataclass(frozen=True, kw_only=True)
class TimeMappedConfig(DiTConfig):
    """Sizes of a `DiT` of another project, which was trained with another input than the time t."""

    time: Annotated[str, choice(("zero", "sigma"))]
    """"zero": always 0. "sigma": -log(1 - t), the log-linear noise level, at most -log 1e-3."""

    @property
    def uses_time(self) -> bool:
        """Whether hidden states depend on t."""
        return self.time != "zero"

    def time_input(self, t: Tensor) -> Tensor:
        """Return 0, or sigma = -log alpha of linear noise, alpha = 1 - t."""
        if self.time == "zero":
            return t.new_zeros(t.shape)
        return -(1 - t).clamp_min(_LEAST_ALPHA).log()


_SHORT = {"one_billion": "1b", "three_billion": "3b", "ten_billion": "10b"}
SIZES = {
    _SHORT.get(name, name): size
    for name, size in vars(DiTConfig).items()
    if isinstance(size, NamedSize)
}
"""Named sizes, smallest first; each is a function of the vocabulary size."""
