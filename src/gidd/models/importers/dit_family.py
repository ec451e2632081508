"""MDLM, Duo, SEDD, XDLM and SCDD: the network of the authors' code, our `DiT`.

The projects differ in the input of the time embedding, in the noise, and in the names of
configuration fields: one function `read_...` per project.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, cast

import torch
from torch import Tensor

from gidd.diffusion.schedule import MixingSchedule
from gidd.diffusion.schedules import (
    Component,
    HybridSchedule,
    LinearAmount,
    MaskedSchedule,
    MixtureSchedule,
    UniformSchedule,
    mask_noise,
)
from gidd.errors import CheckpointError, ConfigError, ScheduleError
from gidd.models.backbones.dit import DiT
from gidd.models.backbones.dit_config import TimeMappedConfig
from gidd.models.backbones.layers import ROTARY_BASE
from gidd.models.denoiser import Denoiser
from gidd.models.importers.checkpoint import (
    MASKING_ALONE,
    ROTARY_BUFFER,
    ForeignCheckpoint,
    Weights,
)
from gidd.models.importers.gidd_v1 import reference_name
from gidd.models.networks import network_from_tensors, require_network
from gidd.models.weights import COPY_AGAIN, Pretrained
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
    network = _import_dit(checkpoint, "sigma" if conditioned else "zero")
    return network.pretrained(MaskedSchedule(network.masked_vocab(checkpoint)), MASKING_ALONE)


def read_duo(checkpoint: ForeignCheckpoint) -> Pretrained:
    """Read uniform diffusion over all ids, without a mask, with alpha = 1 - t."""
    if checkpoint.field("model_type") == "duo":
        checkpoint.require("causal", False)
    else:
        checkpoint.require("algo.causal_attention", False)
        checkpoint.require("noise.type", "log-linear")
    network = _import_dit(checkpoint, "sigma")
    is_gpt2 = network.rows == _GPT2_WITH_PAD.size
    vocab = _GPT2_WITH_PAD if is_gpt2 else Vocab(network.rows)
    return network.pretrained(UniformSchedule(vocab))


def read_sedd(checkpoint: ForeignCheckpoint) -> Pretrained:
    """Read absorbing diffusion, whose network returns the logarithm of a score.

    At masks the score is x_theta times a constant, so x_theta is the softmax without the mask,
    which is the id after the tokens.
    """
    checkpoint.require("graph.type", "absorb")
    checkpoint.require("noise.type", "loglinear")
    network = _import_dit(checkpoint, "sigma")
    tokens = network.rows - 1
    checkpoint.require_sizes({"tokens": tokens})
    normalised = (
        "The score is normalised to a distribution over tokens; SEDD's own sampler does not "
        "normalise it."
    )
    schedule = MaskedSchedule(Vocab(tokens + 1, mask_id=tokens))
    return network.pretrained(schedule, MASKING_ALONE, normalised)


def read_xdlm(checkpoint: ForeignCheckpoint) -> Pretrained:
    """Read a constant mixture: `algo.k1` is the fraction of uniform noise over all ids."""
    checkpoint.require("algo.time_conditioning", False)
    checkpoint.require("noise.type", "log-linear")
    uniform = checkpoint.number("algo.k1", most=1)
    network = _import_dit(checkpoint, "zero")
    vocab = network.masked_vocab(checkpoint)
    everywhere = torch.full((vocab.size,), 1 / vocab.size, dtype=torch.float64)
    noise = uniform * everywhere + (1 - uniform) * mask_noise(vocab)
    return network.pretrained(MixtureSchedule(vocab, (Component(noise, LinearAmount()),)))


def read_scdd(checkpoint: ForeignCheckpoint) -> Pretrained:
    """Read the marginals of the hybrid schedule; `forward.ratio` is p_uniform."""
    checkpoint.require("forward.name", "mix")
    checkpoint.require("forward.t_peak", 0.5)
    checkpoint.require("time_conditioning", False)
    ratio, gamma = checkpoint.number("forward.ratio"), checkpoint.number("forward.gamma")
    network = _import_dit(checkpoint, "zero")
    try:
        schedule = HybridSchedule(network.masked_vocab(checkpoint), ratio, gamma)
    except ScheduleError as error:
        raise CheckpointError(f"{checkpoint.path}: forward: {error}") from error
    kernel = (
        "SCDD's own sampler never masks a visible token. The noise here has the same marginals and "
        "other transitions: samples and bounds are those of the hybrid schedule."
    )
    return network.pretrained(schedule, kernel)


class _ImportedDiT(NamedTuple):
    dit: DiT
    sha256: str

    @property
    def rows(self) -> int:
        """Rows of the embedding."""
        return self.dit.config.vocab_size

    def masked_vocab(self, checkpoint: ForeignCheckpoint) -> Vocab:
        """Return the vocabulary: the mask is `mask_token_id`, else BERT's or the last id."""
        if checkpoint.field("mask_token_id") is not None:
            return Vocab(self.rows, mask_id=checkpoint.mask_id(self.rows))
        return _BERT if self.rows == _BERT.size else Vocab(self.rows, mask_id=self.rows - 1)

    def pretrained(self, schedule: MixingSchedule, *notes: str) -> Pretrained:
        """Return the model with the noise that it was trained with."""
        denoiser = Denoiser(self.dit, schedule.vocab)
        return Pretrained(denoiser=denoiser, schedule=schedule, sha256=self.sha256, notes=notes)


def _import_dit(checkpoint: ForeignCheckpoint, time: str) -> _ImportedDiT:
    """Read the network; `time` is its time input, "zero" or "sigma".

    Sizes are inferred from the tensors; the sizes in the configuration must be the same.
    """
    is_hub = checkpoint.field("hidden_dim") is not None
    max_length = checkpoint.length("model_length" if is_hub else "model.length")
    weights = checkpoint.weights()
    prefix = "backbone." if all(name.startswith("backbone.") for name in weights.shapes) else ""
    config = _infer_config(weights, prefix, max_length, time)
    names = _HUB if is_hub else _HYDRA
    pairs = zip(names, _SIZES, strict=False)
    checkpoint.require_sizes({theirs: getattr(config, ours) for theirs, ours in pairs})

    def name_in_file(name: str) -> str:
        return prefix + reference_name(name)

    shapes = {name: s for name, s in weights.shapes.items() if name != prefix + ROTARY_BUFFER}
    require_network(config, shapes, weights.file, name_in_file)
    tensors = weights.read()
    _require_rotary(tensors.pop(prefix + ROTARY_BUFFER), config, weights.file)
    network = network_from_tensors(config, tensors, name_in_file).float()
    return _ImportedDiT(cast(DiT, network), weights.sha256)


def _infer_config(weights: Weights, prefix: str, max_length: int, time: str) -> TimeMappedConfig:
    conditioning = f"{prefix}sigma_map.mlp.2.weight"
    if conditioning not in weights.shapes and f"{prefix}blocks.0.norm1.weight" in weights.shapes:
        what = f"tensor {conditioning} is missing: this is an autoregressive baseline"
        raise CheckpointError(f"{weights.file}: {what}, not a diffusion model.")
    vocab_size, width = weights.shape(f"{prefix}vocab_embed.embedding", 2)
    (half,) = weights.shape(prefix + ROTARY_BUFFER, 1)
    try:
        return TimeMappedConfig(
            vocab_size=vocab_size,
            max_length=max_length,
            width=width,
            num_layers=weights.count(f"{prefix}blocks.0.norm1.weight"),
            num_heads=width // max(1, 2 * half),
            time_width=weights.shape(conditioning, 2)[0],
            time=time,
        )
    except ConfigError as error:
        raise CheckpointError(f"{weights.file} does not hold a DiT: {error}") from error


def _require_rotary(found: Tensor, config: TimeMappedConfig, file: Path) -> None:
    head_width = config.width // config.num_heads
    exponent = torch.arange(0, head_width, 2, dtype=torch.float32) / head_width
    expected = ROTARY_BASE**-exponent
    is_close = (found.float() / expected - 1).abs() < 1e-2  # bf16 rounds by 4e-3
    if found.shape != expected.shape or not bool(is_close.all()):
        what = f"tensor {ROTARY_BUFFER} does not hold the rotary frequencies of base 10000"
        raise CheckpointError(f"{file}: {what}. {COPY_AGAIN}")
