"""Networks in folders of `save_pretrained`, to fine-tune; no code of the folder is run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import torch
from torch import Tensor

from gidd.common.files import CONTEXT_TOKENS, explain_damage
from gidd.common.optional import optional_package
from gidd.errors import CheckpointError
from gidd.models.backbones.hf import HFNetwork, field_names
from gidd.models.backbones.hf_config import CAUSAL, FAMILIES, HFConfig
from gidd.models.importers.checkpoint import ForeignCheckpoint, read_checkpoint
from gidd.models.weights import COPY_BOTH_AGAIN, blame_file, require_tensors

_COMPUTED = re.compile("rope|rotary|window|attn_every|layer_types")
"""In names of fields, many of older versions, from which transformers computes others."""
_UNUSED = re.compile(
    r"bert\.pooler\..+|cls\.(seq_relationship|predictions)\..+|.+rotary_emb\.inv_freq"
)
"""Names of tensors that transformers ignores too, if they are no parameters."""


def read_hf(folder: Path) -> tuple[HFConfig, dict[str, Tensor], str]:
    """Read a network: its settings, its tensors by their names in `HFNetwork`, their SHA-256."""
    checkpoint = read_checkpoint(folder)
    checkpoint.require("model_type", *FAMILIES)
    optional_package("transformers", "hf")
    weights = checkpoint.safetensors()
    damage = explain_damage(str(checkpoint.path), COPY_BOTH_AGAIN, CheckpointError)
    with blame_file(checkpoint.path), damage, torch.device("meta"):
        config = _read_config(checkpoint, len(weights.shapes))
        network = HFNetwork(config)
    names, shapes = dict[str, str](), weights.shapes
    for ours, theirs in network.names_in_files.items():
        old = [n.replace("Norm.weight", "Norm.gamma") for n in theirs]
        old = [n.replace("Norm.bias", "Norm.beta") for n in old]
        names[ours] = next((name for name in (*theirs, *old) if name in shapes), theirs[0])
    expected = {names[name]: tuple(p.shape) for name, p in network.named_parameters()}
    tied = {name for theirs in network.names_in_files.values() for name in theirs}
    unused = {n for n in shapes if n not in expected and (n in tied or _UNUSED.fullmatch(n))}
    require_tensors(expected, {n: shapes[n] for n in shapes if n not in unused}, weights.file)
    tensors = weights.read()
    return config, {ours: tensors[name] for ours, name in names.items()}, weights.sha256


def start_token(folder: Path, vocab_size: int) -> int:
    """Return the token that a causal model reads before the first, else the one after the last."""
    checkpoint = read_checkpoint(folder)
    for name in ("bos_token_id", "eos_token_id"):
        token = checkpoint.config.get(name)
        token = token[0] if isinstance(token, list) and token else token
        if type(token) is int and 0 <= token < vocab_size:
            return token
    raise CheckpointError(
        f"{checkpoint.path}: bos_token_id or eos_token_id must be a token from 0 to "
        f"{vocab_size - 1}. Add one: it is read before the first token of a text."
    )


def _read_config(checkpoint: ForeignCheckpoint, num_tensors: int) -> HFConfig:
    """Convert a configuration; the fields that `HFNetwork` does not use are not read."""
    checkpoint.require("position_embedding_type", "absolute", None)
    checkpoint.require("is_decoder", False, None)
    sizes = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
    settings = {name: checkpoint.integer(name) for name in (*sizes, "max_position_embeddings")}
    if settings["num_hidden_layers"] > num_tensors:  # before a list with an entry per layer is made
        required = f"num_hidden_layers must be at most {num_tensors}, the number of tensors"
        raise CheckpointError(f"{checkpoint.path}: {required}. {COPY_BOTH_AGAIN}")
    family = str(checkpoint.field("model_type"))
    names = field_names(family)
    settings |= {n: v for n, v in checkpoint.config.items() if n in names or _COMPUTED.search(n)}
    full = optional_package("transformers", "hf").AutoConfig.for_model(family, **settings).to_dict()
    length, window = full["max_position_embeddings"], full.get("sliding_window")
    is_windowed = family == "mistral" or "sliding_attention" in full.get("layer_types", ())
    if family in CAUSAL and is_windowed and window:  # all tokens of a window are attended to
        length = min(length, window)
    config = FAMILIES[family](
        family=family,
        vocab_size=full["vocab_size"],
        max_length=length,
        width=full["hidden_size"],
        num_layers=full["num_hidden_layers"],
        num_heads=full["num_attention_heads"],
        hf=json.dumps({n: full[n] for n in names if full.get(n) is not None}, sort_keys=True),
    )
    CONTEXT_TOKENS.require(config.max_length, f"{checkpoint.path}: the context", CheckpointError)
    return config
