"""Dream: a bidirectional Qwen2 with masks, whose output at a position predicts the next one."""

from __future__ import annotations

from dataclasses import replace

from gidd.errors import CheckpointError
from gidd.models.importers.checkpoint import ForeignCheckpoint
from gidd.models.importers.transformer_family import import_transformer
from gidd.models.weights import Pretrained

_SIZES = {
    "vocab_size": "vocab_size",
    "width": "hidden_size",
    "mlp_width": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
}
_CONTEXT = 2048
"""Tokens that the model was trained on; `max_position_embeddings` is that of its first weights."""

_REASONER_MASK = 151669
_FIRST = (
    "Nothing predicts the first token: it must be given. `generate` needs a prompt, a template "
    "must begin with text, and `score` is refused."
)


def matches(checkpoint: ForeignCheckpoint) -> bool:
    """Whether it is Dream's, or of a model with the same layout (DiffuCoder, Dream-Coder)."""
    return checkpoint.field("model_type") == "Dream"


def read(checkpoint: ForeignCheckpoint) -> Pretrained:
    """Read the model, with alpha = 1 - t; the softmax is over all ids but the mask."""
    checkpoint.require("hidden_act", "silu")
    checkpoint.require("use_sliding_window", False)
    checkpoint.require("rope_scaling", None)
    mask_id = checkpoint.integer("mask_token_id")
    if mask_id == _REASONER_MASK:
        raise CheckpointError(
            f"{checkpoint.path}: mask_token_id {mask_id} is that of Dream-Reasoner, whose outputs "
            "are not shifted. It is not supported."
        )
    loaded = import_transformer(
        checkpoint,
        _name_in_file,
        _SIZES,
        max_length=min(_CONTEXT, checkpoint.integer("max_position_embeddings")),
        rotary_base=checkpoint.number("rope_theta"),
        norm_eps=checkpoint.number("rms_norm_eps"),
        qkv_bias=True,
        tied_head=checkpoint.require("tie_word_embeddings", True, False),
        shifted_mask_id=mask_id,
    )
    return replace(loaded, notes=(*loaded.notes, _FIRST))


def _name_in_file(name: str) -> str:
    return "lm_head.weight" if name == "head.weight" else f"model.{name}"
