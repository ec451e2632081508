"""Duo: uniform diffusion over all ids, without a mask. The network is given sigma."""

from __future__ import annotations

from gidd.diffusion.schedules import UniformSchedule
from gidd.models.importers.checkpoint import ForeignCheckpoint
from gidd.models.importers.dit_family import import_dit
from gidd.models.weights import Pretrained
from gidd.vocab import Vocab

_GPT2_WITH_PAD = Vocab(50258, mask_id=None, pad_id=50257)


def matches(checkpoint: ForeignCheckpoint) -> bool:
    """Whether it is Duo's: from the hub, or trained by its code."""
    return checkpoint.field("model_type") == "duo" or (
        str(checkpoint.field("algo.name")).startswith("duo")
    )


def read(checkpoint: ForeignCheckpoint) -> Pretrained:
    """Read the model, with alpha = 1 - t; sigma stays below the -log 1e-3 of its training."""
    if checkpoint.field("model_type") == "duo":
        checkpoint.require("causal", False)
    else:
        checkpoint.require("algo.causal_attention", False)
        checkpoint.require("noise.type", "log-linear")
    imported = import_dit(checkpoint, "sigma")
    rows = imported.dit.config.vocab_size
    vocab = _GPT2_WITH_PAD if rows == _GPT2_WITH_PAD.size else Vocab(rows)
    return imported.pretrained(UniformSchedule(vocab))
