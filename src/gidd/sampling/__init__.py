"""Sampling, infilling and self-correction.

Reading order: `network` and `prediction` (x_theta where it is needed), `canvas` (the state),
`steps/` and `correctors/` (what changes it), `plan` (what comes when), `request` and `template`
(what a caller wants), `engine` (the loop), `trace` (what happened).
"""

from gidd.sampling.canvas import Best, Canvas, Change
from gidd.sampling.correctors import CORRECTORS, gain, gibbs_sweep, likelihood, self_correction
from gidd.sampling.engine import Engine, OnStep, Tick
from gidd.sampling.network import Known, Network, TimeFree
from gidd.sampling.plan import Move, Plan, Step, stay, walk
from gidd.sampling.prediction import Observation, Prediction
from gidd.sampling.processors import (
    CutOff,
    MinP,
    Processor,
    Require,
    Temperature,
    TopK,
    TopP,
    ban,
)
from gidd.sampling.request import Request, Sample, Tokens, blanks, prompt
from gidd.sampling.steps import (
    STEPS,
    ancestral,
    ancestral_reference,
    confidence,
    gibbs,
    greedy,
    threshold,
)
from gidd.sampling.template import parse
from gidd.sampling.trace import Edit, EditLog, Frame, Record

__all__ = [
    "CORRECTORS",
    "STEPS",
    "Best",
    "Canvas",
    "Change",
    "CutOff",
    "Edit",
    "EditLog",
    "Engine",
    "Frame",
    "Known",
    "MinP",
    "Move",
    "Network",
    "Observation",
    "OnStep",
    "Plan",
    "Prediction",
    "Processor",
    "Record",
    "Request",
    "Require",
    "Sample",
    "Step",
    "Temperature",
    "Tick",
    "TimeFree",
    "Tokens",
    "TopK",
    "TopP",
    "ancestral",
    "ancestral_reference",
    "ban",
    "blanks",
    "confidence",
    "gain",
    "gibbs",
    "gibbs_sweep",
    "greedy",
    "likelihood",
    "parse",
    "prompt",
    "self_correction",
    "stay",
    "threshold",
    "walk",
]
