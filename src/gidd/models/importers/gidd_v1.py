"""Checkpoints of the authors' code, and their models of arXiv 2512.10858 (`read_scaling`).

The published layout has one embedding row per token. The training layout rounds the vocabulary size
up to a multiple of 128 and has one more buffer, `logit_bias`, which is zero. Both store the rotary
angles, which `DiT` computes instead.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gidd.common.files import explain_damage
from gidd.common.terminal import shorten
from gidd.diffusion.schedule import MixingSchedule
from gidd.diffusion.schedules import FirstReleaseSchedule, MaskedSchedule, UniformSchedule
from gidd.errors import CheckpointError
from gidd.models.backbones.dit_config import DiTConfig
from gidd.models.backbones.layers import rotation
from gidd.models.backbones.scaled import GiddScalingConfig
from gidd.models.importers.checkpoint import (
    MASKING_ALONE,
    Constants,
    ForeignCheckpoint,
    Weights,
    open_safetensors,
)
from gidd.models.weights import COPY_AGAIN, Pretrained, blame_file
from gidd.vocab import Vocab

FIELDS = {
    "vocab_size": "vocab_size",
    "max_length": "max_seq_len",
    "width": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "time_width": "timestep_cond_dim",
}
"""Fields of `DiTConfig` and their names in the authors' config.json."""
_PREFIXES = {
    "embedding.weight": "vocab_embed.embedding",
    "time.input.": "sigma_map.mlp.0.",
    "time.output.": "sigma_map.mlp.2.",
    "attention_norm.": "norm1.",
    "attention.qkv.": "attn_qkv.",
    "attention.out.": "attn_out.",
    "mlp_norm.": "norm2.",
    "mlp.up.": "mlp.0.",
    "mlp.down.": "mlp.2.",
    "modulation.": "adaLN_modulation.",
    "final_norm.": "output_layer.norm_final.",
    "final_modulation.": "output_layer.adaLN_modulation.",
    "head.": "output_layer.linear.",
}
"""Prefixes of parameter names of `DiT`, relative to a block, and those of the authors."""
_ROTARY = ("rotary_emb.cos_cached", "rotary_emb.sin_cached")
_LOGIT_BIAS = "logit_bias"
_ROW_MULTIPLE = 128
_GPT2_WITH_MASK = Vocab(50258, mask_id=50257, pad_id=50256)

_SCHEDULE_NOTE = (
    "The published checkpoints were trained with the noise of version 1.0.0 of the authors' code: "
    "the schedule is FirstReleaseSchedule, not the paper's HybridSchedule."
)


def reference_name(name: str) -> str:
    """Return the authors' name of a parameter of `DiT`."""
    for ours, theirs in _PREFIXES.items():
        if match := re.match(rf"(blocks\.\d+\.|){re.escape(ours)}", name):
            return match[1] + theirs + name[match.end() :]
    raise AssertionError(f"{name} has no name in the authors' layout")


def read(checkpoint: ForeignCheckpoint) -> Pretrained:
    """Read a published checkpoint: sizes from `config.json`, weights from `model.safetensors`."""
    path, weights = checkpoint.path, checkpoint.safetensors()
    with blame_file(path):
        sizes: Any = {ours: checkpoint.integer(theirs) for ours, theirs in FIELDS.items()}
        config = DiTConfig(**sizes)
        vocab = Vocab(config.vocab_size, mask_id=config.vocab_size - 1)
    p_uniform = checkpoint.p_uniform
    if p_uniform is None and (p_uniform := checkpoint.field("p_uniform")) is None:
        raise CheckpointError(
            f"{path} has no p_uniform, the fraction of uniform noise in training. Pass p_uniform "
            "(0.0, 0.1 or 0.2); the name of the checkpoint ends with it."
        )
    if type(p_uniform) not in (int, float) or not 0 <= p_uniform < 1:
        raise checkpoint.invalid("p_uniform", f"a number in [0, 1), not {shorten(p_uniform)}")
    if vocab.size == _GPT2_WITH_MASK.size:
        vocab = _GPT2_WITH_MASK  # short texts were padded with the end-of-text token
    network = _network(config, weights)  # before the schedule: it compares the sizes
    schedule = FirstReleaseSchedule(vocab, float(p_uniform))
    return weights.pretrained(network, schedule, _SCHEDULE_NOTE)


def read_training(file: Path, schedule: MixingSchedule) -> Pretrained:
    """Read a checkpoint of the authors' training code, converted to a safetensors file.

    `schedule` is its noise over the tokenizer's vocabulary: `HybridSchedule` for version 1.1.0 of
    the authors' code, `FirstReleaseSchedule` for 1.0.0.
    """
    with explain_damage(str(file), COPY_AGAIN, CheckpointError):
        weights, size = open_safetensors(file), schedule.vocab.size
        vocab_size, width = weights.shape("vocab_embed.embedding", 2)
        angles = weights.shape(_ROTARY[0], 5)
        with blame_file(file):
            config = DiTConfig(
                vocab_size=vocab_size,
                max_length=angles[1],
                width=width,
                num_layers=weights.count("blocks.0.norm1.weight"),
                num_heads=width // max(1, angles[-1]),
                time_width=weights.shape("sigma_map.mlp.2.weight", 2)[0],
            )
        rounded = -(-size // _ROW_MULTIPLE) * _ROW_MULTIPLE
        if vocab_size not in (size, rounded):
            raise CheckpointError(
                f"{file}: tensor vocab_embed.embedding must have {rounded} rows (or {size}, "
                f"schedule.vocab.size), got {vocab_size}. Use the vocabulary of its tokenizer."
            )
        if weights.shapes.pop(_LOGIT_BIAS, None) is not None:
            bias = weights.read()[_LOGIT_BIAS]
            if bias.any():
                got = shorten(bias.flatten().tolist())
                required = f"tensor {_LOGIT_BIAS} must be zero, got {got}"
                raise CheckpointError(f"{file}: {required}. Add it to output_layer.linear.bias.")
        return weights.pretrained(_network(config, weights), schedule)


def _network(config: DiTConfig, weights: Weights) -> nn.Module:
    shape = (1, config.max_length, 3, 1, config.width // config.num_heads)
    angles = Constants(dict.fromkeys(_ROTARY, shape), lambda: rotary_buffers(config), atol=1e-2)
    # version 1.1.0 stores bf16, which float32 represents exactly
    return weights.network(config, reference_name, angles).float()


def rotary_buffers(config: DiTConfig) -> dict[str, Tensor]:
    """Cosines and sines of queries, keys and values [1, L, 3, 1, head_width]."""
    cos, sin = rotation(config.max_length, config.width // config.num_heads, torch.device("cpu"))
    buffers = [
        torch.stack([angles, angles, torch.full_like(angles, unrotated)], dim=1)[None, :, :, None]
        for angles, unrotated in ((cos, 1.0), (sin, 0.0))  # values are not rotated
    ]
    return dict(zip(_ROTARY, buffers, strict=True))


MASK_ID = 3
"""Of the tokenizer; `config.json` does not have it."""
_UNIFORM, _MASKED = 1000.0, -1000.0
"""`noise_type` b: noise is uniform with probability sigmoid(log SNR + b), otherwise a mask."""
_MAX_LOG_SNR = 9.0
_EPS = 1 / (1 + math.exp(_MAX_LOG_SNR))
"""Training times t = 1 - alpha lie in [eps, 1 - eps]."""
_SCALING_REQUIRED = {
    "use_qk_norm": True,
    "attention_bias": True,
    "mlp_bias": True,
    "is_causal": False,
    "tie_word_embeddings": False,
    "rope_scaling": None,
    "weight_scaling": 1.0,
    "min_log_snr": -_MAX_LOG_SNR,
    "max_log_snr": _MAX_LOG_SNR,
}
"""Fields of the published models. Defaults of the authors' class differ: none may be missing."""
_PROMPT = (
    "A prompt attends to all tokens. In the authors' sampler it attends to itself only and begins "
    "with <|begin_of_text|>, and all sequences have 2,048 tokens: shorter ones were not trained."
)


def read_scaling(checkpoint: ForeignCheckpoint) -> Pretrained:
    """Read a model with alpha = 1 - t and uniform or masking noise.

    With uniform noise x_theta is the distribution given all other tokens, as everywhere here.
    """
    for name, value in _SCALING_REQUIRED.items():
        checkpoint.require(name, value)
    is_uniform = checkpoint.require("noise_type", _UNIFORM, _MASKED) == _UNIFORM
    weights = checkpoint.safetensors()
    vocab_size, width = weights.shape("model.embed_tokens.weight", 2)
    num_heads, head_width = weights.shape("model.layers.0.self_attn.k_bias", 2)
    with blame_file(checkpoint.path):
        config = GiddScalingConfig(
            vocab_size=vocab_size,
            max_length=checkpoint.length("max_position_embeddings"),
            width=width,
            num_layers=weights.count("model.layers.0.attn_layernorm.weight"),
            num_heads=num_heads,
            residual_scale=checkpoint.number("resid_scale"),
            head_scale=checkpoint.number("head_scaling"),
            soft_cap=checkpoint.number("attn_soft_cap"),
            rotary_base=checkpoint.number("rope_theta"),
            norm_eps=checkpoint.number("rms_norm_eps"),
        )
        vocab = Vocab(vocab_size, mask_id=MASK_ID)
    sizes = {"vocab_size": vocab_size, "hidden_size": width, "intermediate_size": 4 * width}
    sizes |= {"num_hidden_layers": config.num_layers, "num_attention_heads": num_heads}
    checkpoint.require_sizes(sizes | {"head_dim": head_width})
    network = weights.network(config, _scaling_name)
    for parameter in network.parameters():
        if parameter.dim() == 1:  # else a norm, float32 already, would keep its whole file mapped
            parameter.data = parameter.data.clone()
    schedule = UniformSchedule(vocab) if is_uniform else MaskedSchedule(vocab)
    notes = (_PROMPT,) if is_uniform else (MASKING_ALONE, _PROMPT)
    loaded = weights.pretrained(network, schedule, *notes)
    return replace(loaded, summary={"times": [_EPS, 1 - _EPS]})


def _scaling_name(name: str) -> str:
    return "lm_head.weight" if name == "head.weight" else f"model.{name}"
