"""Scores of candidates: log odds that a candidate is right, against the text that was found.

    score(c) = a (PLL(c) - max PLL) + b log f(c) + e log P(found | c) + the constants below

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

LIKELIHOOD: Final = 0.25, 0.05
"""Of words of at most six letters, and of longer ones, which frequency and edits decide."""

FREQUENCY: Final = 0.796
MISTAKE: Final = 0.269
CONSTANT: Final = 12.35
NAME: Final = -3.6
"""Of a word with a capital, which is a name more often than a mistake."""

TWO_WORDS: Final = -2.5
SHORT: Final = -1.8
"""For each letter that a word is shorter than six: short words are near many others."""

SHORT_LETTERS: Final = 6

REPEATED: Final = -0.7
"""For each doubling of the number of times that a text has the word."""

DECIDED: Final = 5.0, 1.5
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
        + TWO_WORDS * (" " in candidate.text)
        for candidate in place.candidates
    ]


def likelihood_scale(found: str) -> float:
    """Return the factor a of a word."""
    return LIKELIHOOD[len(found) > SHORT_LETTERS]


def contenders(found: str, scores: Sequence[float]) -> list[int]:
    """Return the candidates between which the network decides; none if one is far ahead."""
    least = max(scores) - DECIDED[len(found) > SHORT_LETTERS]
    near = [i for i, score in enumerate(scores) if score > least]
    return near if len(near) > 1 else []
