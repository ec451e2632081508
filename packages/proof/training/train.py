"""Train the proofreader's model of characters on a folder or tar of English texts.

    python training/train.py english.tar.xz --out runs/proof
    gidd export runs/proof --out models/proof --bf16
    gidd-proof letter.txt --model models/proof

Training starts from the released weights (`--start FOLDER`: from another model of `gidd export`;
`--start none`: from random weights of the given size). The learning rate is constant and the
exported weights are an EMA, so a run can be stopped and exported at any step; the same command
resumes it. Whole files are held out for validation, every twentieth by name.
"""

from __future__ import annotations

import argparse
import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gidd_proof.words import MODEL_FOLDER

import gidd
from gidd.errors import ConfigError

DOCUMENT_CHARACTERS = 1_000
"""Characters of a training document, in whole paragraphs: a sample is a crop of one."""

HELD_OUT_EVERY = 20
MIN_LETTERS = 0.65
"""Fraction of letters below which a paragraph is a table, code or a list of numbers."""

_REPLACED = str.maketrans({"’": "'", "\u2011": "-", "\u00a0": " ", "\t": " ", "ﬁ": "fi", "ﬂ": "fl"})
_REMOVED = re.compile("&nbsp;|[\ufeff\u200b\u00ad\r]")


def main() -> None:
    """Prepare the texts, then train or resume."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("texts", type=Path, help="folder or tar with .txt files in UTF-8")
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument("--start", default=str(MODEL_FOLDER), help="folder of a model, or none")
    parser.add_argument("--steps", type=int, default=60_000, help="of 16 x 256 characters")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--width", type=int, default=160, help="hidden size, without --start")
    parser.add_argument("--layers", type=int, default=5, help="blocks, without --start")
    parser.add_argument("--compile", action="store_true", help="compile the blocks")
    options = parser.parse_args()
    prepared = options.out / "texts.jsonl"
    if not prepared.is_file():
        prepare(options.texts, prepared)
    held_out = json.loads((options.out / "held-out.json").read_text())
    is_new = options.start == "none"
    size = {"width": options.width, "num_layers": options.layers, "num_heads": options.width // 32}
    network = gidd.component("backbone", "dit", **size, time_width=64, mixing_width=7)
    new = {"model": network, "tokenizer": str(MODEL_FOLDER)}
    start: dict[str, Any] = new if is_new else {"init_from": options.start}
    gidd.train(
        options.out,
        preset="proof",
        **start,
        data=[prepared],
        validation=held_out["documents"],
        steps=options.steps,
        learning_rate=options.learning_rate,
        lr_schedule="constant",
        warmup=200,
        ema_decay=0.998,
        autocast=False,
        compile=options.compile,
        report_every=50,
        evaluate_every=500,
        evaluate_samples=128,
        generate_samples=0,
        save_every=100,
    )


def prepare(source: Path, out: Path) -> None:
    """Write the documents as JSON lines, those of held-out files last."""
    files = sorted(read_texts(source))
    if len(files) < 2:
        raise ConfigError(f"{source} must contain at least two .txt files: one is held out.")
    held_out = files[::HELD_OUT_EVERY]
    out.parent.mkdir(parents=True, exist_ok=True)
    trained = [d for file in files if file not in held_out for d in documents(file[1])]
    others = [d for _, text in held_out for d in documents(text)]
    record = {"files": [name for name, _ in held_out], "documents": len(others)}
    (out.parent / "held-out.json").write_text(json.dumps(record))
    temporary = out.with_suffix(".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        for text in trained + others:
            file.write(json.dumps({"text": text}) + "\n")
    temporary.replace(out)


def read_texts(source: Path) -> Iterator[tuple[str, str]]:
    """Yield name and text of each .txt file of a folder or tar."""
    if source.is_dir():
        for path in source.rglob("*.txt"):
            yield str(path.relative_to(source)), path.read_text(encoding="utf-8")
        return
    with tarfile.open(source) as tar:
        for member in tar:
            file = tar.extractfile(member) if member.name.endswith(".txt") else None
            if file is not None:
                yield member.name, file.read().decode("utf-8")


def documents(text: str) -> Iterator[str]:
    """Yield groups of clean paragraphs of about `DOCUMENT_CHARACTERS` characters."""
    group: list[str] = []
    for line in _REMOVED.sub("", text).translate(_REPLACED).split("\n"):
        paragraph = " ".join(line.split())
        if sum(map(str.isalpha, paragraph)) < MIN_LETTERS * max(1, len(paragraph)):
            continue
        group.append(paragraph)
        if sum(map(len, group)) >= DOCUMENT_CHARACTERS:
            yield "\n".join(group)
            group = []
    if group:
        yield "\n".join(group)


if __name__ == "__main__":
    main()
