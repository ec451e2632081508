"""Loss weightings, one per file. Every test of weightings covers the classes in `WEIGHTINGS`."""

from gidd.diffusion.weighting.base import Weighting
from gidd.diffusion.weighting.clamp import ClampWeighting
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
    "WEIGHTINGS",
    "ClampWeighting",
    "DynamicWeighting",
    "ElboWeighting",
    "TightWeighting",
    "Weighting",
]
