"""Loss weightings, one per file. Every test of weightings covers the classes that `PARTS` names.

The exports are imported on first use, and no module of this package imports torch until a weighting
is called: help texts list the weightings and their options without it.
"""

from typing import TYPE_CHECKING

from gidd.common.lazy import lazy_exports

if TYPE_CHECKING:
    from gidd.diffusion.weighting.base import Weighting as Weighting
    from gidd.diffusion.weighting.clamp import ClampWeighting as ClampWeighting
    from gidd.diffusion.weighting.dynamic import DynamicWeighting as DynamicWeighting
    from gidd.diffusion.weighting.elbo import ElboWeighting as ElboWeighting
    from gidd.diffusion.weighting.tight import TightWeighting as TightWeighting

PARTS: dict[str, str] = {
    "elbo": "ElboWeighting",
    "clamp": "ClampWeighting",
    "dynamic": "DynamicWeighting",
    "tight": "TightWeighting",
}
"""Class of each weighting by its name."""

__getattr__, __dir__ = lazy_exports(__name__)
