"""A trained model as a tool: generate, infill, correct and score text.

    pipe = gidd.from_pretrained("models/nano")
    pipe.generate(4, prompt="My fellow citizens", steps=64)
    pipe.infill("The capital of [MASK:3] is Paris.")
    pipe.correct("We is a nation of law.")
    pipe.score("We are a nation of laws.")

Reading order: `options`, `token_texts` (tokens and text), `windows` (long texts), `results`,
`pipeline`, `load`; `likelihood` is the estimate behind `score`.
"""

from gidd.pipeline.load import from_pretrained
from gidd.pipeline.options import CorrectionOptions, SamplingOptions
from gidd.pipeline.pipeline import Pipeline
from gidd.pipeline.results import Correction, Generation, Replacement, ResultManifest, Scores, Trace

__all__ = [
    "Correction",
    "CorrectionOptions",
    "Generation",
    "ResultManifest",
    "Pipeline",
    "Replacement",
    "SamplingOptions",
    "Scores",
    "Trace",
    "from_pretrained",
]
