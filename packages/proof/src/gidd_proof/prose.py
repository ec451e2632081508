"""Which parts of a text are English prose: not code, and not other languages."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from gidd_proof.words import MODEL_FOLDER, WordList, normal

if TYPE_CHECKING:
    from gidd.pipeline import Span

FUNCTION_WORDS_FILE: Final = "function_words.txt"
"""File of the packaged model: a language, and frequent words of it. The first is English."""

MARKUP: Final = frozenset(
    ("Text only", "Markdown", "reStructuredText", "TeX", "HTML", "XML", "Groff", "Org Mode")
)
"""Kinds of files that are read as prose, by their names in Pygments."""

ENGLISH_WORD: Final = -2.95
FOREIGN_WORD: Final = 1.72
KNOWN_WORD: Final = -0.66
ACCENTED_WORD: Final = 1.49
UNKNOWN_WORD: Final = 0.57
"""Log odds that a sentence is not English, for each frequent word of English and of other
languages, other known words, and other unknown words with and without letters beyond ASCII.
Other words with a capital within a sentence do not count. Fitted to the translations of coreutils
into 30 languages, and to the sentences of `wikipedia-dev` with and without mistakes."""

NEIGHBOUR: Final = 0.5
"""Factor of the log odds of the sentences before and after in a paragraph."""

FOREIGN: Final = 3.0
"""Least log odds of a sentence that is not English."""

FOREIGN_PER_WORD: Final = 0.25
"""What is added for each word above eight if no language has two of the words: mistakes and names
look like another language."""

_END: Final = re.compile(r"(?:[.!?](?!\S)|\n)\s*")
_CLAUSE_END: Final = re.compile(r"(?:[.!?:;](?!\S)|\n)\s*")
_WORD: Final = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")


class Languages(NamedTuple):
    """Frequent words of English and of other languages."""

    english: frozenset[str]
    others: dict[str, frozenset[str]]
    """Words that are not English, by the code and the name of a language."""

    @classmethod
    @lru_cache(1)
    def packaged(cls) -> Languages:
        """Return the packaged words."""
        lines = (MODEL_FOLDER / FUNCTION_WORDS_FILE).read_text(encoding="utf-8").splitlines()
        first, *rows = (line.partition(": ") for line in lines)
        english = frozenset(first[2].split())
        allowed = english | {"in", "is", "as", "on", "do", "no", "at", "so", "to", "a", "i"}
        return cls(english, {name: frozenset(words.split()) - allowed for name, _, words in rows})

    @property
    def foreign(self) -> frozenset[str]:
        """The words of all other languages."""
        return frozenset().union(*self.others.values())


class Sentence(NamedTuple):
    """A sentence text[start:stop], and its language."""

    start: int
    stop: int
    language: str
    """A code and a name, as "de German"; "" for an unknown language."""

    @property
    def is_english(self) -> bool:
        """Whether it is English."""
        return self.language.startswith("en ")


def find_sentences(text: str, end: re.Pattern[str] = _END) -> list[Span]:
    """Return the spans of sentences: they end at a line break, or at . ! or ? before a space."""
    ends = [match.end() for match in end.finditer(text)]
    if ends[-1:] != [len(text)] and text:
        ends.append(len(text))
    return list(zip([0, *ends], ends, strict=False))


def main_language(sentences: Sequence[Sentence]) -> tuple[str, float]:
    """Return the language of most of a text, and the fraction of its characters."""
    sizes: Counter[str] = Counter()
    for sentence in sentences:
        sizes[sentence.language] += sentence.stop - sentence.start
    ((language, size),) = sizes.most_common(1) or [("en English", 1)]
    return language, size / max(1, sizes.total())


def read_languages(text: str, words: WordList) -> list[Sentence]:
    """Return the sentences of a text, also ended by : and ;, with their languages.

    Args:
        text: The text.
        words: Known words. If they are not English, every sentence counts as English.
    """
    spans = find_sentences(text, _CLAUSE_END)
    if not _has_english(words):
        return [Sentence(*span, "en English") for span in spans]
    scores = [_foreign_odds(text[start:stop], words) for start, stop in spans]
    odds = scores.copy()
    for i, (start, _) in enumerate(spans[1:]):
        if "\n\n" not in text[max(0, start - 9) : start]:
            odds[i] += NEIGHBOUR * scores[i + 1]
            odds[i + 1] += NEIGHBOUR * scores[i]
    sentences: list[Sentence] = []
    for (start, stop), value in zip(spans, odds, strict=True):
        language, num_words = (
            _other_language(text[start:stop]),
            len(_WORD.findall(text, start, stop)),
        )
        least = FOREIGN + (0 if language else FOREIGN_PER_WORD * max(0, num_words - 8))
        language = language if value > least else "en English"
        sentences.append(Sentence(start, stop, language))
    return sentences


def foreign_spans(text: str, words: WordList) -> list[Span]:
    """Return the sentences that are not English."""
    return [(s.start, s.stop) for s in read_languages(text, words) if not s.is_english]


def code_spans(name: str, text: str) -> list[Span]:
    """Return what is not prose in a file: all but comments and documentation in source code.

    Words of comments that the code has are names, and not prose either.

    Args:
        name: The name of the file, which tells its language.
        text: Its text.
    """
    from pygments.lexers import find_lexer_class_for_filename, guess_lexer
    from pygments.token import Comment, Literal, String
    from pygments.util import ClassNotFound

    lexer = find_lexer_class_for_filename(name)
    if lexer is not None and lexer.name in MARKUP:
        return []
    try:
        is_script = lexer is None and text[:2] == "#!"
        reader = guess_lexer(text[:1000]) if is_script else lexer and lexer()
    except ClassNotFound:
        return []
    if reader is None:
        return []
    prose: list[Span] = []
    for start, kind, value in reader.get_tokens_unprocessed(text):
        is_comment = kind in Comment and kind not in Comment.Preproc
        if (
            is_comment
            and kind is not Comment.Hashbang
            or kind in String.Doc
            or kind in Literal.Scalar
        ):
            prose.append((start, start + len(value)))
    edges = [0, *(edge for span in prose for edge in span), len(text)]
    code = list(zip(edges[::2], edges[1::2], strict=True))
    names = {name for start, stop in code for name in _WORD.findall(text, start, stop)}
    comments = (match for span in prose for match in _WORD.finditer(text, *span))
    return [*code, *(match.span() for match in comments if match[0] in names)]


def _foreign_odds(sentence: str, words: WordList) -> float:
    english, foreign = Languages.packaged().english, _foreign_words()
    odds, start = 0.0, len(sentence) - len(sentence.lstrip())
    for match in _WORD.finditer(sentence):
        written, word = match[0], normal(match[0])
        if word in english:
            odds += ENGLISH_WORD
        elif word in foreign:
            odds += FOREIGN_WORD
        elif written[0].isupper() and match.start() > start and not written.isupper():
            continue  # a name
        elif word in words:
            odds += KNOWN_WORD
        else:
            odds += UNKNOWN_WORD if word.isascii() else ACCENTED_WORD
    return odds


def _other_language(sentence: str) -> str:
    """Return the language with the most frequent words in a sentence; "" if it has none."""
    written = set(map(normal, _WORD.findall(sentence)))
    counts = {name: len(written & words) for name, words in Languages.packaged().others.items()}
    name = max(counts, key=lambda name: counts[name])
    return name if counts[name] > 1 else ""


@lru_cache(1)
def _foreign_words() -> frozenset[str]:
    return Languages.packaged().foreign


def _has_english(words: WordList) -> bool:
    english = Languages.packaged().english
    return sum(word in words for word in english) > len(english) // 2
