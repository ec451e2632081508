"""The part of a manifest that identifies a model and how it is run."""

from __future__ import annotations

from typing import Any

import torch

import gidd
from gidd.pipeline import Pipeline
from gidd.pipeline.results import describe_schedule


def describe_pipeline(pipe: Pipeline) -> dict[str, Any]:
    """Return versions, model, tokenizer, noise and precision as plain data."""
    return {
        "gidd": gidd.__version__,
        "torch": str(torch.__version__),
        "model": pipe.source,
        "notes": list(pipe.notes),
        "tokenizer": pipe.tokenizer.fingerprint,
        "schedule": describe_schedule(pipe.schedule),
        "device": str(pipe.device),
        "precision": pipe.precision,
        "rows_per_call": pipe.engine.rows_per_call,
    }
