"""Mistakes of several kinds are added to clean texts and corrected; also by spell checkers.

    OMP_NUM_THREADS=1 python benchmarks/added_mistakes.py texts/*.txt --json
    OMP_NUM_THREADS=1 python benchmarks/added_mistakes.py texts/*.txt --noise typos --rates 0 0.05

All methods get the same text; neither the number nor the kind of mistakes is given. `cut` is the
fraction of wrong words that is gone, `spoiled` the fraction of right words that were made wrong,
each with a bootstrap standard error over passages. Needs the extra `bench`.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from noises import NOISES, NoisyText, add_noise
from rapidfuzz.distance import Levenshtein
from spellcheckers import METHODS, OURS, Corrector, correctors

RESAMPLES = 1000


class WordCounts(NamedTuple):
    """Words of a passage, before and after correction."""

    words: int
    wrong_before: int
    wrong: int
    spoiled: int

    @classmethod
    def of(cls, noisy: NoisyText, corrected: str) -> WordCounts:
        """Compare a clean text, the same with mistakes, and its correction."""
        clean, words = list(noisy.clean_words), corrected.split()
        before = sum(a != b for a, b in zip(clean, noisy.words, strict=True))
        changed = {
            i
            for edit in Levenshtein.opcodes(list(noisy.words), words)
            if edit.tag != "equal"
            for i in range(edit.src_start, edit.src_end)
        }
        spoiled = sum(clean[i] == noisy.words[i] for i in changed)
        return cls(len(clean), before, Levenshtein.distance(clean, words), spoiled)


def passages_of(paths: list[Path], max_characters: int, size: int = 2000) -> list[str]:
    """Return passages of all texts in turn, each from the middle of its text on."""
    texts = [path.read_text(encoding="utf-8").split() for path in paths]
    share = max_characters // max(1, len(texts))
    found: list[str] = []
    for words in texts:
        text = " ".join(words[len(words) // 2 :])[:share]
        found += [text[start : start + size].rsplit(" ", 1)[0] for start in range(0, share, size)]
    return [passage for passage in found if passage]


def measure(
    passages: list[str], kind: str, rate: float, correct: Corrector, seed: int
) -> dict[str, Any]:
    """Return the rates of one kind of mistakes, corrected by one method."""
    start, counts = time.perf_counter(), list[WordCounts]()
    for number, passage in enumerate(passages):
        noisy = add_noise(passage, kind, rate, seed=(seed << 20) + number)
        counts.append(WordCounts.of(noisy, correct(noisy.text)))
    words, before, after, spoiled = np.array(counts, dtype=float).T
    weights = np.random.default_rng(0).multinomial(
        len(counts), np.full(len(counts), 1 / len(counts)), RESAMPLES
    )
    row: dict[str, Any] = {
        "before": before.sum() / words.sum(),
        "after": after.sum() / words.sum(),
        "spoiled": spoiled.sum() / (words - before).sum(),
        "seconds": round(time.perf_counter() - start, 1),
    }
    if before.sum():
        row["cut"] = 1 - after.sum() / before.sum()
        row["cut_se"] = float(np.std(1 - (weights @ after) / np.maximum(weights @ before, 1)))
    return row


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("texts", nargs="+", type=Path)
    parser.add_argument("--noise", nargs="+", default=list(NOISES), choices=list(NOISES))
    parser.add_argument("--rates", nargs="+", type=float, default=[0.0, 0.01, 0.02, 0.05, 0.1])
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--max-characters", type=int, default=20_000)
    parser.add_argument("--model", help="folder of a model; by default the packaged one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print a JSON object at the end")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to try the script")
    options = parser.parse_args()
    if options.quick:
        options.methods, options.rates, options.max_characters = [OURS], [0.0, 0.05], 400
    methods: dict[str, Corrector] = {}
    for name in options.methods:
        methods |= correctors(name, options.model)
    passages, rows = passages_of(options.texts, options.max_characters), list[dict[str, Any]]()
    print("| mistakes | rate | method | wrong before | after | cut | spoiled | seconds |")
    print("|---|---|---|---|---|---|---|---|")
    cases = [("none", 0.0)] if 0 in options.rates else []
    cases += [(kind, rate) for kind in options.noise for rate in options.rates if rate]
    for kind, rate in cases:
        for name, correct in methods.items():
            noise = options.noise[0] if kind == "none" else kind
            row = measure(passages, noise, rate, correct, options.seed)
            rows.append({"noise": kind, "rate": rate, "method": name} | row)
            cut = f"{row['cut']:.1%} ± {row['cut_se']:.1%}" if "cut" in row else ""
            print(
                f"| {kind} | {rate:g} | {name} | {row['before']:.2%} | {row['after']:.2%} | "
                f"{cut} | {row['spoiled']:.2%} | {row['seconds']} |",
                flush=True,
            )
    if options.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
