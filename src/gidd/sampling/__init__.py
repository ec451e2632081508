"""Sampling, infilling and self-correction.

Reading order: `network` and `prediction` (x_theta where it is needed), `canvas` (the state),
`steps/` and `correctors/` (what changes it), `plan` (what comes when), `request` and `template`
(what a caller wants), `engine` (the loop), `trace` (what happened).
"""

from gidd.sampling.canvas import BestState, Canvas, StepOutput
from gidd.sampling.correctors import CORRECTORS, gain, gibbs_sweep, likelihood, self_correction
from gidd.sampling.engine import Engine, OnStep, StepEvent
from gidd.sampling.network import CachedFeatures, DenoisingNetwork, FunctionNetwork
from gidd.sampling.plan import Plan, PlannedStep, Step, corrector_plan, sampling_plan
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
from gidd.sampling.template import parse_template
from gidd.sampling.trace import Edit, EditLog, Frame, Record

__all__ = [
    "CORRECTORS",
    "STEPS",
    "BestState",
    "Canvas",
    "StepOutput",
    "CutOff",
    "Edit",
    "EditLog",
    "Engine",
    "Frame",
    "FunctionNetwork",
    "MinP",
    "PlannedStep",
    "DenoisingNetwork",
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
    "StepEvent",
    "CachedFeatures",
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
    "parse_template",
    "prompt",
    "self_correction",
    "corrector_plan",
    "threshold",
    "sampling_plan",
]
