"""LLaDA and Dream, trained with masks, and DiffusionGemma: transformers without time."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gidd.common.files import CONTEXT_TOKENS, explain_damage
from gidd.diffusion.schedules import MaskedSchedule, UniformSchedule
from gidd.errors import CheckpointError
from gidd.models.backbones.bidirectional import BidirectionalConfig
from gidd.models.backbones.diffusion_gemma import (
    MIN_TIME,
    DiffusionGemmaConfig,
    require_transformers,
)
from gidd.models.importers.checkpoint import MASKING_ALONE, ForeignCheckpoint
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
    return _import_transformer(
        checkpoint,
        _llada_name,
        _LLADA_SIZES,
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
}

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
    for name, allowed in _GEMMA_REQUIRED.items():
        checkpoint.require(name, *allowed)
    weights = checkpoint.safetensors()
    vocab_size, width = weights.shape("model.decoder.embed_tokens.weight", 2)
    num_layers = weights.count("model.decoder.layers.0.layer_scalar")
    sizes = {"vocab_size": vocab_size, "hidden_size": width, "num_hidden_layers": num_layers}
    checkpoint.require_sizes({f"text_config.{name}": size for name, size in sizes.items()})
    num_positions = checkpoint.integer("text_config.max_position_embeddings")
    config = DiffusionGemmaConfig(
        text_config=checkpoint.field("text_config"),
        vocab_size=vocab_size,
        max_length=min(num_positions - 1, CONTEXT_TOKENS.value),  # the first is the bos token
        num_layers=num_layers,
        canvas_length=int(checkpoint.number("canvas_length")),
        bos_id=checkpoint.integer("text_config.bos_token_id"),
    )
    for name in [name for name in weights.shapes if name.startswith(_VISION)]:
        del weights.shapes[name]
    with explain_damage(str(checkpoint.path), COPY_BOTH_AGAIN, CheckpointError):
        network = weights.network(config, _gemma_name)
    notes = _POSTERIOR, _CANVAS.format(config.canvas_length)
    loaded = weights.pretrained(network, UniformSchedule(Vocab(vocab_size)), *notes)
    return replace(loaded, summary={"times": [MIN_TIME, 1.0]})


def _gemma_name(name: str) -> str:
    return f"model.{name}".replace("model.encoder.", "model.encoder.language_model.", 1)
