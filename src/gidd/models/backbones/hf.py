"""Networks of `transformers` as backbones: causal language models made bidirectional, encoders.

A causal network is made bidirectional without a mask: its layers are called one by one with no
mask but that of padding, and their attention is told not to be causal. Layers and weights are
those of transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast, final

import torch
from torch import Tensor, nn

from gidd.common.optional import optional_package
from gidd.common.terminal import shorten
from gidd.errors import ConfigError
from gidd.models.backbones.hf_config import CAUSAL, HFConfig
from gidd.models.backbones.layers import TimeEmbedding, mask_of_keys
from gidd.models.init import Initializer

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

_TIME_WIDTH = 128
"""Size of the time embedding, as in `DiTConfig`."""

_TOKENS = ("bos", "cls", "eos", "pad", "sep")
"""Tokens of another tokenizer by default; the embedding of a padding token would not be trained."""


def transformers_config(config: HFConfig) -> Any:
    """Return the configuration of `transformers` for a backbone."""
    library = optional_package("transformers", "hf")
    fields: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "intermediate_size": config.mlp_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "max_position_embeddings": config.max_length,
        "tie_word_embeddings": config.tied_head,
        "use_cache": False,
    }
    if config.family in CAUSAL:
        fields["num_key_value_heads"] = config.num_kv_heads or config.num_heads
        fields["head_dim"] = config.width // config.num_heads
    if config.family == "mistral":
        fields["sliding_window"] = None
    if config.family == "bert":
        fields |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    fields |= {f"{token}_token_id": None for token in _TOKENS} | config.other_settings
    with _explain_settings(config):
        return library.AutoConfig.for_model(config.family, **fields)


@contextmanager
def _explain_settings(config: HFConfig) -> Generator[None]:
    """Raise a `ConfigError` if transformers refuses a configuration."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"transformers cannot build a network of family = {config.family} with "
            f"settings = {shorten(config.settings)}: {type(error).__name__}: {error}"
        ) from error


@final
class TiedLinear(nn.Linear):
    """A linear layer whose weight is that of an embedding: its own parameter is the bias alone.

    The weight is looked up in every use, so that it stays tied when parameters are replaced: on
    leaving the meta device, by sharding, by loading.
    """

    def __init__(self, embedding: nn.Embedding, bias: bool) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = embedding.embedding_dim, embedding.num_embeddings
        self._embedding = (embedding,)  # a tuple: not a submodule
        self.register_parameter(
            "bias", nn.Parameter(torch.zeros(self.out_features)) if bias else None
        )

    @property
    def weight(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The weight of the embedding."""
        return self._embedding[0].weight


@final
class HFNetwork(nn.Module):
    """From noisy tokens to hidden states and logits, by a network of `transformers`.

    Build a large one under `torch.device("meta")`; then call `to_empty` and `reset_parameters`.
    """

    accepts_padding = True

    def __init__(self, config: HFConfig) -> None:
        super().__init__()
        self.config = config
        library, is_causal = optional_package("transformers", "hf"), config.family in CAUSAL
        kind = library.AutoModelForCausalLM if is_causal else library.AutoModelForMaskedLM
        network_config = transformers_config(config)
        with _explain_settings(config):
            model = kind.from_config(network_config, attn_implementation="sdpa")
        self.body: Any = model.base_model
        self.transform = _prediction_transform(model, config.family)
        head = cast(nn.Linear, model.get_output_embeddings())
        if config.tied_head:
            has_bias = cast("Tensor | None", head.bias) is not None
            head = TiedLinear(self.embedding, has_bias)
        self.head = head
        if config.time_embedding:
            self.time = TimeEmbedding(_TIME_WIDTH)
            self.time_projection = nn.Linear(_TIME_WIDTH, config.width)
        if is_causal:
            for block in self.blocks:
                cast(Any, block).self_attn.is_causal = False
        if config.checkpoint_activations:
            self.body.gradient_checkpointing_enable({"use_reentrant": False})
        self.reset_parameters()

    @property
    def blocks(self) -> nn.ModuleList:
        """Layers, under the attribute name of `DiT`."""
        return self.body.encoder.layer if self.config.family == "bert" else self.body.layers

    @property
    def embedding(self) -> nn.Embedding:
        """Embedding of the tokens."""
        return self.body.get_input_embeddings()

    @property
    def uses_time(self) -> bool:
        """Whether the hidden states depend on the time."""
        return self.config.time_embedding

    @property
    def added_modules(self) -> tuple[nn.Module, ...]:
        """Modules that the pretrained network does not have, which are always trained."""
        return (self.time, self.time_projection) if self.config.time_embedding else ()

    @torch.no_grad()
    def reset_parameters(self, initial: Initializer | None = None) -> None:
        """Initialise all weights and buffers: weights normal, norms 1, biases and projection 0."""
        initial = initial or Initializer()
        std = self.body.config.initializer_range
        for module in self.modules():
            is_matrix = isinstance(module, nn.Linear | nn.Embedding)
            for name, parameter in module.named_parameters(recurse=False):
                if name == "weight" and is_matrix:
                    initial.normal(parameter, std)
                else:
                    parameter.fill_(float(name == "weight"))  # the weight of a norm, or a bias
        if self.config.time_embedding:
            for linear in (self.time.input, self.time.output):
                initial.uniform(linear.weight, linear.in_features**-0.5)
            self.time_projection.weight.zero_()
        self._reset_buffers()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> HFNetwork:
        """Move or convert the parameters, and compute the buffers again."""
        super()._apply(fn, recurse)
        self._reset_buffers()
        return self

    @torch.no_grad()
    def _reset_buffers(self) -> None:
        """Compute rotary frequencies and positions, on the device of the parameters.

        They are lost when a network leaves the meta device, and must not be rounded to bf16.
        """
        device = self.embedding.weight.device
        for module in self.body.modules():
            buffers = dict(module.named_buffers(recurse=False))
            for name, buffer in buffers.items():
                dtype = torch.float32 if buffer.is_floating_point() else buffer.dtype
                setattr(module, name, torch.empty(buffer.shape, dtype=dtype, device=device))
            if buffers:
                self.body._init_weights(module)

    def hidden(
        self,
        z: Int[Tensor, "B L"],
        t: Float[Tensor, " B"],
        valid: Bool[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "B L D"]:
        """Hidden states before the head; those of valid tokens do not depend on padding."""
        length = z.shape[1]
        if length > self.config.max_length:
            raise ConfigError(
                f"a sequence can have at most max_length = {self.config.max_length} "
                f"tokens, got {length}. Shorten the sequences, or train a model with a larger "
                "max_length."
            )
        x = self.embedding(z)
        if self.config.time_embedding:
            x = x + self.time_projection(self.time(t))[:, None]
        if self.config.family in CAUSAL:
            return self._bidirectional(x, valid)
        encoded = self.body(inputs_embeds=x, attention_mask=valid)
        return self.transform(encoded.last_hidden_state)

    def forward(self, z: Int[Tensor, "B L"], t: Float[Tensor, " B"]) -> Float[Tensor, "B L rows"]:
        """Logits of all rows of the head; `Denoiser` converts them to a distribution."""
        return self.head(self.hidden(z, t))

    def _bidirectional(
        self, x: Float[Tensor, "B L D"], valid: Bool[Tensor, "B L"] | None
    ) -> Float[Tensor, "B L D"]:
        """Apply the layers of a causal network, without the causal mask of its `forward`."""
        positions = torch.arange(x.shape[1], device=x.device)[None]
        angles, mask = self.body.rotary_emb(x, positions), mask_of_keys(valid)
        for block in self.blocks:
            x = block(x, attention_mask=mask, position_ids=positions, position_embeddings=angles)
        return self.body.norm(x)


def _prediction_transform(model: Any, family: str) -> nn.Module:
    """Return the layers of a masked-LM head before its last one."""
    if family in CAUSAL:
        return nn.Identity()
    return model.cls.predictions.transform if family == "bert" else model.head
