"""Pretrained networks of `transformers`: the starting point of a training, not diffusion models.

A folder as `save_pretrained` writes it, of a causal or masked language model. No code of the folder
is run: `transformers` builds the network from its own classes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gidd.common.files import explain_damage
from gidd.common.limits import CONTEXT_TOKENS
from gidd.common.optional import optional_package
from gidd.common.terminal import shorten
from gidd.errors import CheckpointError, ConfigError
from gidd.models.backbones.hf import HFNetwork, field_names
from gidd.models.backbones.hf_config import CAUSAL, FAMILIES, HFConfig
from gidd.models.importers.checkpoint import CONFIG, ForeignCheckpoint, read_checkpoint
from gidd.models.weights import COPY_AGAIN, COPY_BOTH_AGAIN, require_tensors

_COMPUTED = re.compile("rope|rotary|window|attn_every|layer_types")
"""In names of fields, many of older versions, from which transformers computes others."""

_UNUSED = re.compile(
    r"bert\.pooler\..+|cls\.(seq_relationship|predictions)\..+|.+rotary_emb\.inv_freq"
)
"""Names of tensors that transformers ignores too, if they are no parameters."""


def is_hf_folder(folder: Path) -> bool:
    """Whether a folder holds a network of a supported family."""
    is_folder = (folder / CONFIG).is_file()
    return is_folder and read_checkpoint(folder).field("model_type") in FAMILIES


def read_hf(folder: Path) -> tuple[HFConfig, dict[str, Tensor], str]:
    """Read a network: its settings, its tensors by their names in `HFNetwork`, their SHA-256."""
    checkpoint = read_checkpoint(folder)
    checkpoint.require("model_type", *FAMILIES)
    optional_package("transformers", "hf")
    weights = checkpoint.safetensors()
    try:
        with explain_damage(str(checkpoint.path), COPY_BOTH_AGAIN, CheckpointError):
            config = _read_config(checkpoint, len(weights.shapes))
            with torch.device("meta"):
                network = HFNetwork(config)
    except ConfigError as error:
        raise CheckpointError(f"{checkpoint.path}: {error} {COPY_AGAIN}") from error
    names = {
        ours: next((name for name in _with_old(theirs) if name in weights.shapes), theirs[0])
        for ours, theirs in network.names_in_files.items()
    }
    expected = {names[name]: tuple(p.shape) for name, p in network.named_parameters()}
    tied = {name for theirs in network.names_in_files.values() for name in theirs}
    used = {
        name: shape
        for name, shape in weights.shapes.items()
        if name in expected or not (name in tied or _UNUSED.fullmatch(name))
    }
    require_tensors(expected, used, weights.file)
    tensors = weights.read()
    return config, {ours: tensors[name] for ours, name in names.items()}, weights.sha256


def _read_config(checkpoint: ForeignCheckpoint, num_tensors: int) -> HFConfig:
    """Convert a configuration; the fields that `HFNetwork` does not use are not read."""
    checkpoint.require("position_embedding_type", "absolute", None)
    checkpoint.require("is_decoder", False, None)
    sizes = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
    given = {name: checkpoint.integer(name) for name in (*sizes, "max_position_embeddings")}
    if given["num_hidden_layers"] > num_tensors:  # before a list with an entry per layer is made
        raise CheckpointError(
            f"{checkpoint.path}: num_hidden_layers must be at most {num_tensors}, the number of "
            f"tensors, got {shorten(given['num_hidden_layers'])}. {COPY_BOTH_AGAIN}"
        )
    family = str(checkpoint.field("model_type"))
    names = field_names(family)
    given |= {n: v for n, v in checkpoint.config.items() if n in names or _COMPUTED.search(n)}
    full = optional_package("transformers", "hf").AutoConfig.for_model(family, **given).to_dict()
    config = FAMILIES[family](
        family=family,
        vocab_size=full["vocab_size"],
        max_length=_context(full, family),
        width=full["hidden_size"],
        num_layers=full["num_hidden_layers"],
        num_heads=full["num_attention_heads"],
        hf=json.dumps({n: full[n] for n in names if full.get(n) is not None}, sort_keys=True),
    )
    CONTEXT_TOKENS.require(config.max_length, f"{checkpoint.path}: the context", CheckpointError)
    return config


def _context(full: Mapping[str, Any], family: str) -> int:
    """Return the context: up to the window of a causal network, all tokens are attended to."""
    length, window = full["max_position_embeddings"], full.get("sliding_window")
    is_windowed = family == "mistral" or "sliding_attention" in full.get("layer_types", ())
    return min(length, window) if family in CAUSAL and is_windowed and window else length


def _with_old(names: list[str]) -> list[str]:
    """Return the names of a parameter, and its names in old files."""
    old = [n.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta") for n in names]
    return names + old
