"""SCDD: MDLM's network, trained with the marginals of the hybrid schedule."""

from __future__ import annotations

from gidd.diffusion.schedules import HybridSchedule
from gidd.errors import CheckpointError, ScheduleError
from gidd.models.importers.checkpoint import ForeignCheckpoint
from gidd.models.importers.dit_family import import_dit, masked_vocab
from gidd.models.weights import Pretrained

_KERNEL = (
    "SCDD's own sampler never masks a visible token. The noise here has the same marginals and "
    "other transitions: samples and bounds are those of the hybrid schedule."
)


def matches(checkpoint: ForeignCheckpoint) -> bool:
    """Whether it was trained by SCDD's code."""
    return checkpoint.field("parameterization") == "scdd"


def read(checkpoint: ForeignCheckpoint) -> Pretrained:
    """Read the model; `forward.ratio` is p_uniform."""
    checkpoint.require("forward.name", "mix")
    checkpoint.require("forward.t_peak", 0.5)
    checkpoint.require("time_conditioning", False)
    ratio, gamma = checkpoint.number("forward.ratio"), checkpoint.number("forward.gamma")
    imported = import_dit(checkpoint, "zero")
    vocab = masked_vocab(checkpoint, imported.dit.config.vocab_size)
    try:
        schedule = HybridSchedule(vocab, ratio, gamma)
    except ScheduleError as error:
        raise CheckpointError(f"{checkpoint.path}: forward: {error}") from error
    return imported.pretrained(schedule, _KERNEL)
