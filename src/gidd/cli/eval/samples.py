"""Measure samples: generative perplexity, entropy, self-accuracy, distinct n-grams, repetition.

- SOURCE is a model, which generates the samples, or samples of any system: JSON lines with `text`
  (and `tokens`, as `gidd sample --jsonl` prints them), a .txt file, or a folder of .txt files.
- Generative perplexity needs a grader, a causal language model; it is omitted without one. A low
  one can also mean repetitive samples (App. G): compare at equal entropy.
- Entropy and n-grams are computed from the sampled tokens. Texts without tokens are encoded by
  --tokenizer, or by the grader's tokenizer.

Examples:
  gidd eval samples models/nano --grader smollm2
  gidd eval samples models/nano --num-samples 256 --steps 64 --temperature 0.9 --out samples.json
  gidd eval samples samples.jsonl --grader google/gemma-2-9b --grader-precision bf16
  gidd eval samples models/nano --metric repetition --metric.n 3
  gidd eval samples texts/ --grader smollm2 --tokenizer gpt2 --reference held-out.jsonl
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro

from gidd.cli.eval.report import ResultOptions, report
from gidd.cli.model_options import Flat, ModelOptions, parse_checked
from gidd.common.config.allowed import SEED, integer, unused_problems
from gidd.common.config.components import Component, component
from gidd.common.messages import print_message, show_actions
from gidd.evaluation.options import GraderOptions
from gidd.evaluation.sample_files import has_samples, read_text_samples
from gidd.pipeline.options import SamplingOptions

_NUM_SAMPLES = 64


@dataclass(frozen=True, kw_only=True)
class SamplesCommand:
    """Options of `gidd eval samples`."""

    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")]
    """Model (folder or hub name), or samples (.jsonl, .txt, or a folder of .txt files)."""
    num_samples: Annotated[int, integer(1)] | None = None
    """Number of samples; by default 64 of a model, and all of a file."""
    length: Annotated[int, integer(1)] | None = None
    """Length of a sample in tokens; by default the model's context, at most 2048."""
    seed: Annotated[int, SEED] = 0
    """Random seed; the same seed gives the same samples."""
    reference: Path | None = None
    """Human texts (.jsonl, .txt or a folder): measure MAUVE with features of the grader."""
    metric: str | None = None
    """One more number of each sample, by name; --metric.OPTION sets its options."""
    metric_options: tyro.conf.Suppress[tyro.conf.Fixed[Any]] = None
    """Options of the metric, by name."""
    grading: Flat[GraderOptions] = field(default_factory=GraderOptions)
    sampling: Flat[SamplingOptions] = field(default_factory=SamplingOptions)
    result: Flat[ResultOptions] = field(default_factory=ResultOptions)
    runtime: Flat[ModelOptions] = field(default_factory=ModelOptions)

    @property
    def chosen_metric(self) -> Component | None:
        """The metric with its options."""
        if self.metric is None:
            return None
        return component("metric", self.metric, **(self.metric_options or {}))

    @property
    def sampled_model(self) -> str | None:
        """Name of the model that is sampled; None if the source is samples."""
        return None if has_samples(Path(self.source)) else self.source

    def problems(self) -> Iterable[str]:
        """Yield one message per option that needs another one, and per option of the metric."""
        if self.reference is not None and self.grading.grader is None:
            yield "reference needs --grader, whose features MAUVE compares."
        if has_samples(Path(self.source)):
            yield from unused_problems(
                self.sampling, "", "a model as SOURCE, not samples of a file"
            )
            for name in ("length", "seed"):
                if getattr(self, name) != getattr(SamplesCommand, name):
                    yield f"{name} needs a model as SOURCE, not samples of a file."
        if (metric := self.chosen_metric) is not None:
            yield from (f"metric.{problem}" for problem in metric.problems())


def main(arguments: Sequence[str]) -> None:
    """Parse, generate or read samples, measure, report."""
    options = parse_checked(SamplesCommand, "gidd eval samples", __doc__, arguments)
    reference = [] if options.reference is None else read_text_samples(options.reference)
    path, texts = Path(options.source), [sample.text for sample in reference]
    if not has_samples(path):
        pipe = options.runtime.load(options.source)
        from gidd.evaluation.samples import evaluate_model_samples

        measure = partial(
            evaluate_model_samples,
            pipe,
            options.num_samples or _NUM_SAMPLES,
            length=options.length,
            seed=options.seed,
            options=options.sampling,
        )
    else:
        samples, name = read_text_samples(path)[: options.num_samples], options.runtime.tokenizer
        from gidd.data.tokenizers import Tokenizer
        from gidd.evaluation.samples import evaluate_samples

        tokenizer = None if name is None else Tokenizer.load(name)
        manifest = {"source": options.source}
        measure = partial(evaluate_samples, samples, tokenizer=tokenizer, manifest=manifest)
    metric = options.chosen_metric
    grader = options.grading.load(options.runtime.device)
    if grader is None:
        print_message("generative perplexity is omitted: it needs --grader, e.g. smollm2.")
    with show_actions() as on_progress:
        result = measure(grader=grader, reference=texts, metric=metric, on_progress=on_progress)
    report(result, options.result)
