"""Sweep steps, temperatures, min-p and correctors; show generative perplexity against entropy.

- Settings marked with * are on the frontier: no other one has a lower generative perplexity at the
  same or a higher entropy.
- With --out NAME.json, the result of each setting is saved in the folder NAME.settings. A setting
  that is there is not measured again: the same command resumes, and more values add settings.
- Values of a sweep are separated by commas or spaces.

Examples:
  gidd eval frontier models/nano --out frontier.json
  gidd eval frontier models/nano --steps 16,64,256 --temperature 0.7,0.9,1.0 --out frontier.json
  gidd eval frontier models/nano --corrector none,self_correction --corrector-steps 32,128
  gidd eval frontier models/nano --min-p none,0.05 --num-samples 256 --grader gpt2-large
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gidd.cli.eval.report import Column, ResultOptions, report, with_error
from gidd.cli.model_options import CheckedCommand, Flat, ModelName, ModelOptions, parse_checked
from gidd.common.config.allowed import SEED, integer, optional
from gidd.common.messages import show_actions
from gidd.errors import ConfigError
from gidd.evaluation.options import FrontierGrid, FrontierSetting, GraderOptions
from gidd.pipeline.options import SamplingOptions, SelfCorrectionOptions, TimestepSpacing


@dataclass(frozen=True, kw_only=True)
class FrontierCommand(CheckedCommand):
    """Options of `gidd eval frontier`."""

    model: ModelName
    grid: Flat[FrontierGrid] = field(default_factory=FrontierGrid)
    num_samples: int = 64
    """Number of samples of each setting."""
    length: int | None = None
    """Length of a sample in tokens; by default the model's context, at most 2048."""
    seed: int = 0
    """Random seed; all settings use the same."""
    sampler: str = "ancestral"
    """Denoising step."""
    timestep_spacing: TimestepSpacing = "even"
    """Spacing of the steps in time."""
    top_k: int | None = None
    """Top-k: sample from the k most likely tokens."""
    top_p: float | None = None
    """Nucleus sampling: sample from the fewest tokens that have this total probability."""
    correction_temperature: float = 0.1
    """Temperature of self_correction."""
    grading: Flat[GraderOptions] = field(default_factory=lambda: GraderOptions(grader="smollm2"))
    result: Flat[ResultOptions] = field(default_factory=ResultOptions)
    runtime: Flat[ModelOptions] = field(default_factory=ModelOptions)

    allowed = {"num_samples": integer(1), "length": optional(integer(1)), "seed": SEED}
    lists = tuple(f"--{name.replace('_', '-')}" for name in FrontierSetting._fields)

    def problems(self) -> Iterable[str]:
        """Yield one message per invalid option, each starting with the name of its field."""
        yield from super().problems()
        yield from self.grid.sampling_problems(self.base)

    @property
    def base(self) -> SamplingOptions:
        """The options that all settings share."""
        return SamplingOptions(
            sampler=self.sampler,
            timestep_spacing=self.timestep_spacing,
            top_k=self.top_k,
            top_p=self.top_p,
            self_correction=SelfCorrectionOptions(
                forward_passes=0, temperature=self.correction_temperature
            ),
        )


_COLUMNS: dict[str, Column] = {
    "": lambda row: "*" if row["on_frontier"] else "",
    "setting": lambda row: row["setting"],
    "gen. PPL": with_error("gen_ppl"),
    "entropy": with_error("entropy", digits=3),
    "self-accuracy": with_error("self_accuracy", percent=True, digits=1),
    "NFE": lambda row: f"{row['nfe']:.1f}",
}


def main(arguments: Sequence[str]) -> None:
    """Parse, sweep, report."""
    options = parse_checked(FrontierCommand, "gidd eval frontier", __doc__, arguments)
    pipe = options.runtime.load(options.model)
    from gidd.evaluation.frontier import evaluate_frontier

    grader = options.grading.load(options.runtime.device)
    if grader is None:
        raise ConfigError("--grader must name a causal language model, e.g. smollm2.")
    out = options.result.out
    with show_actions() as on_progress:
        result = evaluate_frontier(
            pipe,
            options.grid,
            grader=grader,
            num_samples=options.num_samples,
            length=options.length,
            seed=options.seed,
            options=options.base,
            folder=out and out.with_name(f"{out.stem}.settings"),
            on_progress=on_progress,
        )
    report(result, options.result, _COLUMNS)
