"""Places of a text to judge, and what might be right there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from gidd.proofreading.edit_costs import EditCosts
from gidd.proofreading.words import FREQUENCY_SCALE, LONGEST_WORD, WordList

MAX_CANDIDATES: Final = 8
"""Candidates of one place that the network judges."""

PLAUSIBLE: Final = 7.0
"""Candidates that frequency and edits alone make less likely than the best by more than this, in
nats, are not judged: they hardly ever win."""

_WRITTEN = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
"""What a writer may have meant as a word: letters and digits, with apostrophes between them."""

DOUBTFUL: Final = 0.99
"""A word is judged if the posterior of one of its characters is below this."""


_FREQUENT = 2e-5
"""Share of the corpus of a frequent word."""


class Region(NamedTuple):
    """A word, or characters that are not part of one: text[start:stop]."""

    start: int
    stop: int


class TextCandidate(NamedTuple):
    """A text that may be right at a region."""

    text: str

    log_probability: float
    """Log of the probability to write what was found instead; 0 for the found text itself."""


def doubtful_regions(
    text: str, found: Sequence[float], fixed: Sequence[bool], words: WordList
) -> Iterator[Region]:
    """Yield the words that may be wrong, and runs of other characters that probably are.

    A word is judged if it is unknown, or if one of its characters is doubtful. Words with a fixed
    position and words that are too long to be words are left out.

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
    text: str, region: Region, suggested: str, words: WordList, costs: EditCosts
) -> list[TextCandidate]:
    """Return what might be right at a region, most likely first by frequency and edits.

    Args:
        text: The text.
        region: A word of the text, or other characters.
        suggested: The most likely text of the same length, by the posterior of each position.
        words: Known words.
        costs: Of the edits.
    """
    written = text[region.start : region.stop]
    proposals = {suggested}
    if _WRITTEN.fullmatch(written):
        for word in words.near(written):
            proposals.update(_in_cases(written, word))
        proposals.update(_splits(written, words))
    proposals.discard(written)
    prior = {
        TextCandidate(right, log_probability): log_probability
        + FREQUENCY_SCALE * words.log_frequency(right)
        for right in proposals
        for log_probability in [costs.log_probability(written, right)]
    }
    ranked = sorted(prior, key=lambda c: (-prior[c], c.text))
    kept = [c for c in ranked[:MAX_CANDIDATES] if prior[c] > prior[ranked[0]] - PLAUSIBLE]
    # the network's own suggestion is always judged
    return kept + [c for c in ranked if c.text == suggested and c not in kept]


def _in_cases(written: str, word: str) -> Iterable[str]:
    """Yield a lower-case word in the case of the written one, which a wrong initial may hide."""
    if "’" in written:
        word = word.replace("'", "’")
    if len(written) > 1 and written.isupper():
        yield word.upper()
    elif written[:1].isupper():
        yield word[:1].upper() + word[1:]
    else:
        yield word
        if word[:1] != written[:1]:
            yield word[:1].upper() + word[1:]


def _splits(written: str, words: WordList) -> Iterable[str]:
    """Yield two frequent words between which a space was dropped; rare ones may be a prefix."""
    for i in range(1, len(written)):
        if min(words.share(written[:i]), words.share(written[i:])) >= _FREQUENT:
            yield f"{written[:i]} {written[i:]}"
