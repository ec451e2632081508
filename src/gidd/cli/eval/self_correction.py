"""Correct a model's own samples, and measure quality and diversity against changed tokens.

- Samples are corrected by Algorithm 1 of the paper (App. C) at each temperature.
- They are measured before (0) and after each number of forward passes.
- Generative perplexity needs a grader, a causal language model; it is omitted without one.
- A model trained with masking alone is not able to correct itself (Sec. 5.4); it can be measured.

Examples:
  gidd eval self-correction models/nano --grader smollm2
  gidd eval self-correction models/nano --temperatures 0.1,0.5 --forward-passes 8,32,128
  gidd eval self-correction models/nano --steps 64 --grader gpt2-large --out self-correction.json
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gidd.cli.eval.report import Column, ResultOptions, report, with_error
from gidd.cli.model_options import Flat, ModelName, ModelOptions, parse_checked
from gidd.common.messages import show_counts
from gidd.evaluation.options import CurveOptions, GraderOptions
from gidd.pipeline.options import SamplingOptions


@dataclass(frozen=True, kw_only=True)
class CurveCommand:
    """Options of `gidd eval self-correction`."""

    model: ModelName
    curve: Flat[CurveOptions] = field(default_factory=CurveOptions)
    sampling: Flat[SamplingOptions] = field(default_factory=SamplingOptions)
    grading: Flat[GraderOptions] = field(default_factory=GraderOptions)
    result: Flat[ResultOptions] = field(default_factory=ResultOptions)
    runtime: Flat[ModelOptions] = field(default_factory=ModelOptions)

    def problems(self) -> Iterable[str]:
        """Yield one message per option of the samples that the curve sets."""
        yield from self.curve.sampling_problems(self.sampling)


_COLUMNS: dict[str, Column] = {
    "temperature": lambda row: f"{row['temperature']:g}",
    "forward_passes": lambda row: f"{row['forward_passes']}",
    "changed": with_error("changed_tokens", percent=True, digits=1),
    "gen. PPL": with_error("gen_ppl", digits=1),
    "entropy": with_error("entropy", digits=3),
    "self-accuracy": with_error("self_accuracy", percent=True, digits=1),
    "NFE": lambda row: f"{row['nfe']:.1f}",
}


def main(arguments: Sequence[str]) -> None:
    """Parse, sample, correct, report."""
    lists = "--temperatures", "--forward-passes"
    options = parse_checked(
        CurveCommand, "gidd eval self-correction", __doc__, arguments, lists=lists
    )
    pipe = options.runtime.load(options.model)
    from gidd.evaluation.self_correction import correction_curve

    grader = options.grading.load(options.runtime.device)
    with show_counts("correcting samples") as on_samples:
        result = correction_curve(pipe, options.curve, options.sampling, grader, on_samples)
    report(result, options.result, _COLUMNS)
