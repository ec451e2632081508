"""Doubtful words of a text, and candidates for what may be right there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from gidd_proof.contexts import UNKNOWN, Contexts, Neighbours
from gidd_proof.edit_model import EditModel
from gidd_proof.misspellings import Misspellings
from gidd_proof.words import FREQUENCY_SCALE, LONGEST_WORD, WordList, normal

if TYPE_CHECKING:
    from gidd.pipeline import Span

MAX_CANDIDATES: Final = 8
"""Candidates of one place."""

PLAUSIBLE: Final = 8.0
"""Candidates that are less likely than the best one by more than this, in nats, are left out."""

MIN_ODDS: Final = 2.0
"""Known words are doubtful if neighbours and frequency prefer a candidate by this, in nats."""

LISTED: Final = 5.0
"""Log odds that the list of misspellings adds to its correction."""

WRITTEN: Final = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
"""Letters, with apostrophes between them."""

_HYPHENS = frozenset("-–")
_QUOTES = frozenset("\"'“”‘’«»")
_LATIN = re.compile(r"[A-Za-zÀ-ɏḀ-ỿ'’]+")
_SENTENCE_END = re.compile(r"(?:[a-z)\d][.!?][\"”’']? +|\A\s*)[\"“‘'(]?$")
_FREQUENT = 2e-5
"""Frequency of words between which a space may have been dropped."""

_COMPARED = 48, 12
"""Near words whose neighbours are compared, and of these whose edits are compared."""

_NATS_PER_EDIT = 6.0
_CONTEXT_SCALE = 0.5
_WORDS_AT_ONCE = 1 << 9
"""Known words that are compared together: memory does not depend on the length of a text."""

_MAX_KNOWN = 3
"""Candidates of a known word."""


class Candidate(NamedTuple):
    """A text that may be right at a place."""

    text: str

    log_probability: float
    """Log of the probability to write the text that was found instead."""

    gain: float = 0.0
    """What the words around it add to its log probability."""

    is_listed: bool = False
    """Whether the text that was found is a common misspelling of it."""


class Surroundings(NamedTuple):
    """Characters around a word that make a mistake less likely."""

    has_hyphen: bool = False
    quotes: int = 0
    """Number of its sides with a quotation mark."""

    follows_number: bool = False

    @classmethod
    def of(cls, text: str, start: int, stop: int) -> Surroundings:
        """Return the surroundings of text[start:stop]."""
        sides = text[max(0, start - 1) : start], text[stop : stop + 1]
        return cls(
            any(side in _HYPHENS for side in sides),
            sum(side in _QUOTES for side in sides),
            text[max(0, start - 2) : start - 1].isdigit() and sides[0] in " -",
        )


class Place(NamedTuple):
    """A word that may be wrong: text[start:stop], and what may be right."""

    start: int
    stop: int
    candidates: tuple[Candidate, ...]
    begins_sentence: bool = False
    surroundings: Surroundings = Surroundings()
    has_capitals: bool = True
    """Whether the text has capitals; without them, names look like mistakes."""

    written: Candidate | None = None
    """The word of the text, if it is a known word."""


def find_places(
    text: str,
    protected: Sequence[Span],
    words: WordList,
    edits: EditModel,
    contexts: Contexts,
    check_time: Callable[[], None] = lambda: None,
) -> list[Place]:
    """Return the words that may be wrong and have candidates, in order.

    Args:
        text: The text.
        protected: Spans that are never changed, in order of their beginnings.
        words: Known words.
        edits: Probabilities of mistakes.
        contexts: What the neighbours of a word say about it.
        check_time: Called for each word; it may raise.
    """
    tokens = contexts.tokens(text)
    finder = CandidateFinder(words, edits, contexts, text != text.lower())
    misspellings = Misspellings.packaged()
    places: list[Place] = []
    known: list[tuple[re.Match[str], bool, Neighbours]] = []
    for match in unprotected_words(text, protected):
        check_time()
        written, start = match[0], match.start()
        begins = begins_sentence(text, start)
        is_listed = written in misspellings and normal(written) not in words.accepted
        if written in words and not is_listed:
            if written == written.lower() or begins:
                known.append((match, begins, tokens.around(start)))
        elif 1 < len(written) <= LONGEST_WORD and _LATIN.fullmatch(written):
            candidates = finder.of_unknown(written, tokens.around(start), begins)
            if candidates:
                around = Surroundings.of(text, *match.span())
                places.append(Place(*match.span(), candidates, begins, around, finder.has_capitals))
    for first in range(0, len(known), _WORDS_AT_ONCE):
        check_time()
        places += finder.of_known(known[first : first + _WORDS_AT_ONCE])
    return sorted(places)


def unprotected_words(text: str, protected: Sequence[Span]) -> Iterator[re.Match[str]]:
    """Yield the words that no protected span touches."""
    spans, end = iter(protected), 0
    following = next(spans, None)
    for match in WRITTEN.finditer(text):
        while following is not None and following[0] < match.end():
            end, following = max(end, following[1]), next(spans, None)
        if match.start() >= end:
            yield match


def begins_sentence(text: str, start: int) -> bool:
    """Whether a word begins the text or follows the end of a sentence."""
    return _SENTENCE_END.search(text, max(0, start - 8), start) is not None


class CandidateFinder(NamedTuple):
    """Finds what may be right in place of a word."""

    words: WordList
    edits: EditModel
    contexts: Contexts
    has_capitals: bool
    """Whether the text has capitals; without them, candidates have none."""

    def of_unknown(
        self, written: str, neighbours: Neighbours, begins: bool = False
    ) -> tuple[Candidate, ...]:
        """Return what may be right in place of an unknown word, most likely first."""
        priors = {
            word: FREQUENCY_SCALE * self.words.log_frequency(word) - _NATS_PER_EDIT * distance
            for word, distance in self.words.near(written)
        }
        listed = Misspellings.packaged().corrections(written, self.words)
        for word in listed:
            priors.pop(normal(word), None)
        rough = sorted(priors, key=lambda word: -priors[word])[: _COMPARED[0]]
        others = list(dict.fromkeys([*listed, *_splits(written, self.words)]))
        values = self.contexts.gains((neighbours, text) for text in [*rough, *others])
        gains = dict(zip([*rough, *others], values.tolist(), strict=True))
        rough.sort(key=lambda word: -priors[word] - _CONTEXT_SCALE * gains[word])
        scored: list[tuple[float, str, Candidate]] = []
        for word in dict.fromkeys([*rough[: _COMPARED[1]], *others]):
            edits = self.edits.log_probability(written.lower(), word)
            prior = FREQUENCY_SCALE * self.words.log_frequency(word) + _CONTEXT_SCALE * gains[word]
            is_listed = word in listed
            cased = self._in_case(written, word, begins, is_listed=is_listed)
            candidate = Candidate(cased, edits, gains[word], is_listed)
            scored.append((prior + edits + LISTED * is_listed, cased, candidate))
        scored.sort(key=lambda item: (-item[0], item[1]))
        return tuple(
            candidate
            for score, cased, candidate in scored[:MAX_CANDIDATES]
            if score > scored[0][0] - PLAUSIBLE and cased != written
        )

    def of_known(self, known: Sequence[tuple[re.Match[str], bool, Neighbours]]) -> Iterator[Place]:
        """Yield the known words between whose neighbours another word is far more likely."""
        options = [
            [match[0], *self.contexts.near(match[0])]
            if self.contexts.token(match[0]) != UNKNOWN
            and normal(match[0]) not in self.words.accepted
            else []
            for match, _, _ in known
        ]
        gains = iter(
            self.contexts.gains(
                (neighbours, word)
                for (_, _, neighbours), near in zip(known, options, strict=True)
                for word in near
            ).tolist()
        )
        for (match, begins, _), near in zip(known, options, strict=True):
            values = [next(gains) for _ in near]
            odds = [
                self.words.log_frequency(word) + gain
                for word, gain in zip(near, values, strict=True)
            ]
            better = [i for i in range(1, len(near)) if odds[i] > odds[0] + MIN_ODDS]
            better.sort(key=lambda i: -odds[i])
            written = match[0]
            candidates = tuple(
                Candidate(
                    self._in_case(written, near[i], begins),
                    self.edits.log_probability(written.lower(), near[i]),
                    values[i],
                )
                for i in better[:_MAX_KNOWN]
            )
            if candidates:
                was = Candidate(written, 0.0, values[0])
                around = Surroundings.of(match.string, *match.span())
                yield Place(*match.span(), candidates, begins, around, self.has_capitals, was)

    def _in_case(self, written: str, word: str, begins: bool, *, is_listed: bool = False) -> str:
        """Return a word in the case that the found one should have."""
        if "’" in written:
            word = word.replace("'", "’")
        is_capital = begins or (self.contexts.is_name(word) and not is_listed)
        if written[:1].isupper() or (is_capital and self.has_capitals):
            return word[:1].upper() + word[1:]
        return word


def _splits(written: str, words: WordList) -> Iterable[str]:
    """Yield two frequent words without the space between them; a rare word may be a prefix."""
    written = written.lower()
    for i in range(1, len(written)):
        if min(words.frequency(written[:i]), words.frequency(written[i:])) >= _FREQUENT:
            yield f"{written[:i]} {written[i:]}"
