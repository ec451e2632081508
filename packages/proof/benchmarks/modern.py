"""Six short modern documents, clean and with 15 mistakes each: words fixed, missed and spoiled.

    OMP_NUM_THREADS=1 python benchmarks/modern.py
    OMP_NUM_THREADS=1 python benchmarks/modern.py --min-confidence 0

The mistakes of the essay are real words in the wrong place. `beside` counts good words that were
changed beside mistakes, `spoiled` words that were changed in the clean document.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path

import gidd_proof
from gidd_proof.demo import count_words

FOLDER = Path(__file__).parents[1] / "tests" / "modern"


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--min-confidence", type=float, default=0.4)
    parser.add_argument("--model", help="folder of a model; by default the packaged one")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to try the script")
    options = parser.parse_args()
    proofreader, total = gidd_proof.load(options.model, device="cpu"), Counter[str]()
    print("| document | words | mistakes | fixed | wrongly changed | beside | spoiled | seconds |")
    print("|---|---|---|---|---|---|---|---|")
    for path in sorted((FOLDER / "clean").iterdir())[: 1 if options.quick else None]:
        start = time.perf_counter()
        clean, typed = path.read_text(), (FOLDER / "typo" / path.name).read_text()
        found = proofreader.correct(typed, min_confidence=options.min_confidence)
        untouched = proofreader.correct(clean, min_confidence=options.min_confidence)
        counts = count_words(clean, typed, found.text)
        spoiled = count_words(clean, clean, untouched.text).spoiled
        changed = len(found.changes) - counts.fixed - counts.spoiled
        row = Counter(
            words=len(clean.split()),
            mistakes=counts.wrong,
            fixed=counts.fixed,
            wrongly=changed,
            beside=counts.spoiled,
            spoiled=spoiled,
            seconds=round(time.perf_counter() - start),
        )
        total.update(row)
        print(f"| {path.name} | {' | '.join(map(str, row.values()))} |", flush=True)
    print(f"| all | {' | '.join(map(str, total.values()))} |")


if __name__ == "__main__":
    main()
