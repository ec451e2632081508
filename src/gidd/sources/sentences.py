"""A source of small sentences: mistakes in them are visible, and their likelihood is exact.

    the old cats sleep .        agreement of noun and verb
    anna met bob and bob greeted anna .        names that return
    3 + 4 = 7 .        sums
    ( [ x ] y ) .        brackets, up to three deep

It is a hidden Markov source: a state is a place in a sentence and what must be remembered there. A
few words are replaced by random ones, so that no text is impossible.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from gidd.sources.base import stationary_distribution
from gidd.sources.markov import HiddenMarkovSource

_State = tuple[Any, ...]
"""What must be remembered, and last the word that the state emits."""
_NUMBERS: Final = (0, 1)
_NOUNS = (
    ("cat", "cats"), ("dog", "dogs"), ("bird", "birds"), ("child", "children"), ("king", "kings"),
    ("ship", "ships"),
)  # fmt: skip
_VERBS = (
    ("sleeps", "sleep"), ("runs", "run"), ("sings", "sing"), ("waits", "wait"), ("falls", "fall"),
    ("turns", "turn"),
)  # fmt: skip
_ADJECTIVES, _ADVERBS = ("old", "small", "green"), ("often", "never", "soon")
_NAMES = ("anna", "bob", "carl", "dora", "eric")
_BRACKETS, _LETTERS, _DEEPEST = {"(": ")", "[": "]"}, ("x", "y"), 3
_END: Final[_State] = (".",)


def _agreement(links: dict[_State, list[_State]]) -> list[_State]:
    first: list[_State] = []
    for plurality in _NUMBERS:
        nouns = [("noun", plurality, words[plurality]) for words in _NOUNS]
        verbs = [("verb", plurality, words[plurality]) for words in _VERBS]
        adjectives = [("adjective", plurality, word) for word in _ADJECTIVES]
        adverbs = [("adverb", plurality, word) for word in _ADVERBS]
        first.append(("article", plurality, "the"))
        links[first[-1]] = [*adjectives, *nouns]
        links |= {state: nouns for state in adjectives}
        links |= {state: [*adverbs, *verbs] for state in nouns}
        links |= {state: verbs for state in adverbs}
        links |= {state: [_END] for state in verbs}
    return first


def _names(links: dict[_State, list[_State]]) -> list[_State]:
    for a in _NAMES:
        links[("met", a)] = [("met", a, "met")]
        links[("met", a, "met")] = [("met", a, b, b) for b in _NAMES if b != a]
        for b in _NAMES:
            if b != a:
                words = (b, "and", b, "greeted", a)
                path = [("met", a, b, b), *(("met", a, b, i, w) for i, w in enumerate(words[1:]))]
                following = [*path[1:], _END]
                links |= {state: [other] for state, other in zip(path, following, strict=True)}
    return [("met", a) for a in _NAMES]


def _sums(links: dict[_State, list[_State]]) -> list[_State]:
    for a in range(10):
        links[("sum", "first", a, str(a))] = [("sum", a, "+")]
        links[("sum", a, "+")] = [("sum", "second", a + b, str(b)) for b in range(10 - a)]
        for b in range(10 - a):
            links[("sum", "second", a + b, str(b))] = [("sum", a + b, "=")]
        links[("sum", a, "=")] = [("sum", "result", str(a))]
        links[("sum", "result", str(a))] = [_END]
    return [("sum", "first", a, str(a)) for a in range(10)]


def _brackets(links: dict[_State, list[_State]]) -> list[_State]:
    first: list[_State] = [("in", word, word) for word in _BRACKETS]
    waiting = list(first)
    while waiting:
        state = waiting.pop()
        stack, word = state[1], state[-1]
        if state in links:
            continue
        if not stack:
            links[state] = [_END]
            continue
        following: list[_State] = [("in", stack[:-1], _BRACKETS[stack[-1]])] * 3
        if len(stack) < _DEEPEST:
            following += [("in", stack + other, other) for other in _BRACKETS]
        if word not in _LETTERS:
            following += [("in", stack, letter) for letter in _LETTERS]
        links[state] = following
        waiting += following
    return first


def sentence_source(noise: float = 0.01) -> tuple[HiddenMarkovSource, tuple[str, ...]]:
    """Return the source, and the word of each token; a fraction `noise` of words is random."""
    links: dict[_State, list[_State]] = {}
    kinds = [_agreement(links), _names(links), _sums(links), _brackets(links)]
    states = [_END, *links]
    index = {state: k for k, state in enumerate(states)}
    words = tuple(sorted({state[-1] for state in states}))
    transition = torch.zeros(len(states), len(states), dtype=torch.float64)
    for state, following in links.items():
        for other in following:
            transition[index[state], index[other]] += 1 / len(following)
    for first in kinds:  # each kind of sentence is as frequent as the others
        for state in first:
            transition[0, index[state]] += 1 / len(kinds) / len(first)
    emission = torch.full((len(states), len(words)), noise / len(words), dtype=torch.float64)
    for k, state in enumerate(states):
        emission[k, words.index(state[-1])] += 1 - noise
    initial = stationary_distribution(transition)
    return HiddenMarkovSource(initial / initial.sum(), transition, emission), words
