"""How often proposed changes are right, by their confidence.

    OMP_NUM_THREADS=1 python benchmarks/reliability.py FOLDER --first 1000 --sentences 300

FOLDER has NAME.tsv with wrong<TAB>right, a sentence per line (`--set`, by default wikipedia-dev). A
proposal is the most likely other text of a doubtful place; it is right if it alone brings the
sentence nearer to the right one, counted in words. The set writes many misspelt names in lower
case: the last column does not compare capitals.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path

import gidd_proof
from correction import read_set
from rapidfuzz.distance import Levenshtein

NUM_BINS = 10


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--set", default="wikipedia-dev")
    parser.add_argument("--first", type=int, default=0, help="sentences that are left out")
    parser.add_argument("--sentences", type=int, default=300)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to try the script")
    options = parser.parse_args()
    if options.quick:
        options.first, options.sentences = 0, 4
    end = options.first + options.sentences
    pairs = read_set(options.folder / f"{options.set}.tsv", end)[options.first :]
    proofreader = gidd_proof.load(device="cpu")
    proposals: defaultdict[int, list[tuple[float, bool, bool]]] = defaultdict(list)
    for wrong, right in pairs:
        for edit in proofreader.correct(wrong).edits:
            others = [a for a in edit.alternatives if a.text != edit.old]
            best = max(others, key=lambda a: a.probability)
            new = wrong[: edit.start] + best.text + wrong[edit.stop :]
            number = min(int(NUM_BINS * best.probability), NUM_BINS - 1)
            is_right = is_nearer(new, wrong, right)
            is_right_word = is_nearer(new.lower(), wrong.lower(), right.lower())
            proposals[number].append((best.probability, is_right, is_right_word))
    print("| confidence | proposals | mean confidence | right | right but for capitals |")
    print("|---|---|---|---|---|")
    for number, found in sorted(proposals.items()):
        means = " | ".join(f"{sum(column) / len(found):.2f}" for column in zip(*found, strict=True))
        bounds = f"{number / NUM_BINS:.1f} to {(number + 1) / NUM_BINS:.1f}"
        print(f"| {bounds} | {len(found)} | {means} |")


def is_nearer(new: str, old: str, right: str) -> bool:
    """Whether a text has fewer wrong words than another."""
    target = right.split()
    return Levenshtein.distance(new.split(), target) < Levenshtein.distance(old.split(), target)


if __name__ == "__main__":
    main()
