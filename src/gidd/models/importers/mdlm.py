"""MDLM: masked diffusion. The network is given 0 for the time, or sigma if it was conditioned."""

from __future__ import annotations

from gidd.diffusion.schedules import MaskedSchedule
from gidd.models.importers.checkpoint import MASKING_ALONE, ForeignCheckpoint
from gidd.models.importers.dit_family import import_dit, masked_vocab
from gidd.models.weights import Pretrained


def matches(checkpoint: ForeignCheckpoint) -> bool:
    """Whether it is MDLM's: from the hub, or trained by the code of MDLM, Duo or XDLM."""
    if checkpoint.field("model_type") == "mdlm" or checkpoint.field("algo.name") == "mdlm":
        return True
    return checkpoint.field("diffusion") == "absorbing_state" and not checkpoint.field("forward")


def read(checkpoint: ForeignCheckpoint) -> Pretrained:
    """Read the model, with alpha = 1 - t instead of the authors' 1 - 0.999 t."""
    is_hub = checkpoint.field("model_type") == "mdlm"
    where = "algo." if checkpoint.field("algo") is not None else ""
    if not is_hub:
        checkpoint.require(f"{where}parameterization", "subs")
        checkpoint.require("noise.type", "loglinear", "log-linear")
    conditioned = checkpoint.require(f"{where}time_conditioning", True, False)
    imported = import_dit(checkpoint, "sigma" if conditioned else "zero")
    vocab = masked_vocab(checkpoint, imported.dit.config.vocab_size)
    return imported.pretrained(MaskedSchedule(vocab), MASKING_ALONE)
