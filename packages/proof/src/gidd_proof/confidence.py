"""Scores of candidates: log odds that a candidate is right, against the text that was found.

    score(c) = a (PLL(c) - max PLL) + b log f(c) + e log P(found | c) + the constants below

with a = 0 for words of more than six letters.

PLL is the pseudo-log-likelihood around the word, f the word frequency and P the probability of the
mistake. All constants are those of a conditional logit fitted to `wikipedia-dev`; the softmax of
the scores, with 0 for the found text, are the confidences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from gidd_proof.candidates import Place
from gidd_proof.scorer import Crop
from gidd_proof.words import WordList

LIKELIHOOD: Final = 0.355
FREQUENCY: Final = 0.647
MISTAKE: Final = 0.306
CONSTANT: Final = 11.13
LONGER: Final = -0.6
"""For each letter that a candidate is longer than the found word."""

NAME: Final = -3.7
"""Of a word with a capital, which is a name more often than a mistake."""

TWO_WORDS: Final = -2.4
SHORT: Final = -1.53
"""For each letter that a word is shorter than six: short words are near many others."""

SHORT_LETTERS: Final = 6
"""Longer words are not read by the network: frequency and edits decide, and it does not help."""

REPEATED: Final = -0.7
"""For each doubling of the number of times that a text has the word."""

DECIDED: Final = 6.0
"""Candidates that are behind by more, in nats, are not read: likelihoods rarely differ by more."""

_CROP = 64
"""Characters of a candidate with its context: crops of one length share forward passes."""

_SCORED = 10
"""Characters on each side of a candidate whose likelihood is added."""


def crop(text: str, place: Place, candidate: str) -> Crop:
    """Return a candidate in its context, as long as others where the text is long enough."""
    room = max(0, _CROP - len(candidate))
    before = text[max(0, place.start - room // 2) : place.start]
    after = text[place.stop : place.stop + room - len(before)]
    stop = len(before) + len(candidate)
    scored = max(0, len(before) - _SCORED), stop + min(_SCORED, len(after))
    return Crop(before + candidate + after, *scored)


def prior_scores(found: str, place: Place, words: WordList, occurrences: int) -> list[float]:
    """Return the score of each candidate without the network.

    Args:
        found: The text that was found.
        place: Its place, with the candidates.
        words: Known words, with their frequencies.
        occurrences: How often the text has the found word.
    """
    constant = (
        CONSTANT
        + SHORT * max(0, SHORT_LETTERS - len(found))
        + REPEATED * math.log2(max(1, occurrences))
    )
    if found[:1].isupper():
        constant += NAME
    return [
        constant
        + FREQUENCY * words.log_frequency(candidate.text)
        + MISTAKE * candidate.log_probability
        + LONGER * (len(candidate.text) - len(found))
        + TWO_WORDS * (" " in candidate.text)
        for candidate in place.candidates
    ]


def contenders(found: str, scores: Sequence[float]) -> list[int]:
    """Return the candidates between which the network decides; none if one is far ahead."""
    near = [i for i, score in enumerate(scores) if score > max(scores) - DECIDED]
    return near if len(near) > 1 and len(found) <= SHORT_LETTERS else []
