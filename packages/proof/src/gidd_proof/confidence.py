"""Scores of candidates: log odds that a candidate is right, against the text that was found.

An unknown word, with the frequency f, what neighbours add (`contexts`), and the probability of the
mistake:

    score(c) = b log f(c) + g gain(c) + e log P(found | c) + a (PLL(c) - max PLL) + constants

with the pseudo-log-likelihood PLL of the network for long words whose candidates are close. A known
word:

    score(c) = b' log(f(c) / f(found)) + g' (gain(c) - gain(found)) + constant

The constants are those of conditional logits fitted to `wikipedia-dev` and to held-out text of the
corpus with mistakes; the softmax of the scores, with 0 for the found text, are the confidences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from gidd_proof.candidates import LISTED, Candidate, Place
from gidd_proof.contexts import Contexts
from gidd_proof.words import WordList, normal

LIKELIHOOD: Final = 0.2
FREQUENCY: Final = 0.78
CONTEXT: Final = 0.57
MISTAKE: Final = 0.365
CONSTANT: Final = 12.97
LONGER: Final = -0.28
"""For each letter that a candidate is longer than the found word."""

NAME: Final = -5.6
"""Of a word with a capital within a sentence, which is a name more often than a mistake."""

CAPITAL: Final = -4.2
"""Of a word with a capital at the beginning of a sentence."""

NO_CAPITALS: Final = -1.5
"""Of a word of a text without capitals, which may be a name."""

TWO_WORDS: Final = -3.6
SHORT: Final = -1.25
"""For each letter that a word is shorter than six: short words are near many others."""

TWO_LETTERS: Final = -1.3
"""Of a word of two letters, in addition."""

LONG: Final = 0.45
"""For each letter, up to four, that a word without a capital is longer than six."""

SHORT_LETTERS: Final = 6
"""Words of at most this many letters are not read by the network: neighbours say more, and with
them its likelihood does not help."""

HYPHEN: Final = -4.0
"""Of a part of a word with hyphens."""

QUOTE: Final = -1.0
"""For each side with a quotation mark: single words in quotes are terms and foreign words."""

AFTER_NUMBER: Final = -2.0
"""Of a word of at most three letters after a number, which is a unit."""

STEM: Final = -1.5
"""Of a known word with a prefix or an ending."""

PLURAL: Final = -1.5
"""Of a known word with an s, in addition."""

SHORTENED: Final = -1.0
"""Of a candidate that is the beginning of the found word: foreign words have other endings."""

REPEATED: Final = -0.83
"""For each doubling of the number of times that a text has the word."""

KNOWN_FREQUENCY: Final = 0.13
KNOWN_CONTEXT: Final = 0.46
KNOWN_CONSTANT: Final = -4.8
CONFUSED_FREQUENCY: Final = 0.51
CONFUSED_CONTEXT: Final = 0.6
CONFUSED_CONSTANT: Final = -2.7
"""Of words that writers confuse (`confusions.txt`): mistakes are more likely."""

KNOWN_CAPITAL: Final = -0.5

DECIDED: Final = 3.0
"""Candidates that are behind by more, in nats, are not read: likelihoods rarely differ by more."""

HOPELESS: Final = -3.0
"""Places whose best candidate has a lower score are not read."""

_CROP = 64
"""Characters of a candidate with its context: crops of one length share forward passes."""

_SCORED = 10
"""Characters on each side of a candidate whose likelihood is added."""


class Crop(NamedTuple):
    """A short text, and the section text[start:stop] that is scored."""

    text: str
    start: int
    stop: int


def crop(text: str, place: Place, candidate: str) -> Crop:
    """Return a candidate in its context, as long as others where the text is long enough."""
    room = max(0, _CROP - len(candidate))
    before = text[max(0, place.start - room // 2) : place.start]
    after = text[place.stop : place.stop + room - len(before)]
    stop = len(before) + len(candidate)
    scored = max(0, len(before) - _SCORED), stop + min(_SCORED, len(after))
    return Crop(before + candidate + after, *scored)


def prior_scores(
    written: str, place: Place, words: WordList, contexts: Contexts, occurrences: int
) -> list[float]:
    """Return the score of each candidate without the network.

    Args:
        written: The word of the text.
        place: Its place, with the candidates.
        words: Known words, with their frequencies.
        contexts: Words that writers confuse.
        occurrences: How often the text has this word.
    """
    if place.written is not None:
        return _known_scores(place.written, place, words, contexts)
    around, lower = place.surroundings, normal(written)
    constant = (
        CONSTANT
        + SHORT * max(0, SHORT_LETTERS - len(written))
        + TWO_LETTERS * (len(written) == 2)
        + REPEATED * math.log2(max(1, occurrences))
        + NO_CAPITALS * (not place.has_capitals)
        + HYPHEN * around.has_hyphen
        + QUOTE * around.quotes
        + AFTER_NUMBER * (around.follows_number and len(written) <= 3)
        + STEM * words.has_stem(written)
        + PLURAL * (lower.endswith("s") and lower[:-1] in words)
    )
    if written[:1].isupper():
        constant += CAPITAL if place.begins_sentence else NAME
    else:
        constant += LONG * min(4, max(0, len(written) - SHORT_LETTERS))
    return [
        constant
        + FREQUENCY * words.log_frequency(candidate.text)
        + CONTEXT * candidate.gain
        + MISTAKE * candidate.log_probability
        + LONGER * (len(candidate.text) - len(written))
        + TWO_WORDS * (" " in candidate.text)
        + SHORTENED * lower.startswith(normal(candidate.text))
        + LISTED * candidate.is_listed
        for candidate in place.candidates
    ]


def _known_scores(
    written: Candidate, place: Place, words: WordList, contexts: Contexts
) -> list[float]:
    around = place.surroundings
    constant = (
        KNOWN_CAPITAL * written.text[:1].isupper()
        + HYPHEN * around.has_hyphen
        + QUOTE * around.quotes
    )
    frequency, confused = words.log_frequency(written.text), contexts.confused(written.text)
    scores: list[float] = []
    for candidate in place.candidates:
        more_frequent = words.log_frequency(candidate.text) - frequency
        fits = candidate.gain - written.gain
        if normal(candidate.text) in confused:
            score = CONFUSED_CONSTANT + CONFUSED_FREQUENCY * more_frequent + CONFUSED_CONTEXT * fits
        else:
            score = KNOWN_CONSTANT + KNOWN_FREQUENCY * more_frequent + KNOWN_CONTEXT * fits
        scores.append(score + constant)
    return scores


def contenders(place: Place, scores: Sequence[float]) -> list[int]:
    """Return the candidates between which the network decides; none if one is far ahead."""
    best = max(scores)
    near = [i for i, score in enumerate(scores) if score > best - DECIDED]
    is_long = place.stop - place.start > SHORT_LETTERS
    return near if place.written is None and is_long and len(near) > 1 and best > HOPELESS else []
