"""LLaDA and Dream, trained with masks, and DiffusionGemma: transformers without time."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import torch

from gidd.common.files import CONTEXT_TOKENS, explain_damage
from gidd.diffusion.schedules import MaskedSchedule, UniformSchedule
from gidd.errors import CheckpointError
from gidd.models.backbones.bidirectional import BidirectionalConfig
from gidd.models.backbones.diffusion_gemma import (
    MIN_TIME,
    DiffusionGemma,
    DiffusionGemmaConfig,
    require_transformers,
)
from gidd.models.importers.checkpoint import MASKING_ALONE, ForeignCheckpoint, Weights
from gidd.models.weights import COPY_BOTH_AGAIN, Pretrained, blame_file
from gidd.vocab import Vocab

_LLADA_NAMES = {
    "embed_tokens": "wte",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "q_proj",
    "self_attn.k_proj": "k_proj",
    "self_attn.v_proj": "v_proj",
    "self_attn.o_proj": "attn_out",
    "post_attention_layernorm": "ff_norm",
    "mlp.gate_proj": "ff_proj",
    "mlp.up_proj": "up_proj",
    "mlp.down_proj": "ff_out",
    "norm": "ln_f",
    "head": "ff_out",
}
"""Names of `BidirectionalTransformer`, inside a layer or outside, and LLaDA's."""
_SIZES = ("num_heads", "vocab_size", "width", "num_layers", "num_kv_heads", "mlp_width")
_LLADA_SIZES = ("n_heads", "embedding_size", "d_model", "n_layers", "n_kv_heads")
_DREAM_SIZES = (
    *("num_attention_heads", "vocab_size", "hidden_size", "num_hidden_layers"),
    *("num_key_value_heads", "intermediate_size"),
)
"""Names of `_SIZES` in the configurations."""
_LLADA_REQUIRED = {"block_type": "llama", "layer_norm_type": "rms", "activation_type": "silu"}
_LLADA_FALSE = (
    *("alibi", "attention_layer_norm", "input_emb_norm", "include_bias", "include_qkv_bias"),
    "scale_logits",
)
_DREAM_CONTEXT = 2048
"""Tokens that Dream was trained on; `max_position_embeddings` is the one of its first weights."""
_DREAM_REASONER_MASK = 151669
"""Dream-Reasoner, whose outputs are not shifted, is not supported."""


def read_llada(checkpoint: ForeignCheckpoint) -> Pretrained:
    """Read a bidirectional Llama under other names."""
    for name, value in (
        _LLADA_REQUIRED | {"rope": True} | dict.fromkeys(_LLADA_FALSE, False)
    ).items():
        checkpoint.require(name, value)
    checkpoint.require("clip_qkv", None)
    is_ratio = checkpoint.field("mlp_hidden_size") is None  # the tensors alone have the size
    return _import_transformer(
        checkpoint,
        _llada_name,
        _LLADA_SIZES if is_ratio else (*_LLADA_SIZES, "mlp_hidden_size"),
        max_length=checkpoint.length("max_sequence_length"),
        tied_head=checkpoint.require("weight_tying", True, False),
    )


def read_dream(checkpoint: ForeignCheckpoint) -> Pretrained:
    """Read a bidirectional Qwen2 whose output at a position predicts the next one."""
    checkpoint.require("hidden_act", "silu")
    checkpoint.require("use_sliding_window", False)
    checkpoint.require("rope_scaling", None)
    mask_id = checkpoint.integer("mask_token_id")
    if mask_id == _DREAM_REASONER_MASK:
        raise checkpoint.invalid("mask_token_id", "another than in Dream-Reasoner", "Use Dream.")
    loaded = _import_transformer(
        checkpoint,
        lambda name: "lm_head.weight" if name == "head.weight" else f"model.{name}",
        _DREAM_SIZES,
        max_length=min(_DREAM_CONTEXT, checkpoint.integer("max_position_embeddings")),
        qkv_bias=True,
        tied_head=checkpoint.require("tie_word_embeddings", True, False),
        shifted_mask_id=mask_id,
    )
    first = (
        "Nothing predicts the first token: it must be given. `generate` needs a prompt, a template "
        "must begin with text, and `score` is refused."
    )
    return replace(loaded, notes=(*loaded.notes, first))


def _llada_name(name: str) -> str:
    match = re.fullmatch(r"(?:layers\.(\d+)\.)?(.+)\.weight", name)
    assert match
    block = "" if match[1] is None else f"blocks.{match[1]}."
    return f"model.transformer.{block}{_LLADA_NAMES[match[2]]}.weight"


def _import_transformer(
    checkpoint: ForeignCheckpoint,
    name_in_file: Callable[[str], str],
    sizes: tuple[str, ...],
    **fixed: Any,
) -> Pretrained:
    """Read the network, with alpha = 1 - t; the softmax is over all ids but the mask.

    Sizes are inferred from the tensors and compared with the configuration, in which they have the
    names `sizes`. `fixed` are fields of `BidirectionalConfig` that no tensor shows.
    """
    weights, num_heads = checkpoint.weights(), checkpoint.integer(sizes[0])
    vocab_size, width = weights.shape(name_in_file("embed_tokens.weight"), 2)
    mlp_width, _ = weights.shape(name_in_file("layers.0.mlp.gate_proj.weight"), 2)
    kv_width, _ = weights.shape(name_in_file("layers.0.self_attn.k_proj.weight"), 2)
    with blame_file(checkpoint.path):
        config = BidirectionalConfig(
            vocab_size=vocab_size,
            width=width,
            mlp_width=mlp_width,
            num_layers=weights.count(name_in_file("layers.0.input_layernorm.weight")),
            num_heads=num_heads,
            num_kv_heads=kv_width * num_heads // max(1, width),
            rotary_base=checkpoint.number("rope_theta"),
            norm_eps=checkpoint.number("rms_norm_eps"),
            **fixed,
        )
    pairs = zip(sizes, _SIZES, strict=False)
    checkpoint.require_sizes({theirs: getattr(config, ours) for theirs, ours in pairs})
    vocab = Vocab(vocab_size, mask_id=checkpoint.mask_id(vocab_size))
    network = weights.network(config, name_in_file)
    loaded = weights.pretrained(network, MaskedSchedule(vocab), MASKING_ALONE)
    return replace(loaded, has_unused_rows=True)


_VISION = ("model.encoder.vision_tower.", "model.encoder.embed_vision.")
_GEMMA_REQUIRED = {
    "tie_word_embeddings": (True,),
    "text_config.tie_word_embeddings": (True, None),
    "text_config.use_bidirectional_attention": ("vision", None),
    "text_config.hidden_activation": ("gelu_pytorch_tanh", None),
    "text_config.attention_bias": (False, None),
}
_SLIDING, _FULL = "sliding_attention", "full_attention"
_ROPE_TYPES = {_SLIDING: ("default", None), _FULL: ("proportional", "default", None)}
_FULL_EVERY = 6
"""By default every sixth layer has full attention."""

_POSTERIOR = (
    "The model predicts the posterior of a token given all tokens of its canvas, at a noise level "
    "that it infers. x_theta is converted from it for the time of a step, which is exact only "
    "where the canvas reveals that time. `correct` uses the posterior itself."
)
_CANVAS = (
    "Tokens are predicted in canvases of {} from the end of a sequence on: a token is conditioned "
    "on its canvas and on the text before it, never on text after the canvas."
)


def read_diffusion_gemma(checkpoint: ForeignCheckpoint) -> Pretrained:
    """Read a model with alpha = 1 - t and uniform noise over all tokens; there is no mask."""
    require_transformers()
    checkpoint.require_known("", "text_config", "canvas_length", "tie_word_embeddings")
    for name, allowed in _GEMMA_REQUIRED.items():
        checkpoint.require(name, *allowed)
    weights, most = checkpoint.safetensors(), CONTEXT_TOKENS.value
    settings = _gemma_settings(checkpoint, weights)
    vocab_size: int = settings["vocab_size"]
    config = DiffusionGemmaConfig(
        text_config=settings,
        vocab_size=vocab_size,
        max_length=min(settings["max_position_embeddings"] - 1, most),  # the first is the bos token
        num_layers=settings["num_hidden_layers"],
        canvas_length=checkpoint.integer("canvas_length", 1, most),
        bos_id=checkpoint.integer("text_config.bos_token_id", 0, vocab_size - 1),
    )
    for name in [name for name in weights.shapes if name.startswith(_VISION)]:
        del weights.shapes[name]
    with explain_damage(str(checkpoint.path), COPY_BOTH_AGAIN, CheckpointError):
        network = cast(DiffusionGemma, weights.network(config, _gemma_name))
        try_network(network)
    notes = _POSTERIOR, _CANVAS.format(config.canvas_length)
    loaded = weights.pretrained(network, UniformSchedule(Vocab(vocab_size)), *notes)
    return replace(loaded, summary={"times": [MIN_TIME, 1.0]})


def _gemma_settings(checkpoint: ForeignCheckpoint, weights: Weights) -> dict[str, Any]:
    """Return the fields of `text_config` for transformers: sizes of the tensors, and checked ones.

    No other field is passed on: it could ask for any amount of memory.
    """
    stack, where = "model.decoder", "text_config."
    vocab_size, width = weights.shape(f"{stack}.embed_tokens.weight", 2)
    num_experts, _, expert_width = weights.shape(f"{stack}.layers.0.experts.down_proj", 3)
    num_layers = weights.count(f"{stack}.layers.0.layer_scalar")

    def attention_sizes(layer: int) -> tuple[int, int, int]:
        name = f"{stack}.layers.{layer}.self_attn"
        (head_width,) = weights.shape(f"{name}.q_norm.weight", 1)
        rows = (weights.shape(f"{name}.{part}_proj.weight", 2)[0] for part in "qk")
        num_heads, num_kv_heads = (num_rows // max(1, head_width) for num_rows in rows)
        return head_width, num_heads, num_kv_heads

    types: list[str] | None = checkpoint.field(f"{where}layer_types")
    if types is None:
        sixth = range(_FULL_EVERY - 1, num_layers, _FULL_EVERY)
        types = [_FULL if i in (*sixth, num_layers - 1) else _SLIDING for i in range(num_layers)]
    is_list = isinstance(cast(object, types), list) and len(types) == num_layers
    if not is_list or types[-1] != _FULL or any(kind not in _ROPE_TYPES for kind in types):
        must = f"a list of {num_layers} of {_SLIDING} and {_FULL}, the last {_FULL}"
        raise checkpoint.invalid(f"{where}layer_types", must, COPY_BOTH_AGAIN)
    first = types.index(_SLIDING) if _SLIDING in types else num_layers - 1
    head_width, num_heads, num_kv_heads = attention_sizes(first)
    full_width, _, num_full_kv_heads = attention_sizes(num_layers - 1)
    sizes = {
        "vocab_size": vocab_size,
        "hidden_size": width,
        "num_hidden_layers": num_layers,
        "intermediate_size": weights.shape(f"{stack}.layers.0.mlp.gate_proj.weight", 2)[0],
        "num_experts": num_experts,
        "moe_intermediate_size": expert_width,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": head_width,
        "num_global_key_value_heads": num_full_kv_heads,
        "global_head_dim": full_width,
    }
    present = [name for name in sizes if checkpoint.field(f"{where}{name}") is not None]
    checkpoint.require_sizes({f"{where}{name}": sizes[name] for name in present})
    full = {"num_key_value_heads": num_full_kv_heads, "head_dim": full_width}
    for_layers = {str(i): full for i, kind in enumerate(types) if kind == _FULL}
    if checkpoint.field(f"{where}per_layer_config") not in (None, for_layers):
        raise checkpoint.invalid(f"{where}per_layer_config", f"{for_layers}", COPY_BOTH_AGAIN)
    most = CONTEXT_TOKENS.value
    ranges = {
        "top_k_experts": (1, num_experts),
        "sliding_window": (1, most),
        "max_position_embeddings": (2, 2**31 - 1),
    }
    settings: dict[str, Any] = dict(sizes)
    settings |= {name: checkpoint.integer(where + name, *r) for name, r in ranges.items()}
    for name in ("rms_norm_eps", "final_logit_softcapping"):
        if checkpoint.field(f"{where}{name}") is not None:
            settings[name] = checkpoint.number(f"{where}{name}")
    others = "per_layer_config", "rope_parameters", "layer_types", "final_logit_softcapping"
    required = (name.removeprefix(where) for name in _GEMMA_REQUIRED)
    checkpoint.require_known("text_config", *settings, *others, *required)
    if checkpoint.field(f"{where}rope_parameters") is not None:
        checkpoint.require_known(f"{where}rope_parameters", *_ROPE_TYPES)
        settings["rope_parameters"] = {k: _rope(checkpoint, k) for k in _ROPE_TYPES}
    same = {"use_bidirectional_attention": checkpoint.field(f"{where}use_bidirectional_attention")}
    return settings | same | {"layer_types": types, "pad_token_id": None}


def _rope(checkpoint: ForeignCheckpoint, kind: str) -> dict[str, Any]:
    """Return the rotary embedding of a kind of layers."""
    where = f"text_config.rope_parameters.{kind}"
    checkpoint.require_known(where, "rope_type", "rope_theta", "partial_rotary_factor")
    settings = {"rope_type": checkpoint.require(f"{where}.rope_type", *_ROPE_TYPES[kind])}
    settings["rope_theta"] = checkpoint.number(f"{where}.rope_theta")
    if checkpoint.field(f"{where}.partial_rotary_factor") is not None:
        settings["partial_rotary_factor"] = checkpoint.number(f"{where}.partial_rotary_factor", 1)
    return {name: value for name, value in settings.items() if value is not None}


@torch.no_grad()
def try_network(network: DiffusionGemma) -> None:
    """Compute the logits of one token, so that settings that do not work are refused here."""
    token = torch.zeros(1, dtype=torch.int64)
    logits = network.head(network.decode(token, network.encode(token)))
    if not logits.isfinite().all():
        raise ValueError("logits are not finite")


def _gemma_name(name: str) -> str:
    return f"model.{name}".replace("model.encoder.", "model.encoder.language_model.", 1)
