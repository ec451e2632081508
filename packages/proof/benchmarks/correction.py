"""Sentences with mistakes of people and their corrections: mistakes cut and good words spoiled.

    OMP_NUM_THREADS=1 python benchmarks/correction.py FOLDER --json
    OMP_NUM_THREADS=1 python benchmarks/correction.py FOLDER --sets wikipedia-dev --sentences 200
    OMP_NUM_THREADS=1 python benchmarks/correction.py FOLDER --out rows.json --resume
    python benchmarks/correction.py --out benchmarks/correction.json --table

FOLDER has files NAME.tsv with wrong<TAB>right, a sentence per line. For each set and method:

- `cut` = 1 - (wrong words after / wrong words before), words counted by the edit distance between
  lists of words, so that a good word that was spoiled counts against a fixed one;
- `spoiled`: the fraction of good words that were changed beside the mistakes;
- `touched`: the fraction of words that were changed in the right sentences alone.

Errors are bootstrap standard errors over sentences. Spell checkers are called in the ways of
`spellcheckers.py`. `--out` keeps the rows in a file; with `--resume`, methods that it has for a set
are not measured again. `--table` prints the table of the documentation from that file. The
constants of gidd-proof were chosen on wikipedia-dev. The JSON object has all rows, and for
gidd-proof the keys `jfleg_cut`, `bea4660_cut`, `wiki_cut`, `spoiled` and `touched_clean` (the
largest of all sets), `best_rival_cut` by set, and `ms_per_character` of sentences with mistakes, by
CPU time.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rapidfuzz.distance import Levenshtein
from spellcheckers import METHODS, OURS, Corrector, correctors

RESAMPLES = 1000
SETS = ("jfleg", "bea322", "bea4660", "wikipedia-realistic")


class SentenceCounts(NamedTuple):
    """Words of a sentence, before and after correction."""

    good: int
    wrong_before: int
    wrong: int
    spoiled: int
    words: int
    touched: int

    @classmethod
    def of(cls, wrong: str, right: str, corrected: str, clean: str) -> SentenceCounts:
        """Compare a sentence, its right version, and the corrections of both."""
        found, target, new = wrong.split(), right.split(), corrected.split()
        good = {
            i
            for same in Levenshtein.opcodes(found, target)
            if same.tag == "equal"
            for i in range(same.src_start, same.src_end)
        }
        changed = {
            i
            for edit in Levenshtein.opcodes(found, new)
            if edit.tag in ("replace", "delete")
            for i in range(edit.src_start, edit.src_end)
        }
        return cls(
            len(good),
            Levenshtein.distance(found, target),
            Levenshtein.distance(new, target),
            len(good & changed),
            len(target),
            Levenshtein.distance(target, clean.split()),
        )


def read_set(path: Path, sentences: int | None) -> list[tuple[str, str]]:
    """Return the first pairs (wrong, right) of a file."""
    lines = path.read_text(encoding="utf-8").splitlines()[:sentences]
    pairs = [line.split("\t") for line in lines]
    return [(wrong, right) for wrong, right in pairs if wrong.strip()]


def measure(pairs: list[tuple[str, str]], correct: Corrector) -> dict[str, Any]:
    """Return the figures of one method on one set."""
    start = time.process_time()
    corrected = [correct(wrong) for wrong, _ in pairs]
    seconds = time.process_time() - start
    counts = np.array(
        [
            SentenceCounts.of(wrong, right, new, correct(right))
            for (wrong, right), new in zip(pairs, corrected, strict=True)
        ],
        dtype=float,
    )
    draws = np.random.default_rng(0).multinomial(
        len(pairs), np.full(len(pairs), 1 / len(pairs)), RESAMPLES
    )
    sums = np.concatenate([counts.sum(0)[None], draws @ counts])
    good, before, after, spoiled, words, touched = sums.T
    rates = {
        "cut": 1 - after / np.maximum(before, 1),
        "spoiled": spoiled / np.maximum(good, 1),
        "touched": touched / np.maximum(words, 1),
    }
    row: dict[str, Any] = {name: float(rate[0]) for name, rate in rates.items()}
    row |= {f"{name}_se": float(rate[1:].std()) for name, rate in rates.items()}
    characters = sum(len(wrong) for wrong, _ in pairs)
    return row | {"ms_per_character": 1e3 * seconds / characters, "sentences": len(pairs)}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of gidd-proof by name."""
    ours = {row["set"]: row for row in rows if row["method"] == OURS}
    others = [row for row in rows if row["method"] != OURS]
    named = {"jfleg": "jfleg_cut", "bea4660": "bea4660_cut", "wikipedia-realistic": "wiki_cut"}
    return {
        **{key: ours[name]["cut"] for name, key in named.items() if name in ours},
        "spoiled": max((row["spoiled"] for row in ours.values()), default=None),
        "touched_clean": max((row["touched"] for row in ours.values()), default=None),
        "best_rival_cut": {
            name: max((row["cut"] for row in others if row["set"] == name), default=None)
            for name in dict.fromkeys(row["set"] for row in rows)
        },
        "ms_per_character": max((row["ms_per_character"] for row in ours.values()), default=None),
        "rows": rows,
    }


def cells(row: dict[str, Any]) -> list[str]:
    """Return the rates of a row in percent, with their errors."""
    return [
        f"{row[key]:.{digits}%} ± {row[f'{key}_se']:.{digits}%}"
        for key, digits in (("cut", 1), ("spoiled", 2), ("touched", 2))
    ]


def table(rows: Iterable[dict[str, Any]]) -> str:
    """Return a Markdown table with a column per set: cut (spoiled / touched)."""
    by_method: dict[str, dict[str, str]] = {}
    for row in rows:
        cut, *others = cells(row)
        shown = f"{cut} ({' / '.join(other.partition(' ±')[0] for other in others)})"
        by_method.setdefault(row["method"], {})[row["set"]] = shown
    sets = list(dict.fromkeys(name for found in by_method.values() for name in found))
    lines = [["", *sets], ["---"] * (len(sets) + 1)]
    lines += [[method, *map(found.get, sets)] for method, found in by_method.items()]
    return "".join(f"| {' | '.join(str(cell or '') for cell in line)} |\n" for line in lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", help="folder of the sets")
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--sentences", type=int, help="the first N of each set; by default all")
    parser.add_argument("--model", help="folder of a model; by default the packaged one")
    parser.add_argument("--json", action="store_true", help="print a JSON object at the end")
    parser.add_argument("--out", type=Path, help="JSON file that keeps the rows")
    parser.add_argument("--resume", action="store_true", help="keep the rows that --out has")
    parser.add_argument("--table", action="store_true", help="print the rows that --out has")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to try the script")
    options = parser.parse_args()
    if options.quick:
        options.methods, options.sentences = [OURS], 4
    out: Path | None = options.out
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    if out is not None and out.is_file():
        saved = json.loads(out.read_text(encoding="utf-8"))["rows"]
        rows = {(row["set"], row["method"]): row for row in saved}
    if options.table:
        print(table(rows.values()), end="")
        return
    if options.folder is None:
        parser.error("give the folder of the sets")
    print("| set | method | cut | spoiled | touched | ms per character |")
    print("|---|---|---|---|---|---|")
    for chosen in options.methods:
        for method, correct in correctors(chosen, options.model).items():
            for name in options.sets:
                if options.resume and (name, method) in rows:
                    continue
                pairs = read_set(options.folder / f"{name}.tsv", options.sentences)
                row = {"set": name, "method": method} | measure(pairs, correct)
                rows[name, method] = row
                shown = [name, method, *cells(row), f"{row['ms_per_character']:.3f}"]
                print(f"| {' | '.join(shown)} |", flush=True)
                if out is not None:
                    text = json.dumps(summary(list(rows.values())), indent=1)
                    out.write_text(text + "\n", encoding="utf-8")
    if options.json:
        print(json.dumps(summary(list(rows.values()))))


if __name__ == "__main__":
    main()
