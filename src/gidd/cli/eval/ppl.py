"""Measure the likelihood of texts: NELBO, perplexity, bits per token and per byte.

- MODEL is a diffusion model, whose NELBO is estimated, or an autoregressive one (a folder of
  transformers, a GGUF file, a hub name), whose negative log-likelihood is exact. Compare models
  with different tokenizers by bits_per_byte, at equal --length.
- Documents are split into disjoint windows of --length tokens, scored independently. With --stride
  each window is given the LENGTH - STRIDE tokens before it. Every token is scored once.
- A corpus with held-out documents, and a folder of `gidd data prepare`, give their validation
  documents.
- nelbo, ppl and bits have the Monte Carlo error of the estimate for these texts. *_corpus have the
  standard error over documents, or windows of a single one, as a sample of a corpus.
- --nodes, --repeats, --max-se, --max-forward-passes, --grid and --seed set the NELBO estimator.

Examples:
  gidd eval ppl models/nano sotu
  gidd eval ppl models/nano letters/ --by document --out ppl.json
  gidd eval ppl models/nano data/owt --max-documents 1000 --max-se 0.005
  gidd eval ppl models/baseline sotu --length 128 --stride 64
  gidd eval ppl models/nano sotu --grid paper --nodes 128     # as the paper, without the ends
  torchrun --nproc-per-node 8 -m gidd.cli eval ppl models/small data/owt
  gidd eval ppl models/small data/owt --executor ray --ray.num-gpus 1
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from gidd.cli.eval.report import Column, ResultOptions, report
from gidd.cli.model_options import Flat, ModelName, ModelOptions, parse_checked
from gidd.cli.output import CliConsole, plain
from gidd.common.actors import ActorOptions
from gidd.common.config.allowed import unused_problems
from gidd.common.messages import print_message, show_counts
from gidd.data.corpora import check_sources
from gidd.data.manifest import DATA_MANIFEST
from gidd.errors import ConfigError
from gidd.evaluation.options import PerplexityOptions

if TYPE_CHECKING:
    from gidd.diffusion.likelihood import ScoredText
    from gidd.evaluation.results import EvaluationResult
    from gidd.evaluation.window_scores import OnForwardPasses, WindowScores

_TIMEOUT_SECONDS = 86_400.0  # ranks wait for each other at the end of a repeat only


@dataclass(frozen=True, kw_only=True)
class PerplexityCommand:
    """Options of `gidd eval ppl`."""

    model: ModelName
    """Folder written by `gidd export`, a causal language model, or a name on the hub."""
    sources: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE...")]
    """Files, folders, URLs, corpora (`gidd data list`), or folders of `gidd data prepare`."""
    by: Literal["corpus", "document"] = "corpus"
    """Print one line for all documents, or a line per document as well."""
    executor: Literal["local", "ray"] = "local"
    """Score on this machine (under torchrun: on its ranks), or on actors of a Ray cluster."""
    ray: ActorOptions = field(default_factory=ActorOptions)
    """Actors on a Ray cluster, for --executor ray."""
    perplexity: Flat[PerplexityOptions] = field(default_factory=PerplexityOptions)
    result: Flat[ResultOptions] = field(default_factory=ResultOptions)
    runtime: Flat[ModelOptions] = field(default_factory=ModelOptions)

    def problems(self) -> Iterable[str]:
        """Yield one message per option that another one excludes."""
        if self.by == "document" and self.result.json:
            yield "by must be omitted with --json, which has every document."
        if self.executor != "ray":
            yield from unused_problems(self.ray, "ray.", "--executor ray")
        if self.executor == "ray" and self.perplexity.max_se is not None:
            yield "max_se needs --executor local: it stops at an error over all windows."
        if self.executor == "ray" and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            yield "executor must be local under torchrun, whose ranks share the work, got ray."


_COLUMNS: dict[str, Column] = {
    "document": lambda row: row["id"],
    "tokens": lambda row: f"{row['tokens']:,}",
    "bytes": lambda row: f"{row['bytes']:,}",
    "NELBO": lambda row: f"{row['nelbo']:.2f}",
    "±": lambda row: "-" if row["standard_error"] is None else f"{row['standard_error']:.2f}",
    "per token": lambda row: f"{row['nelbo'] / row['tokens']:.4f}",
}


def main(arguments: Sequence[str]) -> None:
    """Parse, score, report; under torchrun all ranks score and rank 0 reports."""
    options = parse_checked(PerplexityCommand, "gidd eval ppl", __doc__, arguments)
    if not options.sources:
        raise ConfigError("SOURCE must be a file, folder, URL or corpus (see `gidd data list`).")
    if texts := [name for name in options.sources if not (Path(name) / DATA_MANIFEST).is_file()]:
        check_sources(texts)
    from gidd.evaluation.perplexity import evaluate_perplexity
    from gidd.evaluation.window_scores import ModelSource, score_on_ray
    from gidd.training.world import open_world

    runtime, is_ray = options.runtime, options.executor == "ray"
    source = ModelSource(options.model, runtime.device, runtime.precision, runtime.tokenizer)
    # on Ray only for its tokenizer and context: the actors compute, in their precision
    local = source._replace(device="cpu", precision=None) if is_ray else source
    with open_world(local.device, _TIMEOUT_SECONDS) as world:
        model = local.load()
        for note in getattr(model, "notes", ()) if world.is_rank_zero else ():
            print_message(note)

        def on_ray(texts: Sequence[ScoredText], done: OnForwardPasses | None) -> WindowScores:
            return score_on_ray(source, texts, options.perplexity, options.ray, done)

        shown = show_counts("scoring windows") if world.is_rank_zero else nullcontext()
        with shown as on_forward_passes:
            result = evaluate_perplexity(
                model,
                options.sources,
                options.perplexity,
                ranks=world,
                score=on_ray if is_ray else None,
                on_forward_passes=on_forward_passes,
            )
        if world.is_rank_zero:
            _report(result, options)


def _report(result: EvaluationResult, options: PerplexityCommand) -> None:
    is_table = not options.result.json
    if is_table and options.by == "document":
        report(result, ResultOptions(), _COLUMNS)
        print()
    report(result, options.result)
    if is_table:
        manifest = result.manifest
        skipped = manifest["skipped_documents"]
        line = (
            f"{manifest['num_documents']:,} documents, {manifest['tokens']:,} tokens, "
            f"{manifest['bytes']:,} bytes; {manifest['num_windows']:,} windows of at most "
            f"{manifest['length']:,} tokens, {manifest['forward_passes']:,} forward passes of a "
            "window" + (f"; {skipped:,} documents without a scored token" if skipped else "")
        )
        CliConsole(highlight=False).print(plain(line), soft_wrap=True)
