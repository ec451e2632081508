"""Settings of a network of `transformers`, importable without torch and without transformers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, cast, final

from gidd.common.config.allowed import choice, integer, require_allowed
from gidd.common.files import parse_json
from gidd.errors import ConfigError

if TYPE_CHECKING:
    from gidd.models.backbones.hf import HFNetwork


_Size = Annotated[int, integer(1, 2**31 - 1)]


@dataclass(frozen=True, kw_only=True)
class HFConfig:
    """A network of `transformers` as a backbone: one of the two classes below."""

    vocab_size: _Size
    max_length: _Size
    family: str
    width: _Size = 768
    """Hidden size."""
    num_layers: _Size = 12
    """Number of blocks."""
    num_heads: _Size = 12
    """Attention heads."""
    hf: str = "{}"
    """Other fields of the configuration in transformers, as a JSON object, for example
    {"num_key_value_heads": 4, "tie_word_embeddings": true}."""
    time_embedding: bool = False
    """Add a projection of the time t, which starts at 0, to the token embeddings."""
    checkpoint_activations: bool = False
    """Recompute the activations of each block in the backward pass: less memory, more time."""
    families: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        require_allowed(self)

    def problems(self) -> Iterable[str]:
        """Yield a message if the class has no such family."""
        yield from choice(self.families).problems("family", self.family)

    def build(self) -> HFNetwork:
        """Build the network, with random weights."""
        from gidd.models.backbones.hf import HFNetwork

        return HFNetwork(self)

    @property
    def fields(self) -> dict[str, Any]:
        """`hf`, parsed."""
        try:
            return dict(cast("dict[str, Any]", parse_json(self.hf.encode(), "hf")))
        except (AttributeError, TypeError, ValueError) as error:
            example = '{"initializer_range": 0.02}'
            message = f"hf must be a JSON object such as {example}, got {self.hf}."
            raise ConfigError(message) from error


@final
@dataclass(frozen=True, kw_only=True)
class BidirectionalLMConfig(HFConfig):
    """A causal language model of `transformers`, with bidirectional attention."""

    family: str = "llama"
    """Architecture: llama, mistral, qwen2 or qwen3."""
    start_id: Annotated[int, integer(0)] | None = None
    """Outputs are shifted: this token is read before the first, and the output at a position
    predicts the next token, as in the causal model."""
    families = ("llama", "mistral", "qwen2", "qwen3")

    def problems(self) -> Iterable[str]:
        """Yield messages if the family or the first token is none."""
        yield from super().problems()
        if self.start_id is not None and self.start_id >= self.vocab_size:
            yield f"start_id must be below vocab_size = {self.vocab_size}, got {self.start_id}."


@final
@dataclass(frozen=True, kw_only=True)
class MaskedLMConfig(HFConfig):
    """An encoder of `transformers` with a masked-LM head."""

    family: str = "modernbert"
    """Architecture: modernbert or bert."""
    families = ("bert", "modernbert")


CAUSAL = BidirectionalLMConfig.families
FAMILIES = {name: c for c in (BidirectionalLMConfig, MaskedLMConfig) for name in c.families}
"""The class of the configurations of each family."""
