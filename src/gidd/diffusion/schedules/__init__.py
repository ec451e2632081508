"""Noise schedules, one per file. Every test of schedules covers the classes in `SCHEDULES`."""

from gidd.diffusion.schedule import MixingSchedule
from gidd.diffusion.schedules.amounts import Amount, Bump, FunctionAmount, Ramp
from gidd.diffusion.schedules.curves import Cosine, Curve, FunctionCurve, Linear, Polynomial
from gidd.diffusion.schedules.distributions import mask_noise, uniform_noise
from gidd.diffusion.schedules.first_release import FirstReleaseSchedule
from gidd.diffusion.schedules.functional import FunctionalSchedule
from gidd.diffusion.schedules.hybrid import HybridSchedule
from gidd.diffusion.schedules.masked import MaskedSchedule
from gidd.diffusion.schedules.mixture import Component, MixtureSchedule
from gidd.diffusion.schedules.uniform import UniformSchedule

SCHEDULES: tuple[type[MixingSchedule], ...] = (
    MaskedSchedule,
    UniformSchedule,
    HybridSchedule,
    MixtureSchedule,
    FunctionalSchedule,
    FirstReleaseSchedule,
)

__all__ = [
    "SCHEDULES",
    "Amount",
    "Bump",
    "Component",
    "Cosine",
    "Curve",
    "FirstReleaseSchedule",
    "FunctionAmount",
    "FunctionCurve",
    "FunctionalSchedule",
    "HybridSchedule",
    "Linear",
    "MaskedSchedule",
    "MixtureSchedule",
    "Polynomial",
    "Ramp",
    "UniformSchedule",
    "mask_noise",
    "uniform_noise",
]
