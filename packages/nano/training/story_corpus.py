"""Mix drawn stories with real ones: a corpus for `gidd data prepare`, held-out stories last.

python story_corpus.py corpus.jsonl --drawn train.jsonl --held-out held.jsonl --real real.jsonl.xz

Drawn stories that were cut are left out: every document of the corpus ends. Real ones are split at
lines into parts that fit the context. Prints the --validation for `gidd data prepare`.
"""

from __future__ import annotations

import argparse
import json
import lzma
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any


def records(files: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """Yield the lines of JSON Lines files, compressed with xz or not."""
    for path in files:
        with (lzma.open if path.suffix == ".xz" else open)(path, "rt", encoding="utf-8") as file:
            yield from map(json.loads, file)


def parts(text: str, characters: int) -> Iterator[str]:
    """Yield groups of consecutive lines of about equal lengths, at most so many characters."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    size = len(text) / -(-len(text) // characters)
    part = ""
    for line in lines:
        if part and len(part) + len(line) > size:
            yield part
            part = ""
        part = f"{part}\n{line}" if part else line
    yield part


def main() -> None:
    """Write the drawn and real stories, shuffled, then the held-out ones."""
    parser = argparse.ArgumentParser(description="Mix drawn stories with real ones.")
    parser.add_argument("out", type=Path, help="JSON Lines file to write")
    parser.add_argument("--drawn", type=Path, nargs="+", required=True, help="of stories.py")
    parser.add_argument("--held-out", type=Path, nargs="+", required=True, help="of stories.py")
    parser.add_argument("--real", type=Path, nargs="*", default=[], help="JSON Lines with text")
    parser.add_argument("--share", type=float, default=0.1, help="of real text, in characters")
    parser.add_argument("--repeats", type=int, default=2, help="of real text, at most")
    parser.add_argument("--characters", type=int, default=900, help="of a part of a real story")
    options = parser.parse_args()
    drawn, held_out = (
        list(dict.fromkeys(one["text"] for one in records(files) if one["whole"]))
        for files in (options.drawn, options.held_out)
    )
    shuffle = random.Random(0).shuffle
    found = [
        part for one in records(options.real) for part in parts(one["text"], options.characters)
    ]
    real: list[str] = []
    for _ in range(options.repeats):
        shuffle(found)
        real += found
    missing = sum(map(len, drawn)) * options.share / (1 - options.share)
    while real and sum(map(len, real)) > missing:
        real.pop()
    texts = drawn + real
    shuffle(texts)
    with options.out.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts + held_out)
    print(
        f"{len(drawn)} drawn stories, {len(real)} parts of real ones, --validation {len(held_out)}"
    )


if __name__ == "__main__":
    main()
