"""Make the packaged list of words with their frequencies per billion.

    python training/words.py english.tar.xz --out words.txt

It needs the package symspellpy (82,765 words with counts of the web) and Debian's `scowl` (words of
American, British, Canadian and Australian English). Frequent words of the texts are added; a
frequency is the mean of the web's and of the texts'. Dialect and abbreviations that look like a
mistake in a word that is far more frequent are left out.
"""

from __future__ import annotations

import argparse
import importlib.resources
import string
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from gidd_proof.candidates import WRITTEN
from train import read_texts

SCOWL = Path("/usr/share/dict/scowl")
REGIONS = ("english", "american", "british", "british_z", "canadian", "australian")
SIZES = {"words": 60, "upper": 60, "proper-names": 60, "contractions": 70}
"""Kinds of SCOWL's lists, and the largest size of each that is taken."""

LARGE = 70, 7
"""Size of SCOWL's lists from which long words are taken too, and their least number of letters: a
mistake in a long word rarely gives another word."""

_ABBREVIATIONS = """
km kg cm mm ml lb mph kph rpm kb mb gb px min sec hr hrs yrs eg ie cf inc jr sr st dr mr capt co pre
tv dvd dvds cds usb gps pdfs vlog ebook ebooks signup qubit qubits pled teenaged uber
usa uk ii iii iv vi vii viii von der ibn du des el et da das facto masse
"""

ABBREVIATIONS = frozenset(_ABBREVIATIONS.split())
"""Words that are taken though they look like mistakes: units, titles, parts of names, new words."""

NOT_WORDS = {"nbsp", "https", "www", "http", "htm"}


class Seen(NamedTuple):
    """How often the texts have a word, in how many of them, and how often in lower case."""

    times: int
    files: int
    lower: int


def main() -> None:
    """Count, choose and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("texts", type=Path, help="folder or tar with .txt files in UTF-8")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    seen, web = count(options.texts), web_counts()
    size, letters = LARGE
    known, all_words = (scowl(dict.fromkeys([*SIZES], upto)) for upto in (size, 95))
    small = scowl(SIZES) | {word for word in known if len(word) >= letters} | ABBREVIATIONS
    in_texts, in_web = sum(word.times for word in seen.values()), sum(web.values())
    found = {
        word: max(1, round(5e8 * (web.get(word, 0) / in_web + number / in_texts)))
        for word in seen.keys() | web.keys() | small
        for number in [seen[word].times if word in seen else 0]
        if word in web or word in small or is_frequent(word, seen[word], word in all_words)
    }
    names = {w for w, s in seen.items() if w not in web and 2 * s.lower <= s.times and len(w) > 4}
    is_safe = (known | names | ABBREVIATIONS).__contains__
    doubtful = [w for w in found if not is_safe(w) and looks_wrong(w, found)]
    for word in NOT_WORDS.intersection(found).union(doubtful):
        del found[word]
    ordered = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    options.out.write_text("".join(f"{word}\t{number}\n" for word, number in ordered))
    print(f"{options.out}: {len(found):,} words")


def count(texts: Path) -> dict[str, Seen]:
    """Return how often the texts have each word."""
    total, files, lower = Counter[str](), Counter[str](), Counter[str]()
    for _, text in read_texts(texts):
        words = Counter(word.replace("’", "'") for word in WRITTEN.findall(text))
        files.update({word.lower() for word in words})
        for word, number in words.items():
            total[word.lower()] += number
            lower[word.lower()] += number * (word == word.lower())
    return {word: Seen(n, files[word], lower[word]) for word, n in total.items() if n > 1}


def web_counts() -> dict[str, int]:
    """Return the words of symspellpy."""
    file = importlib.resources.files("symspellpy") / "frequency_dictionary_en_82_765.txt"
    rows = (line.split() for line in file.read_text(encoding="utf-8-sig").splitlines())
    return {word: int(number) for word, number in rows}


def scowl(sizes: dict[str, int]) -> set[str]:
    """Return the words of SCOWL's lists up to some sizes, without possessives."""
    found: set[str] = set()
    for path in SCOWL.iterdir():
        region, _, kind = path.stem.partition("-")
        if region in REGIONS and int(path.suffix[1:]) <= sizes.get(kind, 0):
            found.update(map(str.lower, path.read_text(encoding="latin-1").split()))
    return {w for w in found if WRITTEN.fullmatch(w) and not w.endswith("'s")}


def is_frequent(word: str, seen: Seen, is_listed: bool) -> bool:
    """Whether the texts show that this is a word: often enough, and in several texts."""
    if word.endswith("'s") or len(word) < 3:
        return False
    if is_listed:
        return True
    if 2 * seen.lower <= seen.times:  # a name
        return seen.times >= 4 or (seen.times >= 3 and seen.files >= 2)
    return (seen.times >= 4 and seen.files >= 3 and len(word) > 3) or seen.times >= 15


def looks_wrong(word: str, found: dict[str, int]) -> bool:
    """Whether an edit leads to a word that is far more frequent."""
    ratio = 20 if len(word) <= 4 else 100 if len(word) == 5 else 300
    return any(found.get(near, 0) > ratio * found[word] for near in edits_of(word))


def edits_of(word: str) -> Iterator[str]:
    """Yield the texts that one edit leads to."""
    for i in range(len(word) + 1):
        before, after = word[:i], word[i:]
        yield before + after[1:]
        yield before + after[1:2] + after[:1] + after[2:]
        for letter in string.ascii_lowercase + "'":
            yield before + letter + after
            yield before + letter + after[1:]


if __name__ == "__main__":
    main()
