"""Add known errors to held-out text, correct it, and count found, restored and damaged tokens.

- The model must be trained with uniform noise (p_uniform > 0).
- A corpus gives its held-out documents, a prepared folder its validation split.
- Errors: random tokens (what the model is trained on), exchanged neighbours, wrong letters.
- Wrong letters change the tokens, so that kind counts words, the others tokens.
- found and restored are fractions of the wrong tokens, damaged of the right ones, wrong of all.

Examples:
  gidd eval recovery models/nano sotu
  gidd eval recovery models/nano sotu --corruption tokens,swap,letters --rate 0.02,0.05,0.1
  gidd eval recovery models/nano letters/ --error-rate none,0.05 --out recovery.json
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import tyro

from gidd.cli.eval.display import Column, report_rows, show_counts, with_error
from gidd.cli.eval.lists import split_commas
from gidd.cli.eval.report import ResultOptions, parse_evaluation
from gidd.cli.model_options import Flat, ModelName, ModelOptions
from gidd.errors import ConfigError
from gidd.evaluation.correction.correction_settings import RecoveryOptions


@dataclass(frozen=True, kw_only=True)
class RecoveryCommand:
    """Options of `gidd eval recovery`."""

    model: ModelName
    """Folder written by `gidd export`, or the name of a model on the Hugging Face hub."""

    sources: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE...")]
    """Files, folders, URLs, corpora (`gidd data list`), or folders of `gidd data prepare`."""

    recovery: Flat[RecoveryOptions] = field(default_factory=RecoveryOptions)
    result: Flat[ResultOptions] = field(default_factory=ResultOptions)
    runtime: Flat[ModelOptions] = field(default_factory=ModelOptions)

    def problems(self) -> Iterable[str]:
        """Yield one message per invalid option, each starting with the name of its field."""
        return self.recovery.problems()


_LISTS = ("--corruption", "--rate", "--error-rate")

_COLUMNS: dict[str, Column] = {
    "errors": lambda row: row["corruption"],
    "rate": lambda row: f"{row['rate']:g}",
    "error_rate": lambda row: row["setting"],
    "found": with_error("found", percent=True, digits=1),
    "restored": with_error("restored", percent=True, digits=1),
    "damaged": with_error("damaged", percent=True),
    "wrong": lambda row: f"{row['wrong_before']:.1%} -> {row['wrong_after']:.1%}",
    "NFE": lambda row: f"{row['nfe']:.1f}",
}


def main(arguments: Sequence[str]) -> None:
    """Parse, correct, report."""
    arguments = split_commas(arguments, _LISTS)
    options = parse_evaluation(RecoveryCommand, "gidd eval recovery", __doc__, arguments)
    if not options.sources:
        raise ConfigError(
            "SOURCE must be at least one file, folder, URL or corpus, got none. "
            "`gidd data list` shows the corpora."
        )
    pipe = options.runtime.load(options.model)
    from gidd.evaluation.correction.recovery import recovery

    with show_counts("correcting text") as on_texts:
        result = recovery(pipe, options.sources, options.recovery, on_texts)
    report_rows(result, options.result, _COLUMNS)
