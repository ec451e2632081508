"""MDLM, Duo, SEDD, XDLM and SCDD: our `DiT`, with other time inputs, noise and configurations."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from gidd.diffusion.schedules import (
    HybridSchedule,
    LinearAmount,
    MaskedSchedule,
    MixtureComponent,
    MixtureSchedule,
    UniformSchedule,
    mask_noise,
)
from gidd.errors import CheckpointError
from gidd.models.backbones.dit import DiT
from gidd.models.backbones.dit_config import TimeMappedConfig
from gidd.models.backbones.layers import ROTARY_BASE, rotary_frequencies
from gidd.models.importers.checkpoint import (
    MASKING_ALONE,
    ROTARY_BUFFER,
    Constants,
    ForeignCheckpoint,
    Weights,
)
from gidd.models.importers.gidd_v1 import reference_name
from gidd.models.weights import Pretrained, blame_file
from gidd.vocab import Vocab

_SIZES = ("width", "num_layers", "num_heads", "vocab_size")
_HUB = ("hidden_dim", "n_blocks", "n_heads", "vocab_size")
"""Names of `_SIZES` on the hub. Their `cond_dim` can be wrong: not checked."""
_HYDRA = ("model.hidden_size", "model.n_blocks", "model.n_heads")
"""The same in the configuration of a training run, which does not hold the vocabulary size."""
_BERT = Vocab(30522, mask_id=103)
_GPT2_WITH_PAD = Vocab(50258, mask_id=None, pad_id=50257)


def read_mdlm(checkpoint: ForeignCheckpoint) -> Pretrained:
    """Read masked diffusion, with alpha = 1 - t instead of the authors' 1 - 0.999 t."""
    where = "algo." if checkpoint.field("algo") is not None else ""
    if checkpoint.field("model_type") != "mdlm":  # a training run of MDLM, Duo or XDLM
        checkpoint.require(f"{where}parameterization", "subs")
        checkpoint.require("noise.type", "loglinear", "log-linear")
    conditioned = checkpoint.require(f"{where}time_conditioning", True, False)
    weights, dit = _import_dit(checkpoint, "sigma" if conditioned else "zero")
    return weights.pretrained(dit, MaskedSchedule(_masked_vocab(checkpoint, dit)), MASKING_ALONE)


def read_duo(checkpoint: ForeignCheckpoint) -> Pretrained:
    """Read uniform diffusion over all ids, without a mask, with alpha = 1 - t."""
    if checkpoint.field("model_type") == "duo":
        checkpoint.require("causal", False)
    else:
        checkpoint.require("algo.causal_attention", False)
        checkpoint.require("algo.parameterization", "mean")
        checkpoint.require("noise.type", "log-linear")
    weights, dit = _import_dit(checkpoint, "sigma")
    rows = dit.config.vocab_size
    vocab = _GPT2_WITH_PAD if rows == _GPT2_WITH_PAD.size else Vocab(rows)
    return weights.pretrained(dit, UniformSchedule(vocab))


def read_sedd(checkpoint: ForeignCheckpoint) -> Pretrained:
    """Read absorbing diffusion, whose network returns the logarithm of a score.

    At masks the score is x_theta times a constant, so x_theta is the softmax without the mask,
    which is the id after the tokens.
    """
    checkpoint.require("graph.type", "absorb")
    checkpoint.require("noise.type", "loglinear")
    weights, dit = _import_dit(checkpoint, "sigma")
    tokens = dit.config.vocab_size - 1
    checkpoint.require_sizes({"tokens": tokens})
    normalised = (
        "The score is normalised to a distribution over tokens; SEDD's own sampler does not "
        "normalise it."
    )
    schedule = MaskedSchedule(Vocab(tokens + 1, mask_id=tokens))
    return weights.pretrained(dit, schedule, MASKING_ALONE, normalised)


def read_xdlm(checkpoint: ForeignCheckpoint) -> Pretrained:
    """Read a constant mixture: `algo.k1` is the fraction of uniform noise over all ids."""
    checkpoint.require("algo.time_conditioning", False)
    checkpoint.require("noise.type", "log-linear")
    uniform = checkpoint.number("algo.k1", most=1)
    weights, dit = _import_dit(checkpoint, "zero")
    vocab = _masked_vocab(checkpoint, dit)
    everywhere = torch.full((vocab.size,), 1 / vocab.size, dtype=torch.float64)
    noise = uniform * everywhere + (1 - uniform) * mask_noise(vocab)
    return weights.pretrained(
        dit, MixtureSchedule(vocab, (MixtureComponent(noise, LinearAmount()),))
    )


def read_scdd(checkpoint: ForeignCheckpoint) -> Pretrained:
    """Read the marginals of the hybrid schedule; `forward.ratio` is p_uniform."""
    checkpoint.require("forward.name", "mix")
    checkpoint.require("forward.t_peak", 0.5)
    checkpoint.require("time_conditioning", False)
    ratio, gamma = checkpoint.number("forward.ratio"), checkpoint.number("forward.gamma")
    weights, dit = _import_dit(checkpoint, "zero")
    with blame_file(f"{checkpoint.path}: forward"):
        schedule = HybridSchedule(_masked_vocab(checkpoint, dit), ratio, gamma)
    kernel = (
        "SCDD's own sampler never masks a visible token. The noise here has the same marginals and "
        "other transitions: samples and bounds are those of the hybrid schedule."
    )
    return weights.pretrained(dit, schedule, kernel)


def _masked_vocab(checkpoint: ForeignCheckpoint, dit: DiT) -> Vocab:
    """Return the vocabulary: the mask is `mask_token_id`, else BERT's or the last id."""
    rows = dit.config.vocab_size
    if checkpoint.field("mask_token_id") is not None:
        return Vocab(rows, mask_id=checkpoint.mask_id(rows))
    return _BERT if rows == _BERT.size else Vocab(rows, mask_id=rows - 1)


def _import_dit(checkpoint: ForeignCheckpoint, time: str) -> tuple[Weights, DiT]:
    """Read the network; `time` is its time input, "zero" or "sigma".

    Sizes are inferred from the tensors; the sizes in the configuration must be the same.
    """
    is_hub = checkpoint.field("hidden_dim") is not None
    max_length = checkpoint.length("model_length" if is_hub else "model.length")
    weights = checkpoint.weights()
    prefix = "backbone." if all(name.startswith("backbone.") for name in weights.shapes) else ""
    conditioning = f"{prefix}sigma_map.mlp.2.weight"
    if conditioning not in weights.shapes and f"{prefix}blocks.0.norm1.weight" in weights.shapes:
        problem = f"tensor {conditioning} is missing: this is an autoregressive baseline"
        raise CheckpointError(f"{weights.file}: {problem}, not a diffusion model.")
    vocab_size, width = weights.shape(f"{prefix}vocab_embed.embedding", 2)
    (half,) = weights.shape(prefix + ROTARY_BUFFER, 1)
    with blame_file(weights.file):
        config = TimeMappedConfig(
            vocab_size=vocab_size,
            max_length=max_length,
            width=width,
            num_layers=weights.count(f"{prefix}blocks.0.norm1.weight"),
            num_heads=width // max(1, 2 * half),
            time_width=weights.shape(conditioning, 2)[0],
            time=time,
        )
    names = _HUB if is_hub else _HYDRA
    pairs = zip(names, _SIZES, strict=False)
    checkpoint.require_sizes({theirs: getattr(config, ours) for theirs, ours in pairs})
    head_width, buffer = config.width // config.num_heads, prefix + ROTARY_BUFFER

    def rotary() -> dict[str, Tensor]:
        return {buffer: rotary_frequencies(head_width, torch.device("cpu"), ROTARY_BASE)}

    constants = Constants({buffer: (head_width // 2,)}, rotary)
    network = weights.network(config, lambda name: prefix + reference_name(name), constants)
    return weights, cast(DiT, network.float())
