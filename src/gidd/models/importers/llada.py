"""LLaDA: a bidirectional Llama under other names, with masks and without time."""

from __future__ import annotations

import re

from gidd.models.importers.checkpoint import ForeignCheckpoint
from gidd.models.importers.transformer_family import import_transformer
from gidd.models.weights import Pretrained

_NAMES = {
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

_SIZES = {
    "vocab_size": "embedding_size",
    "width": "d_model",
    "num_layers": "n_layers",
    "num_heads": "n_heads",
    "num_kv_heads": "n_kv_heads",
}
_REQUIRED = {
    "block_type": "llama",
    "layer_norm_type": "rms",
    "activation_type": "silu",
    "rope": True,
    "alibi": False,
    "attention_layer_norm": False,
    "input_emb_norm": False,
    "include_bias": False,
    "include_qkv_bias": False,
    "scale_logits": False,
}


def matches(checkpoint: ForeignCheckpoint) -> bool:
    """Whether it is LLaDA's."""
    return checkpoint.field("model_type") == "llada"


def read(checkpoint: ForeignCheckpoint) -> Pretrained:
    """Read the model, with alpha = 1 - t; the softmax is over all ids but the mask."""
    for name, value in _REQUIRED.items():
        checkpoint.require(name, value)
    return import_transformer(
        checkpoint,
        _name_in_file,
        _SIZES,
        max_length=checkpoint.length("max_sequence_length"),
        rotary_base=checkpoint.number("rope_theta"),
        norm_eps=checkpoint.number("rms_norm_eps"),
        tied_head=checkpoint.require("weight_tying", True, False),
    )


def _name_in_file(name: str) -> str:
    match = re.fullmatch(r"(?:layers\.(\d+)\.)?(.+)\.weight", name)
    assert match
    block = "" if match[1] is None else f"blocks.{match[1]}."
    return f"model.transformer.{block}{_NAMES[match[2]]}.weight"
