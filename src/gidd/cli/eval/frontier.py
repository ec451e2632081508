"""Sweep steps, temperatures, min-p and correctors; show generative perplexity against entropy.

- Settings marked with * are on the frontier: no other one has a lower generative perplexity at the
  same or a higher entropy.
- With --out, the file is written after every setting. The same command continues an interrupted
  sweep, and one with more values adds settings; finished ones are not measured again.
- Values of a sweep are separated by commas or spaces.

Examples:
  gidd eval frontier models/nano --out frontier.json
  gidd eval frontier models/nano --steps 16,64,256 --temperature 0.7,0.9,1.0 --out frontier.json
  gidd eval frontier models/nano --corrector none,self_correction --corrector-calls 32,128
  gidd eval frontier models/nano --min-p none,0.05 --num-samples 256 --grader gpt2-large
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from gidd.cli.eval.display import Column, report_rows, show_actions, with_error
from gidd.cli.eval.grader_options import GraderOptions
from gidd.cli.eval.report import ResultOptions, parse_evaluation
from gidd.cli.model_options import Flat, ModelName, ModelOptions
from gidd.common.allowed import SEED, field_problems, integer, optional
from gidd.common.terminal import shorten
from gidd.errors import ConfigError
from gidd.evaluation.samples.frontier_settings import NO_CORRECTOR, FrontierGrid, FrontierSetting
from gidd.pipeline.options import CorrectionOptions, MeshName, SamplingOptions

if TYPE_CHECKING:
    from gidd.evaluation.samples.sample_generation import OnProgress

_Values = Annotated[tuple[str, ...], tyro.conf.arg(metavar="VALUE,...")]
_GRID: Mapping[str, Callable[[str], Any]] = {
    "steps": int,
    "temperature": float,
    "min_p": lambda word: None if word == "none" else float(word),
    "corrector": str,
    "corrector_calls": int,
}
"""Options of a sweep, and how one of their values is read."""


@dataclass(frozen=True, kw_only=True)
class FrontierCommand:
    """Options of `gidd eval frontier`."""

    model: ModelName
    """Folder written by `gidd export`, or the name of a model on the Hugging Face hub."""

    steps: _Values = ("16", "64")
    """Numbers of denoising steps."""

    temperature: _Values = ("0.7", "0.9", "1.0")
    """Softmax temperatures."""

    min_p: _Values = ("none",)
    """Min-p cut-offs; none keeps all tokens."""

    corrector: _Values = (NO_CORRECTOR,)
    """Correctors of the finished sample: none, self_correction (App. C), gibbs, gibbs_sweep."""

    corrector_calls: _Values = ("32",)
    """Forward passes of the correctors."""

    num_samples: int = 64
    """Number of samples of each setting."""

    length: Annotated[int | None, tyro.conf.DisallowNone] = None
    """Length of a sample in tokens; by default the model's context, at most 2048."""

    seed: int = 0
    """Random seed; all settings use the same."""

    sampler: str = "ancestral"
    """Denoising step."""

    mesh: MeshName = "even"
    """Spacing of the steps in time."""

    top_k: Annotated[int | None, tyro.conf.DisallowNone] = None
    """Top-k: sample from the k most likely tokens."""

    top_p: Annotated[float | None, tyro.conf.DisallowNone] = None
    """Nucleus sampling: sample from the fewest tokens that have this total probability."""

    correction_temperature: float = 0.1
    """Temperature of self_correction."""

    grading: Flat[GraderOptions] = field(default_factory=lambda: GraderOptions(grader="smollm2"))
    result: Flat[ResultOptions] = field(default_factory=ResultOptions)
    runtime: Flat[ModelOptions] = field(default_factory=ModelOptions)

    def problems(self) -> Iterable[str]:
        """Yield one message per invalid option, each starting with the name of its field."""
        length = optional(integer(1))
        yield from field_problems(self, num_samples=integer(1), length=length, seed=SEED)
        yield from self.grading.problems()
        found = list(self._unreadable())
        yield from found
        if not found:
            yield from self.grid().problems(self.base())

    def grid(self) -> FrontierGrid:
        """Return the values to combine."""
        return FrontierGrid(
            **{name: tuple(map(read, self._words(name))) for name, read in _GRID.items()}
        )

    def base(self) -> SamplingOptions:
        """Return the options that all settings share."""
        return SamplingOptions(
            sampler=self.sampler,
            mesh=self.mesh,
            top_k=self.top_k,
            top_p=self.top_p,
            correction=CorrectionOptions(calls=0, temperature=self.correction_temperature),
        )

    def _words(self, name: str) -> list[str]:
        words: tuple[str, ...] = getattr(self, name)
        return [part for word in words for part in word.split(",") if part]

    def _unreadable(self) -> Iterable[str]:
        for name, read in _GRID.items():
            for word in self._words(name):
                try:
                    read(word)
                except ValueError:
                    kind = "integers" if read is int else "numbers"
                    yield f"{name} must be {kind} separated by commas, got {shorten(word)}."


_COLUMNS: dict[str, Column] = {
    "": lambda row: "*" if row["on_frontier"] else "",
    "setting": lambda row: str(FrontierSetting.of_row(row)),
    "gen. PPL": with_error("gen_ppl"),
    "entropy": with_error("entropy", digits=3),
    "self-accuracy": with_error("self_accuracy", percent=True, digits=1),
    "NFE": lambda row: f"{row['nfe']:.1f}",
}


def main(arguments: Sequence[str]) -> None:
    """Parse, sweep, report."""
    options = parse_evaluation(FrontierCommand, "gidd eval frontier", __doc__, arguments)
    pipe = options.runtime.load(options.model)
    from gidd.evaluation.samples.frontier import evaluate_frontier

    grader = options.grading.load(options.runtime.device)
    if grader is None:
        raise ConfigError("--grader must name a causal language model, e.g. smollm2.")
    with show_actions() as draw:
        result = evaluate_frontier(
            pipe,
            options.grid(),
            grader=grader,
            num_samples=options.num_samples,
            length=options.length,
            seed=options.seed,
            options=options.base(),
            out=options.result.out,
            on_setting=None if draw is None else partial(_labelled, draw),
        )
    report_rows(result, options.result, _COLUMNS)


def _labelled(draw: OnProgress, setting: FrontierSetting, number: int, count: int) -> OnProgress:
    """Return a callback that draws the progress of one setting after its name."""
    label = f"{number + 1} of {count}: {setting}"
    return lambda action, done, total: draw(f"{label}, {action}", done, total)
