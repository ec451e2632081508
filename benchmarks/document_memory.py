"""Peak memory of preparing one long document, by its content.

    python benchmarks/document_memory.py --json

Each preparation runs in a process of its own, with GPT-2's tokenizer. "speeches" is the corpus of
249 ordinary documents, for comparison.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from script import parser_of, size

MB = 1 << size(20, 10)


def english(length: int) -> str:
    """Speeches, one after the other."""
    from gidd.data.corpora import texts

    text = "".join(texts("sotu"))
    return (text * (length // len(text) + 1))[:length]


def digits(length: int) -> str:
    """Digits between punctuation: a token for each character, and nowhere to cut."""
    return "1," * (length // 2)


def letters(length: int) -> str:
    """Random letters, with a space after every tenth."""
    rng = random.Random(0)
    word = ("".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=9)) for _ in range(length // 10))
    return " ".join(word)


DOCUMENTS: dict[str, tuple[Callable[[int], str], int]] = {
    "english_30_mb": (english, 30 * MB),
    "letters_30_mb": (letters, 30 * MB),
    "digits_2_mb": (digits, 2 * MB),
    "english_2_mb": (english, 2 * MB),
}


def measure(name: str) -> float:
    """Return the peak memory, in MB, of preparing a document (or the speeches) here."""
    from gidd.data.preparation import prepare
    from gidd.data.tokenizers import gpt2

    with tempfile.TemporaryDirectory() as folder:
        source: str | Path = "sotu"
        if name in DOCUMENTS:
            source = Path(folder) / "document.txt"
            subprocess.run([sys.executable, *sys.argv, "--write", name, str(source)], check=True)
        prepare([source], gpt2(), Path(folder) / "out", validation=0, quiet=True)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Measure all kinds of documents, each in a new process."""
    parser = parser_of(__doc__)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--write", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:  # in another process: the text must not count
        make, length = DOCUMENTS[options.write[0]]
        Path(options.write[1]).write_text(make(length))
        return
    if options.one:
        print(measure(options.one))
        return
    peaks: dict[str, float] = {}
    for name in ("speeches", *DOCUMENTS):
        command = [sys.executable, *sys.argv, "--one", name]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        peaks[name] = round(float(output.split()[-1]))
        print(f"{name:16} {peaks[name]:6.0f} MB")
    if options.json:
        print(json.dumps(peaks))


if __name__ == "__main__":
    main()
