"""The model `nano`: its first samples before and after self-correction, and how many words exist.

python benchmarks/nano.py --json                         # needs gidd-nano and gidd-proof
python benchmarks/nano.py --page packages/nano/SAMPLES.md

A word exists if it is one of the 140,446 of gidd-proof's list. Samples are the first of seed 0,
not selected.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gidd_proof.words import MODEL_FOLDER, WordList
from script import parser_of, size

import gidd
from gidd.evaluation.metrics import sequence_entropy

NUM_SAMPLES, LENGTH = size((20, 96), (2, 12))
SAMPLING: dict[str, Any] = {"steps": LENGTH, "temperature": 0.6, "top_p": 0.9}
CORRECTION: dict[str, Any] = {"temperature": 0.1} | size({}, {"forward_passes": 2})
WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")


def known_words(texts: Sequence[str]) -> float:
    """Return the fraction of words that the list has."""
    words = WordList.of_model(MODEL_FOLDER)
    written = [word.lower().replace("’", "'") for text in texts for word in WORD.findall(text)]
    return sum(words.counts.get(w.removesuffix("'s"), 0) > 0 for w in written) / len(written)


def page(before: Sequence[str], after: Sequence[str]) -> str:
    """Return the samples in Markdown."""
    lines = ["# Samples of nano", ""]
    settings = ", ".join(f"{name} {value}" for name, value in SAMPLING.items())
    lines += [f"The first {NUM_SAMPLES} of seed 0, not selected, {LENGTH} tokens, {settings}:"]
    lines += ["`python benchmarks/nano.py --page packages/nano/SAMPLES.md`.", ""]
    for index, (old, new) in enumerate(zip(before, after, strict=True), 1):
        lines += [f"**{index}.** {' '.join(old.split())}", ""]
        lines += [f"Self-corrected: {' '.join(new.split())}", ""]
    return "\n".join(lines)


def main() -> None:
    """Generate, self-correct, measure."""
    parser = parser_of(__doc__)
    parser.add_argument("--page", type=Path, help="write the samples to this file")
    options = parser.parse_args()
    pipe = gidd.from_pretrained("nano", device="cpu", batch_size=4)
    samples = pipe.generate(n=NUM_SAMPLES, length=LENGTH, seed=0, **SAMPLING)
    before = [sample.text for sample in samples]
    corrected = [pipe.self_correct(text, **CORRECTION) for text in before]
    after = [correction.text for correction in corrected]
    accuracy = [
        sum(values) / NUM_SAMPLES
        for values in zip(*(c.self_accuracy for c in corrected), strict=True)
    ]
    entropy = [
        sum(sequence_entropy(pipe.encode(text, "a sample")) for text in texts) / NUM_SAMPLES
        for texts in (before, after)
    ]
    figures = {
        "known_words_before": known_words(before),
        "known_words_after": known_words(after),
        "self_accuracy_before": accuracy[0],
        "self_accuracy_after": accuracy[1],
        "entropy_before": entropy[0],
        "entropy_after": entropy[1],
    }
    for name, value in figures.items():
        print(f"{name:22} {value:.3f}")
    if options.page:
        options.page.write_text(page(before, after), encoding="utf-8")
    if options.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
