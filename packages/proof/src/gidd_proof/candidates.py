"""Doubtful words of a text, and candidates for what may be right there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from gidd_proof.edit_model import EditModel
from gidd_proof.words import FREQUENCY_SCALE, LONGEST_WORD, WordList

MAX_CANDIDATES: Final = 8
"""Candidates of one place that the network scores."""

PLAUSIBLE: Final = 7.0
"""Candidates whose frequency and edits alone make them less likely than the best candidate by more
than this, in nats, are not scored."""

DOUBTFUL: Final = 0.99
"""A word is doubtful if the posterior of one of its characters is below this."""

_WRITTEN = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
"""Letters and digits, with apostrophes between them."""

_FREQUENT = 2e-5
"""Frequency of words between which a space may have been dropped."""


class Region(NamedTuple):
    """A word, or a character that is not part of a word: text[start:stop]."""

    start: int
    stop: int

    def of(self, text: str) -> str:
        """Return the text of the region."""
        return text[self.start : self.stop]


class Candidate(NamedTuple):
    """A text that may be right at a region."""

    text: str

    log_probability: float
    """Log of the probability to write the text that was found instead."""


def doubtful_regions(
    text: str, found: Sequence[float], fixed: Sequence[bool], words: WordList
) -> Iterator[Region]:
    """Yield the words that may be wrong, and other characters that probably are.

    A word is doubtful if it is unknown, or if one of its characters is doubtful. Words with a fixed
    position and strings that are too long for a word are left out.

    Args:
        text: The text.
        found: Posterior probability that each character is right.
        fixed: Positions that are never changed.
        words: Known words.
    """
    start = 0
    for match in _WRITTEN.finditer(text):
        if match[0].isdigit():
            continue
        yield from _other_regions(start, match.start(), found, fixed)
        start = match.end()
        inside = range(match.start(), match.end())
        if len(inside) > LONGEST_WORD:
            continue
        is_doubtful = match[0] not in words or any(found[i] < DOUBTFUL for i in inside)
        if is_doubtful and not any(fixed[i] for i in inside):
            yield Region(match.start(), match.end())
    yield from _other_regions(start, len(text), found, fixed)


def _other_regions(
    start: int, stop: int, found: Sequence[float], fixed: Sequence[bool]
) -> Iterator[Region]:
    for i in range(start, stop):
        if found[i] < 0.5 and not fixed[i]:
            yield Region(i, i + 1)


def word_candidates(
    written: str, suggested: str, words: WordList, edits: EditModel
) -> list[Candidate]:
    """Return what may be right in place of a text, most likely first by frequency and edits.

    Args:
        written: A word, or another character.
        suggested: The most likely text of the same length, by the posterior of each position.
        words: Known words.
        edits: Probabilities of mistakes.
    """
    proposals = {suggested}
    if _WRITTEN.fullmatch(written):
        for word in words.near(written):
            proposals.update(_in_cases(written, word))
        proposals.update(_splits(written, words))
    proposals.discard(written)
    prior = {
        Candidate(right, log_probability): log_probability
        + FREQUENCY_SCALE * words.log_frequency(right)
        for right in proposals
        for log_probability in [edits.log_probability(written, right)]
    }
    ranked = sorted(prior, key=lambda c: (-prior[c], c.text))
    kept = [c for c in ranked[:MAX_CANDIDATES] if prior[c] > prior[ranked[0]] - PLAUSIBLE]
    # the network's own suggestion is always scored
    return kept + [c for c in ranked if c.text == suggested and c not in kept]


def _in_cases(written: str, word: str) -> Iterable[str]:
    """Yield a lower-case word in the case of the written one, whose first letter may be wrong."""
    if "’" in written:
        word = word.replace("'", "’")
    if written[:1].isupper():
        yield word[:1].upper() + word[1:]
        return
    yield word
    if word[:1] != written[:1]:
        yield word[:1].upper() + word[1:]


def _splits(written: str, words: WordList) -> Iterable[str]:
    """Yield two frequent words without the space between them; a rare word may be a prefix."""
    for i in range(1, len(written)):
        if min(words.frequency(written[:i]), words.frequency(written[i:])) >= _FREQUENT:
            yield f"{written[:i]} {written[i:]}"
