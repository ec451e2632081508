"""Make the list of American and British spellings of the same words.

    python training/variants.py --out variants.txt

It needs Debian's `scowl`. A line has the American and the British spelling. -ize and -ise are left
out, as both are British; so are words that the other country writes too.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from words import SCOWL

MAX_SIZE = 60
TO_AMERICAN = {
    r"our": "or",
    r"re(d|s|)$": r"er\1",
    r"ogue": "og",
    r"ll": "l",
    r"l(?=ment|ful)": "ll",
    r"[ao]e": "e",
    r"ence": "ense",
    r"yse": "yze",
    r"ys(?=ing)": "yz",
    r"ough": "ow",
    r"grey": "gray",
    r"mm?e(s|d|)$": r"m\1",
    r"tyre": "tire",
    r"sceptic": "skeptic",
    r"que(s?)$": r"ck\1",
    r"mould": "mold",
    r"moult": "molt",
    r"smoulder": "smolder",
}
"""Endings and letters of British spellings, and the American ones."""


def main() -> None:
    """Pair the words and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    american, british, oxford = map(read, ("american", "british", "british_z"))
    pairs = {
        (re.sub(pattern, new, word), word)
        for word in british - american
        for pattern, new in TO_AMERICAN.items()
        if re.search(pattern, word) and re.sub(pattern, new, word) in american - british - oxford
    }
    options.out.write_text("".join(f"{' '.join(pair)}\n" for pair in sorted(pairs)))
    print(f"{options.out}: {len(pairs)} pairs")


def read(region: str) -> set[str]:
    """Return the words that SCOWL lists for one country."""
    sizes = {int(path.suffix[1:]): path for path in SCOWL.glob(f"{region}-words.*")}
    found = (path.read_text("latin-1").split() for size, path in sizes.items() if size <= MAX_SIZE)
    return {word for words in found for word in words if word.isascii() and word.isalpha()}


if __name__ == "__main__":
    main()
