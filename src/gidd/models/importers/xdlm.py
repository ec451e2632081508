"""XDLM: MDLM's network, trained with a constant mixture of mask and uniform noise."""

from __future__ import annotations

import torch

from gidd.diffusion.schedules import Component, LinearAmount, MixtureSchedule, mask_noise
from gidd.errors import CheckpointError
from gidd.models.importers.checkpoint import ForeignCheckpoint
from gidd.models.importers.dit_family import import_dit, masked_vocab
from gidd.models.weights import COPY_AGAIN, Pretrained


def matches(checkpoint: ForeignCheckpoint) -> bool:
    """Whether it was trained by XDLM's code."""
    return checkpoint.field("algo.name") == "xdlm"


def read(checkpoint: ForeignCheckpoint) -> Pretrained:
    """Read the model; `algo.k1` is the fraction of uniform noise over all ids, mask included."""
    checkpoint.require("algo.time_conditioning", False)
    checkpoint.require("noise.type", "log-linear")
    uniform = checkpoint.number("algo.k1")
    if uniform > 1:
        raise CheckpointError(
            f"{checkpoint.path}: algo.k1 must be in (0, 1], got {uniform:g}. {COPY_AGAIN}"
        )
    imported = import_dit(checkpoint, "zero")
    vocab = masked_vocab(checkpoint, imported.dit.config.vocab_size)
    everywhere = torch.full((vocab.size,), 1 / vocab.size, dtype=torch.float64)
    noise = uniform * everywhere + (1 - uniform) * mask_noise(vocab)
    return imported.pretrained(MixtureSchedule(vocab, (Component(noise, LinearAmount()),)))
