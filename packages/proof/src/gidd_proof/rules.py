"""Slips that no word shows alone: doubled words, moved spaces, articles, mixed spellings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from math import inf
from typing import TYPE_CHECKING, Final

from gidd_proof.candidates import begins_sentence, unprotected_words
from gidd_proof.contexts import END, UNKNOWN, Contexts, Neighbours
from gidd_proof.misspellings import Misspellings
from gidd_proof.mistakes import ScoredPlace
from gidd_proof.words import MODEL_FOLDER, WordList, normal

if TYPE_CHECKING:
    from gidd.pipeline import Span

DOUBLED: Final = 4.0
"""Log odds that the second of two equal words is a mistake."""

ARTICLE: Final = 4.0
"""Log odds that an article before the wrong sound is a mistake."""

MARGIN: Final = 2.0
"""By how much a moved space must be more likely than one misspelt word, in nats."""

MOVED_SPACE: Final = 2.5
"""Log odds that a space is in the wrong place, if the neighbours of what it gives fit."""

VARIANT: Final = -1.0
"""Log odds that the rarer of American and British spelling in a text is a mistake: it is listed and
not changed."""

VARIANTS_FILE: Final = "variants.txt"
"""File of the packaged model with American and British spellings, written by
`training/variants.py`."""

MAX_GAIN: Final = -1.0
"""Words that follow themselves more often, relative to their frequency, may be doubled: had had,
very very."""

_MIN_FREQUENCY = 2e-4
"""Rarer words are doubled in names and in imitations of sounds."""

_FREQUENT = 2e-5
"""Least frequency of words between which a space may have moved."""

_HYPHENS = ("-", "–")
_SPACE = re.compile(r" |\n")
_SILENT_H = re.compile(r"(?:hour|honest|honou?r|heir)(?!loom)")
_WEAK_H = re.compile(r"h(?:otel|istor|yster|abitua|eroi|eredi|allucin|ypothe|armon)")
"""Some writers put an before these words."""

_SPOKEN_CONSONANT = re.compile(
    r"(?:one(?!i)|once|ones|oneself|eu|ewe|ewer|u(?:ni(?![nm])|nanim|biqui|kr|ran|rin|rol|rug|s[aeu](?!d)"
    r"|si|sur|t[ei]|top|vula)|ouija)"
)
_NO_NOUN = re.compile(
    r"a|an|and|are|as|at|be|but|by|for|from|had|has|he|her|his|i|if|in|into|is|it|its|of|on|or|our"
    r"|she|so|than|that|the|their|them|then|there|these|they|this|to|was|we|were|what|when|which"
    r"|who|will|with|you|your|all|any|us|up|out|am|again|also|always|about|above|after|against"
    r"|among|around|away|ago"
)
"""Words that follow a letter or a variable `a` rather than an article."""


def find_slips(
    text: str, protected: Sequence[Span], words: WordList, contexts: Contexts
) -> Iterator[ScoredPlace]:
    """Yield doubled words, moved spaces and wrong articles before known words, in order."""
    before: re.Match[str] | None = None
    tokens = contexts.tokens(text)
    is_slip = lru_cache(partial(is_never_doubled, contexts=contexts))

    def fits(start: int, first: str, second: str, moved: str) -> bool:
        """Whether neighbours make words more likely in place of the two that begin at `start`.

        If only one of the two is unknown, its misspelling must be the less likely explanation.
        """
        around = tokens.around(start, count=2)
        texts = [moved, *(without_moved_space(first, second, words) if " " in moved else ())]
        gains = contexts.gains((around, text) for text in texts).tolist()
        values = [words.log_frequency(text) + gain for text, gain in zip(texts, gains, strict=True)]
        return gains[0] > 0 and values[0] > max(values[1:], default=-inf) + MARGIN

    for match in unprotected_words(text, protected):
        if before is not None and _SPACE.fullmatch(text, before.end(), match.start()):
            start, first, second = before.start(), before[0], match[0]
            if first.lower() == second and is_slip(second):
                yield ScoredPlace(start, (text[start : match.end()], first), (0.0, DOUBLED), True)
                match = None  # one change of the three in "the the the"
            elif (
                (right := right_article(first, second, begins_sentence(text, start)))
                and second in words
                and text[start - 1 : start] not in _HYPHENS
            ):
                yield ScoredPlace(start, (first, right), (0.0, ARTICLE), True)
            elif (right := with_moved_space(first, second, words)) and fits(
                start, first, second, right
            ):
                written = text[start : match.end()]
                yield ScoredPlace(start, (written, right), (0.0, MOVED_SPACE), True)
                match = None
        before = match


def find_variants(text: str, protected: Sequence[Span]) -> Iterator[ScoredPlace]:
    """Yield the British spellings of a text that has more American ones, or the other way round."""
    variants = _variants()
    spellings = [
        (match, *variants[match[0].lower()])
        for match in unprotected_words(text, protected)
        if match[0].lower() in variants
    ]
    num_british = sum(is_british for _, _, is_british in spellings)
    num_american = len(spellings) - num_british
    for match, other, is_british in spellings:
        if (
            is_british
            and num_american > num_british
            or not is_british
            and num_british > num_american
        ):
            cased = other.capitalize() if match[0][0].isupper() else other
            yield ScoredPlace(match.start(), (match[0], cased), (0.0, VARIANT), True)


@lru_cache(1)
def _variants() -> dict[str, tuple[str, bool]]:
    """Return the other spelling of words, and whether the word is the British one."""
    lines = (MODEL_FOLDER / VARIANTS_FILE).read_text(encoding="utf-8").splitlines()
    pairs = list(map(str.split, lines))
    american = {here: (there, False) for here, there in pairs}
    return american | {there: (here, True) for here, there in pairs}


def is_never_doubled(word: str, contexts: Contexts) -> bool:
    """Whether a frequent word does not follow itself."""
    if word == "that" or contexts.frequency(word) < _MIN_FREQUENCY:
        return False
    itself, nothing = ((UNKNOWN, token) for token in (contexts.token(word), UNKNOWN))
    after = (END, END)
    with_itself, alone = contexts.gains(
        (Neighbours(before, after), word) for before in (itself, nothing)
    )
    return bool(with_itself - alone < MAX_GAIN)


def with_moved_space(first: str, second: str, words: WordList) -> str:
    """Return two words with their space elsewhere, or without it; nothing if they may be right.

    One of them must be unknown, and what is returned must be frequent.
    """
    joined = first + second
    if joined[1:] != joined[1:].lower() or all(
        map(partial(_is_word, words=words), (first, second))
    ):
        return ""
    options = [joined, *(f"{joined[:i]} {joined[i:]}" for i in (len(first) - 1, len(first) + 1))]
    is_frequent = partial(_is_word, words=words, least=_FREQUENT)
    frequent = [text for text in options if all(map(is_frequent, text.split(" ")))]
    return max(frequent, key=words.log_frequency, default="")


def without_moved_space(first: str, second: str, words: WordList) -> list[str]:
    """Return two words with one of them corrected, if the other one is known."""
    misspellings = Misspellings.packaged()

    def near(word: str) -> list[str]:
        listed = misspellings.corrections(word, words)
        return [*listed, *(other for other, edits in words.near(normal(word)) if edits == 1)]

    if _is_word(first, words):
        return [f"{first} {right}" for right in near(second)]
    if _is_word(second, words):
        return [f"{right} {second}" for right in near(first)]
    return []


def _is_word(text: str, words: WordList, least: float = 0.0) -> bool:
    """Whether a text is a known word: of the letters only a and I, and no ending of a number."""
    if len(text) == 1:
        return text in ("a", "A", "I")
    return text not in ("nd", "rd", "th") and words.frequency(text) > least


def right_article(article: str, word: str, begins: bool) -> str:
    """Return the article that a word needs, or nothing if the article is right or unclear."""
    if article not in (("A", "An") if begins else ("a", "an")):
        return ""
    lower = word.lower()
    if len(word) < 2 or _NO_NOUN.fullmatch(lower) or not word.isascii() or word[1:] != lower[1:]:
        return ""
    is_vowel = lower[0] in "aeiou" and not _SPOKEN_CONSONANT.match(lower)
    if _WEAK_H.match(lower):
        return ""
    right = "an" if is_vowel or _SILENT_H.match(lower) else "a"
    right = right.capitalize() if begins else right
    return "" if right == article else right
