"""Evaluation: every number with its standard error and the settings that produced it.

Reading order: `results` (numbers, manifest, JSON files), then one module per measurement. The
commands are `gidd eval NAME` and `gidd compare`. Names are imported on first use.
"""

from typing import TYPE_CHECKING

from gidd.common.lazy import lazy_exports

if TYPE_CHECKING:
    from gidd.evaluation.results import (
        EvaluationResult as EvaluationResult,
        Measurement as Measurement,
    )

__getattr__, __dir__ = lazy_exports(__name__)
