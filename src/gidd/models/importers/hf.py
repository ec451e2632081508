"""Pretrained networks of `transformers`: the starting point of a training, not diffusion models.

A folder as `save_pretrained` writes it, of a causal or masked language model. No code of the folder
is run: `transformers` builds the network from its own classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gidd.common.files import explain_damage
from gidd.common.limits import CONTEXT_TOKENS
from gidd.common.optional import optional_package
from gidd.common.terminal import shorten
from gidd.errors import CheckpointError, ConfigError
from gidd.models.backbones.hf import HFNetwork, transformers_config
from gidd.models.backbones.hf_config import CAUSAL, SETTINGS, HFConfig, hf_config_type, to_settings
from gidd.models.importers.checkpoint import (
    CONFIG,
    ROTARY_BUFFER,
    ForeignCheckpoint,
    read_checkpoint,
)
from gidd.models.weights import COPY_AGAIN, COPY_BOTH_AGAIN, Shape, require_tensors

_IRRELEVANT = frozenset(
    {
        "_name_or_path",
        "architectures",
        "bos_token_id",
        "chunk_size_feed_forward",
        "classifier_dropout",
        "classifier_pooling",
        "cls_token_id",
        "deterministic_flash_attn",
        "dtype",
        "eos_token_id",
        "id2label",
        "initializer_cutoff_factor",
        "label2id",
        "max_window_layers",
        "output_attentions",
        "output_hidden_states",
        "pad_token_id",
        "pretraining_tp",
        "problem_type",
        "reference_compile",
        "repad_logits_with_grad",
        "return_dict",
        "sep_token_id",
        "sliding_window",
        "sparse_pred_ignore_index",
        "sparse_prediction",
        "transformers_version",
        "use_cache",
        "use_sliding_window",
    }
)
"""Fields of configurations that do not change the outputs; windows are in `layer_types`."""

_FORMER = frozenset(
    {
        "global_attn_every_n_layers",
        "global_rope_theta",
        "head_dim",
        "local_rope_theta",
        "max_window_layers",
        "partial_rotary_factor",
        "rope_scaling",
        "rope_theta",
        "sliding_window",
        "use_sliding_window",
    }
)
"""Fields, many of older versions, from which transformers computes others."""

_PREFIXES = {
    "bert": {
        "body.": "bert.",
        "transform.": "cls.predictions.transform.",
        "head.": "cls.predictions.decoder.",
    },
    "modernbert": {"body.": "model.", "transform.": "head.", "head.": "decoder."},
}
_CAUSAL_PREFIXES = {"body.": "model.", "head.": "lm_head."}

_BIASES = ("cls.predictions.decoder.bias", "cls.predictions.bias")
"""Bias of the head of BERT: the one that is used, if the head is not tied and if it is."""

_UNUSED = ("bert.pooler.", "cls.seq_relationship.", *_BIASES)
"""Beginnings of names in a BERT that its masked language model may not use."""


def matches(config_json: Mapping[str, Any]) -> bool:
    """Whether a `config.json` is that of a network of a supported family."""
    return config_json.get("model_type") in SETTINGS


def is_hf_folder(folder: Path) -> bool:
    """Whether a folder holds a network of a supported family."""
    return (folder / CONFIG).is_file() and matches(read_checkpoint(folder).config)


class PretrainedNetwork(NamedTuple):
    """What is read from a folder."""

    config: HFConfig
    """Without a time embedding."""

    tensors: dict[str, Tensor]
    """By the parameter names of `HFNetwork`."""

    sha256: str
    """Of the files of weights."""


def read_hf(folder: Path) -> PretrainedNetwork:
    """Read the configuration and the weights of a network."""
    checkpoint = read_checkpoint(folder)
    if not matches(checkpoint.config):
        raise CheckpointError(
            f"{checkpoint.path}: model_type must be one of {', '.join(SETTINGS)}, got "
            f"{shorten(checkpoint.field('model_type'))}. Other networks are not supported."
        )
    optional_package("transformers", "hf")
    weights = checkpoint.safetensors()
    try:
        config = _read_config(checkpoint, len(weights.shapes))
        with torch.device("meta"), explain_damage(str(folder), COPY_BOTH_AGAIN, CheckpointError):
            network = HFNetwork(config)
    except ConfigError as error:
        raise CheckpointError(f"{checkpoint.path}: {error} {COPY_AGAIN}") from error
    names = {name: _name_in_file(name, config, weights.shapes) for name in network.state_dict()}
    expected = {names[name]: tuple(p.shape) for name, p in network.state_dict().items()}
    used = {n: shape for n, shape in weights.shapes.items() if not _is_unused(n, config, expected)}
    require_tensors(expected, used, weights.file)
    tensors = weights.read()
    tensors = {name: tensors[source] for name, source in names.items()}
    return PretrainedNetwork(config, tensors, weights.sha256)


def _read_config(checkpoint: ForeignCheckpoint, num_tensors: int) -> HFConfig:
    """Convert a configuration, and refuse one that `HFNetwork` would not reproduce."""
    family = str(checkpoint.field("model_type"))
    if checkpoint.field("quantization_config") is not None:
        raise CheckpointError(
            f"{checkpoint.path}: quantization_config is not supported. Use the weights before "
            "quantisation."
        )
    checkpoint.require("position_embedding_type", "absolute", None)
    for name in ("num_hidden_layers", "max_position_embeddings"):
        if checkpoint.field(name) is not None:
            checkpoint.integer(name)
    layers = checkpoint.field("num_hidden_layers") or 0
    if layers > num_tensors:  # before a list with an entry per layer is made
        raise CheckpointError(
            f"{checkpoint.path}: num_hidden_layers must be at most {num_tensors}, the number of "
            f"tensors, got {shorten(layers)}. {COPY_BOTH_AGAIN}"
        )
    make = optional_package("transformers", "hf").AutoConfig.for_model
    known = make(family).to_dict().keys() | SETTINGS[family]
    relevant = known - _IRRELEVANT - {"model_type"}
    # not all fields: one may name code to download, another a number of labels to make
    fields = {n: v for n, v in checkpoint.config.items() if n in relevant | _FORMER}
    with explain_damage(str(checkpoint.path), COPY_AGAIN, CheckpointError):
        theirs = make(family, **fields).to_dict()
        config = _convert(family, theirs)
        ours = transformers_config(config).to_dict()
    CONTEXT_TOKENS.require(config.max_length, f"{checkpoint.path}: the context", CheckpointError)
    if wrong := [name for name in sorted(relevant) if theirs.get(name) != ours.get(name)]:
        found = {name: theirs.get(name) for name in wrong}
        raise CheckpointError(
            f"{checkpoint.path}: {', '.join(wrong)} must be {shorten([ours.get(n) for n in wrong])}"
            f", got {shorten(found)}. Other networks of this family are not supported."
        )
    return config


def _convert(family: str, theirs: dict[str, Any]) -> HFConfig:
    """Return the options that correspond to a complete configuration of transformers."""
    is_causal = family in CAUSAL
    if family == "mistral":
        _limit_to_window(theirs)
    if is_causal and theirs.get("head_dim") is None:
        theirs["head_dim"] = theirs["hidden_size"] // theirs["num_attention_heads"]
    plain = hf_config_type(family)(
        family=family,
        vocab_size=theirs["vocab_size"],
        max_length=theirs["max_position_embeddings"],
        width=theirs["hidden_size"],
        num_layers=theirs["num_hidden_layers"],
        num_heads=theirs["num_attention_heads"],
        num_kv_heads=theirs["num_key_value_heads"] if is_causal else None,
        mlp_width=theirs["intermediate_size"],
        tied_head=theirs["tie_word_embeddings"],
        settings=to_settings({"head_dim": theirs["head_dim"]} if is_causal else {}),
    )
    ours = transformers_config(plain).to_dict()
    changed = {n: theirs[n] for n in SETTINGS[family] if n in theirs and theirs[n] != ours.get(n)}
    # always: a shorter max_length must not change the embedding of the positions
    fixed = {"max_position_embeddings": plain.max_length} | plain.other_settings
    return replace(plain, settings=to_settings(changed | fixed))


def _limit_to_window(theirs: dict[str, Any]) -> None:
    """Limit the context to the window of the attention: up to it, all tokens are attended to."""
    window = theirs.get("sliding_window")
    if window is None or window >= theirs["max_position_embeddings"]:
        return
    if theirs["rope_parameters"]["rope_type"] != "default":
        raise ConfigError(
            f"sliding_window = {shorten(window)} with rope_parameters = "
            f"{shorten(theirs['rope_parameters'])} is not supported."
        )
    theirs["max_position_embeddings"] = window


def _name_in_file(name: str, config: HFConfig, found: Mapping[str, Shape]) -> str:
    """Return the name that a parameter of `HFNetwork` has in the file."""
    prefixes = _PREFIXES.get(config.family, _CAUSAL_PREFIXES)
    ours = next(prefix for prefix in prefixes if name.startswith(prefix))
    theirs = prefixes[ours] + name.removeprefix(ours)
    if config.family != "bert":
        return theirs
    if name == "head.bias":
        return _BIASES[config.tied_head]
    old = theirs.replace("LayerNorm.weight", "LayerNorm.gamma")
    old = old.replace("LayerNorm.bias", "LayerNorm.beta")
    return old if old in found else theirs


def _is_unused(name: str, config: HFConfig, expected: Mapping[str, Shape]) -> bool:
    """Whether a tensor of a file has no place in the network: transformers ignores it too."""
    if name in expected:
        return False
    heads = ("lm_head.weight", "decoder.weight", "cls.predictions.decoder.weight")
    is_tied = config.tied_head and name in heads
    is_bert = config.family == "bert" and name.startswith(_UNUSED)
    return is_tied or is_bert or name.endswith(ROTARY_BUFFER)
