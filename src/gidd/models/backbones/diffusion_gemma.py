"""DiffusionGemma: an encoder of the text so far and a decoder of a canvas, of `transformers`.

A sequence is cut into canvases from its end on: only the first can be shorter. The tokens of a
canvas attend to each other and to the causal encoder's keys and values of all tokens before it. The
decoder predicts the posterior p(x_i | z), z_i included, at a noise level that it infers from the
canvas; `leave_one_out_shift` converts it to x_theta, p(x_i | z without z_i).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast, final

import torch
from torch import Tensor, nn

from gidd.common.optional import optional_package
from gidd.errors import ConfigError
from gidd.models.backbones.layers import require_length
from gidd.models.weights import keep_tied

if TYPE_CHECKING:
    from jaxtyping import Float, Int

MIN_TIME = 1e-3
"""Smallest time of training: below it, the conversion divides by what was never learned."""
_OLDEST_TRANSFORMERS = "5.12"
_NOT_SETTINGS = ("architectures", "auto_map", "dtype", "torch_dtype", "transformers_version")
_KEPT_PROMPTS = 4
"""Sequences before a last canvas whose keys and values are kept."""


def leave_one_out_shift(t: Float[Tensor, " B"], vocab_size: int) -> Float[Tensor, " B"]:
    """Return log(1 + V alpha / (1 - alpha)), alpha = 1 - t, to subtract from the logit of z_i.

    Under uniform noise over V tokens it is log q_t(z_i | z_i) - log q_t(z_i | v) for any other v,
    and p(x_i | z) is proportional to p(x_i | z without z_i) q_t(z_i | x_i). It is exact if p(x_i |
    z) is given z and this t: for a network without a time, if the canvas reveals t.
    """
    t = t.clamp_min(MIN_TIME)
    return torch.log1p(vocab_size * (1 - t) / t)


@final
@dataclass(frozen=True, kw_only=True)
class DiffusionGemmaConfig:
    """Settings of a `DiffusionGemma`."""

    text_config: Mapping[str, Any]
    """`text_config` of `config.json`, for the class of that name in `transformers`."""
    vocab_size: int
    max_length: int
    """Longest sequence, in tokens."""
    num_layers: int
    canvas_length: int
    """Tokens that the decoder predicts together."""
    bos_id: int
    """Token that the encoder reads first, before all sequences that do not begin with it."""

    def build(self) -> DiffusionGemma:
        """Build the network."""
        return DiffusionGemma(self)


@final
class DiffusionGemma(nn.Module):
    """From noisy tokens to hidden states; `adjust_logits` completes the logits of the head.

    Rows are computed one by one. The keys and values before the last canvas of a sequence are kept:
    while they do not change, a step decodes one canvas.
    """

    predicts_posterior = True
    has_mixed_types = True

    def __init__(self, config: DiffusionGemmaConfig) -> None:
        super().__init__()
        self.config = config
        self.self_conditioning = False
        """Whether a second pass of the decoder reads the logits of the first."""
        self._prompts: dict[tuple[object, ...], tuple[Any, list[Tensor]]] = {}
        """Keys and values, and hidden states, of sequences before a last canvas; a key is how they
        were computed, and the bytes of the sequence."""
        library = require_transformers()
        settings = {n: v for n, v in config.text_config.items() if n not in _NOT_SETTINGS}
        full = library.DiffusionGemmaConfig(text_config=settings)
        full._attn_implementation = "sdpa"
        self.decoder: Any = library.DiffusionGemmaDecoderModel(full)
        self.encoder: Any = library.DiffusionGemmaEncoderTextModel(full.text_config)
        for stack in (self.decoder, self.encoder):
            for layer in stack.layers:  # weights of the file, which has parameters only
                scalar = layer.layer_scalar
                del layer.layer_scalar
                layer.layer_scalar = nn.Parameter(scalar)
        for name, _ in list(self.encoder.named_parameters()):
            owner, _, attribute = name.rpartition(".")
            if attribute != "layer_scalar":  # each stack has its own
                shared = self.decoder.get_parameter(name)
                setattr(self.encoder.get_submodule(owner), attribute, shared)
        embedding: nn.Embedding = self.decoder.embed_tokens
        with torch.device("meta"):
            self.head = nn.Linear(embedding.embedding_dim, embedding.num_embeddings, bias=False)
        self.head.weight = cast(nn.Parameter, embedding.weight)
        self.soft_cap = float(full.text_config.final_logit_softcapping)
        self._reset_buffers()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> DiffusionGemma:
        """Move or convert the parameters, which stay tied; compute the buffers again."""
        self._prompts = {}
        with keep_tied(self):
            super()._apply(fn, recurse)
        self._reset_buffers()
        return self

    def _reset_buffers(self) -> None:
        """Compute buffers, which the meta device does not have and conversion to bf16 rounds."""
        device = self.head.weight.device
        with torch.device("cpu" if device.type == "meta" else device):
            for stack in (self.decoder, self.encoder):
                stack.rotary_emb = type(stack.rotary_emb)(stack.rotary_emb.config)
                embedding = stack.embed_tokens
                embedding.embed_scale = torch.tensor(embedding.scalar_embed_scale)

    def hidden(self, z: Int[Tensor, "B L"], t: Float[Tensor, " B"]) -> Float[Tensor, "B L columns"]:
        """Return hidden states, then what `adjust_logits` needs: z and `leave_one_out_shift`."""
        require_length(z, self.config.max_length)
        states = torch.stack([self._hidden_row(row) for row in z]).float()
        shift = leave_one_out_shift(t, self.config.vocab_size)[:, None].expand(z.shape)
        return torch.cat([states, torch.stack([z.float(), shift], -1)], -1)

    def adjust_logits(
        self, logits: Float[Tensor, "K rows"], columns: Float[Tensor, "K 2"]
    ) -> Float[Tensor, "K rows"]:
        """Soft-cap logits of the head to those of p(x_i | z), and convert them to x_theta's."""
        token, shift = columns[:, :1].long(), columns[:, 1:]
        return self._capped(logits).scatter_add(-1, token, -shift)

    def encode(self, tokens: Int[Tensor, " n"], cache: Any = None) -> Any:
        """Return the keys and values of tokens after those in `cache`, which is extended."""
        if not len(tokens):
            return cache
        return self.encoder(input_ids=tokens[None], past_key_values=cache).past_key_values

    def decode(self, canvas: Int[Tensor, " n"], cache: Any) -> Float[Tensor, "n D"]:
        """Return the hidden states of a canvas after the tokens in `cache`, which is only read."""
        arguments = {"decoder_input_ids": canvas[None], "past_key_values": cache}
        states = self.decoder(**arguments).last_hidden_state
        if self.self_conditioning:
            logits = self._capped(self.head(states).float())
            states = self.decoder(**arguments, self_conditioning_logits=logits).last_hidden_state
        return states[0]

    def _capped(self, logits: Tensor) -> Tensor:
        return self.soft_cap * (logits / self.soft_cap).tanh()

    def _hidden_row(self, z: Int[Tensor, " L"]) -> Float[Tensor, "L D"]:
        """Decode all canvases of a sequence that follow the longest beginning that is kept."""
        size, bos_id = self.config.canvas_length, self.config.bos_id
        starts = [0, *range((len(z) - 1) % size + 1, len(z), size)]
        numbers, weight = z.cpu().numpy(), self.head.weight
        autocast = torch.is_autocast_enabled(weight.device.type)
        how = weight.dtype, weight.device, autocast, self.self_conditioning
        keys = [(*how, numbers[:start].tobytes()) for start in starts]
        kept, last = self._prompts, len(starts) - 1
        first = next((i for i in range(last, -1, -1) if keys[i] in kept), 0)
        if keys[first] in kept:
            cache, states = kept[keys[first]]
            cache = cache if first == last else copy.deepcopy(cache)
        else:
            cache, states = self.encode(z.new_tensor([bos_id])), list[Tensor]()
        for i in range(first, last):
            canvas = z[starts[i] : starts[i + 1]]
            states = [*states, self.decode(canvas, cache)]
            has_bos = i == 0 and numbers[0] == bos_id
            cache = self.encode(canvas[1:] if has_bos else canvas, cache)
        others = [item for item in kept.items() if item[0] != keys[last]]
        # a new dictionary: threads share the network
        self._prompts = dict([*others[1 - _KEPT_PROMPTS :], (keys[last], (cache, states))])
        return torch.cat([*states, self.decode(z[starts[last] :], cache)])


def require_transformers() -> Any:
    """Return `transformers`, or raise `ConfigError` if it is too old for DiffusionGemma."""
    library = optional_package("transformers", "hf")
    if not hasattr(library, "DiffusionGemmaForBlockDiffusion"):
        raise ConfigError(
            f"DiffusionGemma requires transformers {_OLDEST_TRANSFORMERS} or newer, got "
            f'{library.__version__}. Run `pip install "transformers>={_OLDEST_TRANSFORMERS}"`.'
        )
    return library
