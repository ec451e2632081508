"""Doubtful words of a text, and candidates for what may be right there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from gidd.pipeline import Span
from gidd_proof.edit_model import EditModel
from gidd_proof.words import FREQUENCY_SCALE, LONGEST_WORD, WordList

MAX_CANDIDATES: Final = 5
"""Candidates of one place that the network scores."""

PLAUSIBLE: Final = 6.0
"""Candidates whose frequency and edits alone make them less likely than the best candidate by more
than this, in nats, are not scored."""

WRITTEN: Final = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
"""Letters, with apostrophes between them."""

_LATIN = re.compile(r"[A-Za-zÀ-ɏ'’]+")
_SENTENCE_END = re.compile(r"[a-z)][.!?] +[\"“']?$")
_FREQUENT = 2e-5
"""Frequency of words between which a space may have been dropped."""

_COMPARED = 24
"""Near words whose edits are compared."""

_NATS_PER_EDIT = 6.0


class Candidate(NamedTuple):
    """A text that may be right at a place."""

    text: str

    log_probability: float
    """Log of the probability to write the text that was found instead."""


class Place(NamedTuple):
    """A word that may be wrong: text[start:stop], and what may be right."""

    start: int
    stop: int
    candidates: tuple[Candidate, ...]


def find_places(
    text: str, protected: Sequence[Span], words: WordList, edits: EditModel
) -> Iterator[Place]:
    """Yield the words that may be wrong and have candidates, in order.

    Args:
        text: The text.
        protected: Spans that are never changed, in order of their beginnings.
        words: Known words.
        edits: Probabilities of mistakes.
    """
    for match in unprotected_words(text, protected):
        written = match[0]
        if 1 < len(written) <= LONGEST_WORD and written not in words and _LATIN.fullmatch(written):
            candidates = word_candidates(
                written, words, edits, _begins_sentence(text, match.start())
            )
            if candidates:
                yield Place(match.start(), match.end(), candidates)


def unprotected_words(text: str, protected: Sequence[Span]) -> Iterator[re.Match[str]]:
    """Yield the words that no protected span touches."""
    spans, end = iter(protected), 0
    following = next(spans, None)
    for match in WRITTEN.finditer(text):
        while following is not None and following[0] < match.end():
            end, following = max(end, following[1]), next(spans, None)
        if match.start() >= end:
            yield match


def word_candidates(
    written: str, words: WordList, edits: EditModel, begins_sentence: bool = False
) -> tuple[Candidate, ...]:
    """Return what may be right in place of a word, most likely first by frequency and edits."""
    rough = sorted(
        words.near(written),
        key=lambda near: FREQUENCY_SCALE * words.log_frequency(near[0]) - _NATS_PER_EDIT * near[1],
        reverse=True,
    )
    proposals = {cased for word, _ in rough[:_COMPARED] for cased in _in_cases(written, word)}
    proposals.update(_splits(written, words))
    proposals.discard(written)
    prior = {
        Candidate(right, log_probability): log_probability
        + FREQUENCY_SCALE * words.log_frequency(right)
        for right in proposals
        for log_probability in [edits.log_probability(written, right)]
    }
    ranked = sorted(prior, key=lambda c: (-prior[c], c.text))[:MAX_CANDIDATES]
    kept = [c for c in ranked if prior[c] > prior[ranked[0]] - PLAUSIBLE]
    if begins_sentence and written[:1].islower():
        kept = [Candidate(_capitalized(c.text), c.log_probability) for c in kept]
    return tuple(kept)


def _in_cases(written: str, word: str) -> Iterable[str]:
    """Yield a lower-case word in the case of the written one, whose first letter may be wrong."""
    if "’" in written:
        word = word.replace("'", "’")
    if written[:1].isupper():
        yield _capitalized(word)
    else:
        yield word


def _capitalized(word: str) -> str:
    return word[:1].upper() + word[1:]


def _begins_sentence(text: str, start: int) -> bool:
    """Whether a word follows the end of a sentence, as far as the characters before it show."""
    return _SENTENCE_END.search(text, max(0, start - 8), start) is not None


def _splits(written: str, words: WordList) -> Iterable[str]:
    """Yield two frequent words without the space between them; a rare word may be a prefix."""
    for i in range(1, len(written)):
        if min(words.frequency(written[:i]), words.frequency(written[i:])) >= _FREQUENT:
            yield f"{written[:i]} {written[i:]}"
