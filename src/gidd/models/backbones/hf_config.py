"""Settings of a network of `transformers`, importable without torch and without transformers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast, final

from gidd.common.config.allowed import choice, field_problems, integer
from gidd.common.files import parse_json
from gidd.errors import ConfigError

if TYPE_CHECKING:
    from gidd.models.backbones.hf import HFNetwork

_OLD_OPTIONS = ("num_kv_heads", "mlp_width", "tied_head")
_THEIR_NAMES = ("num_key_value_heads", "intermediate_size", "tie_word_embeddings")


@dataclass(frozen=True, kw_only=True)
class HFConfig:
    """A network of `transformers` as a backbone: one of the two classes below."""

    vocab_size: int
    max_length: int
    family: str
    width: int = 768
    """Hidden size."""
    num_layers: int = 12
    """Number of blocks."""
    num_heads: int = 12
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
        sizes = ("vocab_size", "max_length", "width", "num_layers", "num_heads")
        allowed = dict.fromkeys(sizes, integer(1, 2**31 - 1)) | {"family": choice(self.families)}
        if problems := list(field_problems(self, "", **allowed)):
            raise ConfigError("\n".join(problems))

    def build(self) -> HFNetwork:
        """Build the network, with random weights."""
        from gidd.models.backbones.hf import HFNetwork

        return HFNetwork(self)

    @property
    def fields(self) -> dict[str, Any]:
        """`hf`, parsed."""
        return _parse(self.hf)

    @staticmethod
    def upgrade(record: dict[str, Any]) -> dict[str, Any]:
        """Convert a record of an older version, which had options for some of the fields."""
        if "settings" not in record:
            return record
        old = zip(_THEIR_NAMES, (record.pop(name, None) for name in _OLD_OPTIONS), strict=True)
        fields = {name: value for name, value in old if value is not None}
        return record | {"hf": json.dumps(fields | _parse(record.pop("settings")))}


@final
@dataclass(frozen=True, kw_only=True)
class BidirectionalLMConfig(HFConfig):
    """A causal language model of `transformers`, with bidirectional attention."""

    family: str = "llama"
    """Architecture: llama, mistral, qwen2 or qwen3."""

    families = ("llama", "mistral", "qwen2", "qwen3")


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


def _parse(text: object) -> dict[str, Any]:
    try:
        return dict(cast("dict[str, Any]", parse_json(cast(str, text).encode(), "hf")))
    except (AttributeError, TypeError, ValueError) as error:
        example = '{"initializer_range": 0.02}'
        raise ConfigError(f"hf must be a JSON object such as {example}, got {text}.") from error
