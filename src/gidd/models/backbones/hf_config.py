"""Settings of a network of `transformers`, importable without torch and without transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast, final

from gidd.common.allowed import Allowed, choice, field_problems, integer, optional
from gidd.common.files import parse_json
from gidd.common.terminal import shorten
from gidd.errors import ConfigError

if TYPE_CHECKING:
    from gidd.models.backbones.hf import HFNetwork

_MULTIPLE = 32
"""The default MLP size is rounded to a multiple of this, for efficient kernels."""

_SWITCHES = ("tied_head", "time_embedding", "checkpoint_activations")

_ROTARY = frozenset(
    {
        "attention_dropout",
        "head_dim",
        "hidden_act",
        "initializer_range",
        "max_position_embeddings",
        "rms_norm_eps",
        "rope_parameters",
    }
)
CAUSAL = {
    "llama": _ROTARY | {"attention_bias", "mlp_bias"},
    "mistral": _ROTARY,
    "qwen2": _ROTARY,
    "qwen3": _ROTARY | {"attention_bias"},
}
"""Families of causal language models, and what `HFConfig.settings` can set."""

MASKED = {
    "bert": frozenset(
        {
            "attention_probs_dropout_prob",
            "hidden_act",
            "hidden_dropout_prob",
            "initializer_range",
            "layer_norm_eps",
            "max_position_embeddings",
            "type_vocab_size",
        }
    ),
    "modernbert": frozenset(
        {
            "attention_bias",
            "attention_dropout",
            "classifier_activation",
            "classifier_bias",
            "decoder_bias",
            "embedding_dropout",
            "hidden_activation",
            "initializer_range",
            "layer_types",
            "local_attention",
            "max_position_embeddings",
            "mlp_bias",
            "mlp_dropout",
            "norm_bias",
            "norm_eps",
            "rope_parameters",
        }
    ),
}
"""Families of encoders with a masked-LM head, and what `HFConfig.settings` can set."""

SETTINGS: Mapping[str, frozenset[str]] = CAUSAL | MASKED


@dataclass(frozen=True, kw_only=True)
class HFConfig:
    """A network of `transformers` as a backbone: one of the two classes below."""

    vocab_size: int
    """Rows of the embedding and of the head: at least `vocab.size`; more rows are padding."""

    max_length: int
    """Longest sequence, in tokens; any shorter one is allowed too."""

    family: str
    """Architecture: one of `families`."""

    width: int = 768
    """Hidden size."""

    num_layers: int = 12
    """Number of blocks."""

    num_heads: int = 12
    """Attention heads."""

    num_kv_heads: int | None = None
    """Heads of keys and values, which must divide num_heads; default: num_heads. Not for encoders,
    which have as many as queries."""

    mlp_width: int | None = None
    """Inner size of the MLP; default: 8/3 of the hidden size, for bert 4 times the hidden size."""

    tied_head: bool = False
    """Use the token embedding as the weight of the head."""

    time_embedding: bool = False
    """Add a projection of the time t to the token embeddings. The projection starts at 0: a
    pretrained network predicts the same as without it."""

    checkpoint_activations: bool = False
    """Recompute the activations of each block in the backward pass: less memory, more time."""

    settings: str = "{}"
    """Other fields of the configuration in transformers, as a JSON object, for example
    {"rms_norm_eps": 1e-5}."""

    families: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        if problems := list(self._problems()):
            raise ConfigError("\n".join(problems))

    def build(self) -> HFNetwork:
        """Build the network, with random weights."""
        from gidd.models.backbones.hf import HFNetwork

        return HFNetwork(self)

    @property
    def other_settings(self) -> dict[str, Any]:
        """`settings`, parsed."""
        return cast("dict[str, Any]", parse_json(self.settings.encode(), "settings"))

    @property
    def mlp_size(self) -> int:
        """Inner size of the MLP: `mlp_width` or its default."""
        gated = _MULTIPLE * max(1, round(8 * self.width / 3 / _MULTIPLE))
        return self.mlp_width or (4 * self.width if self.family == "bert" else gated)

    def _problems(self) -> Iterator[str]:
        size = integer(1, 2**31 - 1)
        sizes = ("vocab_size", "max_length", "width", "num_layers", "num_heads")
        found = [
            *field_problems(self, family=choice(self.families)),
            *field_problems(self, **dict.fromkeys(sizes, size)),
            *field_problems(self, num_kv_heads=optional(size), mlp_width=optional(size)),
            *field_problems(self, **dict.fromkeys(_SWITCHES, Allowed(_is_bool, "true or false"))),
        ]
        yield from found or self._combined_problems()

    def _combined_problems(self) -> Iterator[str]:
        """Yield problems of fields that are allowed on their own."""
        try:
            settings: Any = self.other_settings
            unknown = sorted(settings.keys() - SETTINGS[self.family])
        except (ValueError, AttributeError, ConfigError):
            settings, unknown = {}, []
            yield (
                "settings must be a JSON object with fields of a configuration of transformers, "
                f'got {shorten(self.settings)}. An example: {{"initializer_range": 0.02}}.'
            )
        if unknown:
            yield (
                f"settings has {shorten(unknown)}, which cannot be set for {self.family}. Allowed "
                f"are {', '.join(sorted(SETTINGS[self.family]))}."
            )
        yield from self._head_problems(settings)
        positions = settings.get("max_position_embeddings", self.max_length)
        if type(positions) is not int or positions < self.max_length:
            yield (
                f"max_length must be at most max_position_embeddings = {shorten(positions)} of "
                f"settings, got {self.max_length}. Use shorter sequences."
            )

    def _head_problems(self, settings: Mapping[str, Any]) -> Iterator[str]:
        is_causal = self.family in CAUSAL
        multiple = self.num_heads * (1 if self.family == "bert" else 2)
        if "head_dim" in settings:
            head_size = settings["head_dim"]
            if type(head_size) is not int or head_size < 2 or head_size % 2:
                yield f"head_dim of settings must be an even number, got {shorten(head_size)}."
        elif self.width % multiple:
            example = multiple * max(1, self.width // multiple)
            yield (
                f"width must be a multiple of {multiple} for num_heads = {self.num_heads} of "
                f"{self.family}, got {self.width}. Use {example}, for example."
            )
        if self.num_kv_heads is not None and not is_causal:
            yield (
                f"num_kv_heads must not be set for {self.family}, got {self.num_kv_heads}: it has "
                f"{self.num_heads} heads of keys and values."
            )
        if self.num_heads % (self.num_kv_heads or 1):
            yield (
                f"num_kv_heads must divide num_heads = {self.num_heads}, got {self.num_kv_heads}."
            )


@final
@dataclass(frozen=True, kw_only=True)
class BidirectionalLMConfig(HFConfig):
    """A causal language model of `transformers`, with bidirectional attention."""

    family: str = "llama"
    """Architecture: llama, mistral, qwen2 or qwen3."""

    families = tuple(CAUSAL)


@final
@dataclass(frozen=True, kw_only=True)
class MaskedLMConfig(HFConfig):
    """An encoder of `transformers` with a masked-LM head."""

    family: str = "modernbert"
    """Architecture: modernbert or bert."""

    families = tuple(MASKED)


def hf_config_type(family: str) -> type[BidirectionalLMConfig] | type[MaskedLMConfig]:
    """Return the class of the configurations of a family."""
    return BidirectionalLMConfig if family in CAUSAL else MaskedLMConfig


def to_settings(fields: Mapping[str, Any]) -> str:
    """Return fields of a configuration as the text of `HFConfig.settings`."""
    return json.dumps(dict(fields), sort_keys=True)


def _is_bool(value: object) -> bool:
    return type(value) is bool
