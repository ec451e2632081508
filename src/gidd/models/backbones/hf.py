"""Networks of `transformers` as backbones: encoders, and causal models made bidirectional.

The layers of a causal model are called one by one, with a mask of padding only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, cast, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gidd.common.files import explain_damage
from gidd.common.optional import optional_package
from gidd.common.terminal import shorten
from gidd.diffusion.schedule import Flags, Sequences, Times
from gidd.errors import ConfigError
from gidd.models.backbones.hf_config import CAUSAL, HFConfig
from gidd.models.backbones.layers import Network, TimeEmbedding, attention_mask, require_length
from gidd.models.context import Context, start_id_of
from gidd.models.networks import Initializer
from gidd.models.weights import keep_tied

if TYPE_CHECKING:
    from jaxtyping import Float

_TOKENS = {f"{token}_token_id" for token in ("bos", "cls", "eos", "pad", "sep")}
"""Tokens of another tokenizer by default; the embedding of a padding token would not be trained."""
_SIZES = ("hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size")
_WINDOWS = {"max_window_layers", "sliding_window", "use_sliding_window"}
_WITHOUT_EFFECT = _TOKENS | _WINDOWS | {"add_cross_attention", "is_decoder", "use_cache"}


def field_names(family: str) -> set[str]:
    """Return the fields that `HFConfig.hf` can have: the fields that only this family has.

    Fields of all classes of transformers can name code to download, or a number of labels.
    """
    library, is_causal = optional_package("transformers", "hf"), family in CAUSAL
    shared = library.PretrainedConfig().to_dict().keys()
    names = library.AutoConfig.for_model(family).to_dict().keys() - shared | {"tie_word_embeddings"}
    names |= {"head_dim"} if is_causal else set()
    return names - _WITHOUT_EFFECT - {*_SIZES} - ({"layer_types"} if is_causal else set())


def _transformers_config(config: HFConfig) -> Any:
    width, heads, settings = config.width, config.num_heads, config.fields
    allowed = field_names(config.family)
    if unknown := sorted(settings.keys() - allowed):
        names = ", ".join(sorted(allowed))
        raise ConfigError(f"hf has {shorten(unknown)}, which cannot be set. Allowed: {names}.")
    fields: dict[str, Any] = {
        "intermediate_size": 32 * max(1, round(8 * width / 3 / 32)),  # for efficient kernels
        "max_position_embeddings": config.max_length,
        "tie_word_embeddings": False,
    }
    if config.family in CAUSAL:
        fields |= {"num_key_value_heads": heads, "head_dim": width // heads, "sliding_window": None}
    if config.family == "bert":
        fields |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        fields["intermediate_size"] = 4 * width
    fields |= settings
    if config.max_length > (most := fields["max_position_embeddings"]):
        raise ConfigError(
            f"max_length must be at most max_position_embeddings = {most}, got {config.max_length}."
        )
    odd = fields.get("head_dim", width / heads) % (1 if config.family == "bert" else 2)
    if odd or heads % fields.get("num_key_value_heads", heads):
        raise ConfigError(
            f"width / num_heads = {width} / {heads}, or head_dim of hf, must be even, and "
            f"num_heads a multiple of num_key_value_heads of hf, got {shorten(config.hf)}."
        )
    sizes = zip(_SIZES, (width, heads, config.num_layers, config.vocab_size), strict=True)
    fields |= dict(sizes) | dict.fromkeys(_TOKENS) | {"use_cache": False}
    return optional_package("transformers", "hf").AutoConfig.for_model(config.family, **fields)


@final
class HFNetwork(Network):
    """From noisy tokens to hidden states and logits, by a network of `transformers`."""

    accepts_padding = True

    def __init__(self, config: HFConfig) -> None:
        super().__init__()
        self.config, self.uses_time = config, config.time_embedding
        library, is_causal = optional_package("transformers", "hf"), config.family in CAUSAL
        kind = library.AutoModelForCausalLM if is_causal else library.AutoModelForMaskedLM
        field, remedy = f"hf = {shorten(config.hf)}", f"Use fields of a {config.family}."
        with explain_damage(field, remedy, ConfigError):
            model = kind.from_config(_transformers_config(config), attn_implementation="sdpa")
            model.tie_weights()  # transformers 5.0 does not on the meta device
        names: dict[int, list[str]] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), []).append(name)
        self.body: Any = model.base_model
        if not is_causal:
            is_bert = config.family == "bert"
            self.transform = model.cls.predictions.transform if is_bert else model.head
        self.head = cast(nn.Linear, model.get_output_embeddings())
        self.names_in_files = {name: names[id(p)] for name, p in self.named_parameters()}
        self.added_modules: tuple[nn.Module, ...] = ()  # not pretrained: always trained
        # recomputed layers drop what is in place of a cache
        self.accepts_context = is_causal and not config.checkpoint_activations
        if is_causal:
            self.visible_future = 1.0
            """In training, a layer reads so many tokens after a position: a fraction of the row."""
        if config.time_embedding:
            self.time, self.time_projection = TimeEmbedding(128), nn.Linear(128, config.width)
            self.added_modules = (self.time, self.time_projection)
        if is_causal:
            for block in self.blocks:
                cast(Any, block).self_attn.is_causal = False
        if config.checkpoint_activations:
            recompute_activations(self.body)
        self.reset_parameters()

    @property
    def blocks(self) -> nn.ModuleList:
        """Layers, under the attribute name of `DiT`."""
        return self.body.encoder.layer if self.config.family == "bert" else self.body.layers

    @property
    def embedding(self) -> nn.Embedding:
        """Embedding of the tokens."""
        return self.body.get_input_embeddings()

    @torch.no_grad()
    def reset_parameters(self, initial: Initializer | None = None) -> None:
        """Initialise weights (normal), norms (1), biases and time projection (0), and buffers."""
        initial = initial or Initializer()
        std = self.body.config.initializer_range
        first_name = {id(parameter): name for name, parameter in self.named_parameters()}
        for owner, module in self.named_modules():
            is_matrix = isinstance(module, nn.Linear | nn.Embedding)
            for name, parameter in module.named_parameters(owner, recurse=False):
                if first_name[id(parameter)] != name:
                    continue  # a tied head: the embedding has been filled
                if name.endswith(".weight") and is_matrix:
                    initial.normal(parameter, std)
                else:
                    parameter.fill_(float(name.endswith(".weight")))  # of a norm, or a bias
        if self.config.time_embedding:
            for linear in (self.time.input, self.time.output):
                initial.uniform(linear.weight, linear.in_features**-0.5)
            self.time_projection.weight.zero_()
        self._reset_buffers()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> HFNetwork:
        """Move or convert the parameters, which stay tied; compute the buffers again."""
        with keep_tied(self):
            super()._apply(fn, recurse)
        self._reset_buffers()
        return self

    @torch.no_grad()
    def _reset_buffers(self) -> None:
        """Compute buffers, which leaving the meta device loses and conversion to bf16 rounds."""
        device = self.embedding.weight.device
        for module in self.body.modules():
            buffers = dict(module.named_buffers(recurse=False))
            for name, buffer in buffers.items():
                dtype = torch.float32 if buffer.is_floating_point() else buffer.dtype
                setattr(module, name, torch.empty(buffer.shape, dtype=dtype, device=device))
            if buffers:
                self.body._init_weights(module)

    def hidden(
        self, z: Sequences, t: Times, valid: Flags | None = None, *, context: Context | None = None
    ) -> Float[Tensor, "B L D"]:
        """Hidden states before the head; those of valid tokens do not depend on padding."""
        start_id = start_id_of(self) if context is None else None
        if context is None or context.positions is None:
            require_length(z, self.config.max_length)
        if start_id is not None:
            z = F.pad(z, (1, 0), value=start_id)
            valid = None if valid is None else F.pad(valid, (1, 0), value=True)
        x = self.embedding(z)
        if self.config.time_embedding:
            x = x + self.time_projection(self.time(t))[:, None]
        if self.config.family not in CAUSAL:
            encoded = self.body(inputs_embeds=x, attention_mask=valid)
            return self.transform(encoded.last_hidden_state)
        positions, further = torch.arange(x.shape[1], device=x.device)[None], {}
        mask = attention_mask(valid)
        if context is not None:
            positions = positions if context.positions is None else context.positions
            mask, further = context.mask, {"past_key_values": _KeysAndValues(context)}
        angles = self.body.rotary_emb(x, positions)
        if self.training and self.visible_future < 1:
            reach = positions + round(self.visible_future * x.shape[1])
            is_near = (positions <= reach.T)[None, None]
            mask = is_near if mask is None else mask & is_near
        for block in self.blocks:  # without the causal mask of their model
            same = {"attention_mask": mask, "position_ids": positions, **further}
            x = block(x, position_embeddings=angles, **same)
        x = self.body.norm(x)
        return x if start_id is None else x[:, :-1]


class _KeysAndValues(NamedTuple):
    """A context in place of a cache of `transformers`."""

    context: Context

    def update(self, k: Tensor, v: Tensor, layer: int, *_: Any) -> tuple[Tensor, Tensor]:
        """Return the keys and values that the queries of a layer read."""
        return self.context.extend(layer)(k, v)


def recompute_activations(model: Any) -> None:
    """Let the backward pass of a `transformers` model recompute the activations of its layers."""
    if hasattr(model, "activation_checkpointing_enable"):  # since transformers 5.23
        model.activation_checkpointing_enable({"use_reentrant": False})
    else:
        model.gradient_checkpointing_enable({"use_reentrant": False})
