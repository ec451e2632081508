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

NUM_SAMPLES, STEPS = size((20, 64), (2, 4))
PROMPT = size("", "Once upon a time")  # in a few steps, stories without a beginning are empty
PLAIN: dict[str, Any] = {"steps": STEPS, "temperature": 1.0, "top_p": None}
"""Samples of the model's own distribution: nothing is cut off."""
CORRECTION: dict[str, Any] = {
    "tokens_per_step": 2,
    "score": "gain",
    "forward_passes": size(64, 2),
}
WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")


def known_words(texts: Sequence[str]) -> float:
    """Return the fraction of words that the list has."""
    words = WordList.of_model(MODEL_FOLDER)
    written = [word.lower().replace("’", "'") for text in texts for word in WORD.findall(text)]
    return sum(words.counts.get(w.removesuffix("'s"), 0) > 0 for w in written) / len(written)


def page(plain: Sequence[str], corrected: Sequence[str], recommended: Sequence[str]) -> str:
    """Return the samples in Markdown."""
    lines = ["# Samples of nano", ""]
    lines += [f"The first {NUM_SAMPLES} of seed 0, not selected, {STEPS} steps: at temperature 1"]
    lines += ["with nothing cut off, the same after self-correction, and with the options that the"]
    lines += ["model recommends (`sampling.json`):"]
    lines += ["`python benchmarks/nano.py --page packages/nano/SAMPLES.md`.", ""]
    for index, texts in enumerate(zip(plain, corrected, recommended, strict=True), 1):
        for name, text in zip(
            ("Temperature 1", "Self-corrected", "Recommended"), texts, strict=True
        ):
            lines += [f"**{index}. {name}:** {' '.join(text.split()) or '(empty)'}", ""]
    return "\n".join(lines)


def main() -> None:
    """Generate, self-correct, measure."""
    parser = parser_of(__doc__)
    parser.add_argument("--page", type=Path, help="write the samples to this file")
    options = parser.parse_args()
    pipe = gidd.from_pretrained("nano", device="cpu", batch_size=4)
    samples = pipe.generate(PROMPT, n=NUM_SAMPLES, seed=0, **PLAIN)
    before = [sample.text for sample in samples]
    single = gidd.from_pretrained("nano", device="cpu")
    corrected = [single.self_correct(text, **CORRECTION) for text in before if text]
    texts = iter([correction.text for correction in corrected])
    after = [text and next(texts) for text in before]
    steps = size({}, {"steps": STEPS})
    recommended = [s.text for s in pipe.generate(PROMPT, n=NUM_SAMPLES, seed=0, **steps)]
    accuracy = [
        sum(values) / len(corrected)
        for values in zip(*(c.self_accuracy for c in corrected), strict=True)
    ]
    groups = {"plain": before, "corrected": after, "recommended": recommended}
    figures = {f"known_words_{name}": known_words(texts) for name, texts in groups.items()}
    for name, texts in groups.items():
        entropies = [sequence_entropy(pipe.encode(text, "a sample")) for text in texts if text]
        figures[f"entropy_{name}"] = sum(entropies) / len(entropies)
    figures |= {"self_accuracy_plain": accuracy[0], "self_accuracy_corrected": accuracy[1]}
    for name, value in figures.items():
        print(f"{name:25} {value:.3f}")
    if options.page:
        options.page.write_text(page(before, after, recommended), encoding="utf-8")
    if options.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
