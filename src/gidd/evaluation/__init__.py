"""Evaluation: every number with its standard error and the settings that produced it.

Reading order: `results` (numbers, manifest, JSON files), `options`, `texts` (documents by name),
`window_scores` and `perplexity`; `graders`, `samples` and `self_correction`; `harness/`
(tasks of lm_eval); `compare`. The commands are `gidd eval` and `gidd compare`.
"""

from typing import TYPE_CHECKING

from gidd.common.lazy import lazy_exports

if TYPE_CHECKING:
    from gidd.evaluation.graders import load_grader as load_grader
    from gidd.evaluation.harness.tasks import evaluate_tasks as evaluate_tasks
    from gidd.evaluation.perplexity import evaluate_perplexity as evaluate_perplexity
    from gidd.evaluation.results import (
        EvaluationResult as EvaluationResult,
        Measurement as Measurement,
    )
    from gidd.evaluation.samples import (
        evaluate_model_samples as evaluate_model_samples,
        evaluate_samples as evaluate_samples,
    )
    from gidd.evaluation.self_correction import correction_curve as correction_curve

__getattr__, __dir__ = lazy_exports(__name__)
