"""Noise schedules. No module imports torch until one is built: help texts list them without it."""

from typing import TYPE_CHECKING

from gidd.common.lazy import lazy_exports

if TYPE_CHECKING:
    from gidd.diffusion.schedule import MixingSchedule as MixingSchedule
    from gidd.diffusion.schedules.curves import (
        ConstantMixing as ConstantMixing,
        Cosine as Cosine,
        Curve as Curve,
        FunctionCurve as FunctionCurve,
        Linear as Linear,
        MaskedSchedule as MaskedSchedule,
        Polynomial as Polynomial,
        UniformSchedule as UniformSchedule,
        mask_noise as mask_noise,
        uniform_noise as uniform_noise,
    )
    from gidd.diffusion.schedules.hybrid import (
        FirstReleaseSchedule as FirstReleaseSchedule,
        HybridSchedule as HybridSchedule,
    )
    from gidd.diffusion.schedules.mixture import (
        FunctionalSchedule as FunctionalSchedule,
        FunctionAmount as FunctionAmount,
        LinearAmount as LinearAmount,
        MixtureComponent as MixtureComponent,
        MixtureSchedule as MixtureSchedule,
        NoiseAmount as NoiseAmount,
        PeakedAmount as PeakedAmount,
    )

COMPONENTS: dict[str, str] = {
    "masked": "MaskedSchedule",
    "uniform": "UniformSchedule",
    "hybrid": "HybridSchedule",
    "mixture": "MixtureSchedule",
    "first_release": "FirstReleaseSchedule",
}
"""Class of each schedule by its name. `FunctionalSchedule` has none: functions cannot be saved."""
CURVES: dict[str, str] = {"linear": "Linear", "cosine": "Cosine", "polynomial": "Polynomial"}
"""Class of each mixing rate by its name."""
AMOUNTS: dict[str, str] = {"ramp": "LinearAmount", "bump": "PeakedAmount"}
"""Class of each amount of a mixture by its name."""
__getattr__, __dir__ = lazy_exports(__name__)
