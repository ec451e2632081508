"""Loss weightings, one file each. A class listed here is covered by every weighting test."""

from gidd.diffusion.weighting.base import Weighting
from gidd.diffusion.weighting.clamp import PAPER_CEILING, ClampWeighting
from gidd.diffusion.weighting.dynamic import DynamicWeighting
from gidd.diffusion.weighting.elbo import ElboWeighting
from gidd.diffusion.weighting.tight import TightWeighting

WEIGHTINGS: tuple[type[Weighting], ...] = (
    ElboWeighting,
    ClampWeighting,
    DynamicWeighting,
    TightWeighting,
)

__all__ = [
    "PAPER_CEILING",
    "WEIGHTINGS",
    "ClampWeighting",
    "DynamicWeighting",
    "ElboWeighting",
    "TightWeighting",
    "Weighting",
]
