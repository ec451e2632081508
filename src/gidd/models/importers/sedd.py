"""SEDD with absorbing noise: the network is given sigma and returns the logarithm of a score.

At masks the score is x_theta times a constant, so x_theta is the softmax without the mask.
"""

from __future__ import annotations

from gidd.diffusion.schedules import MaskedSchedule
from gidd.models.importers.checkpoint import MASKING_ALONE, ForeignCheckpoint
from gidd.models.importers.dit_family import import_dit
from gidd.models.weights import Pretrained
from gidd.vocab import Vocab

_NORMALISED = (
    "The score is normalised to a distribution over tokens; SEDD's own sampler does not "
    "normalise it."
)


def matches(checkpoint: ForeignCheckpoint) -> bool:
    """Whether it is SEDD's; its configuration has no `model_type`."""
    return checkpoint.field("graph.type") is not None and checkpoint.field("tokens") is not None


def read(checkpoint: ForeignCheckpoint) -> Pretrained:
    """Read the model; the mask is the id after the tokens."""
    checkpoint.require("graph.type", "absorb")
    checkpoint.require("noise.type", "loglinear")
    imported = import_dit(checkpoint, "sigma")
    tokens = imported.dit.config.vocab_size - 1
    checkpoint.require_sizes({"tokens": tokens})
    vocab = Vocab(tokens + 1, mask_id=tokens)
    return imported.pretrained(MaskedSchedule(vocab), MASKING_ALONE, _NORMALISED)
