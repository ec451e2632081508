"""Split books into sections for `benchmarks.reproduce`; whole books are held out, at the end.

python benchmarks/book_sections.py FOLDER books.jsonl --held-out astronomy psychology
python -m benchmarks.reproduce laptop --corpus books.jsonl --validation 2459
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path


def sections(text: str, characters: int) -> Iterator[str]:
    """Yield groups of paragraphs of at most so many characters; a blank line ends a group."""
    part: list[str] = []
    for line in (line.strip() for line in text.splitlines()):
        if part and (not line or sum(map(len, part)) + len(line) > characters):
            yield "\n".join(part)
            part = []
        if line:
            part.append(line)
    if part:
        yield "\n".join(part)


def main() -> None:
    """Write the training sections, then the held-out ones, both shuffled."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="text files, one per book")
    parser.add_argument("out", type=Path, help="JSON Lines file to write")
    parser.add_argument("--held-out", nargs="*", default=[], help="names of books, without .txt")
    parser.add_argument("--characters", type=int, default=2000)
    parser.add_argument("--shortest", type=int, default=400, help="characters; shorter are dropped")
    options = parser.parse_args()
    train: list[str] = []
    held_out: list[str] = []
    for book in sorted(options.folder.glob("*.txt")):
        parts = sections(book.read_text(encoding="utf-8"), options.characters)
        kept = [part for part in parts if len(part) > options.shortest]
        (held_out if book.stem in options.held_out else train).extend(kept)
    for part in (train, held_out):
        random.Random(0).shuffle(part)
    with options.out.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in train + held_out)
    print(f"{len(train)} sections, and {len(held_out)} held out: --validation {len(held_out)}")


if __name__ == "__main__":
    main()
