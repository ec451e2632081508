"""Regular expressions as automata over the tokens of a model.

Python's own parser reads the expression. Its positions are the states of Glushkov's automaton,
subsets of them those of a deterministic one over characters, and each token is a path through that.
Sizes are limited before and while they grow, so a hostile expression is refused in under a second.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, NamedTuple, cast

import numpy as np

from gidd.common.terminal import shorten
from gidd.errors import ConfigError
from gidd.pipeline.text import TokenDecoder
from gidd.sampling.automaton import MAX_EDGES, Automaton, too_large

MAX_CHARACTERS = 20_000
_MAX_POSITIONS, _MAX_STATES, _MAX_WORK = 5_000, 4_096, 400_000
_CATEGORIES = {
    f"CATEGORY_{negated}{name}": pattern.swapcase() if negated else pattern
    for name, pattern in (("DIGIT", r"\d"), ("SPACE", r"\s"), ("WORD", r"\w"))
    for negated in ("", "NOT_")
}
_UNSUPPORTED = {
    "AT": "an anchor other than ^ at its beginning and $ at its end",
    "ASSERT": "a lookahead or lookbehind",
    "ASSERT_NOT": "a lookahead or lookbehind",
    "GROUPREF": "a reference to a group",
    "GROUPREF_EXISTS": "a reference to a group",
    "ATOMIC_GROUP": "an atomic group",
    "POSSESSIVE_REPEAT": "a possessive repeat",
}


class TokenTexts:
    """The texts of the tokens that a constraint may use.

    Special tokens and parts of characters are none of them.
    """

    def __init__(self, decoder: TokenDecoder) -> None:
        tokenizer = decoder.tokenizer
        special = tokenizer.unknown_ids | tokenizer.terminator_ids | {tokenizer.vocab.mask_id}
        self.size = tokenizer.vocab.size
        texts = {v: decoder.decode_one(v) for v in range(self.size) if v not in special}
        self.texts = {v: text for v, text in texts.items() if text and "\ufffd" not in text}
        self.alphabet = "".join(sorted(set().union(*self.texts.values())))
        self.drops_space = decoder.drops_space
        """Whether the first token of a text loses the space that it begins with."""


class _Part(NamedTuple):
    """A part of an expression: whether it can be empty, its first and last positions (bits)."""

    is_nullable: bool
    first: int
    last: int


_EMPTY = _Part(True, 0, 0)


class _Positions:
    """Glushkov's automaton of a parsed expression, over the characters of an alphabet."""

    def __init__(self, alphabet: str) -> None:
        self.alphabet = alphabet
        self._codes = np.array([ord(c) for c in alphabet])
        self.sets: list[np.ndarray[Any, Any]] = []
        """Characters of each position, as flags."""
        self.follow: list[int] = []

    def sequence(self, items: Any) -> _Part:
        part = _EMPTY
        for op, argument in items:
            new = self._item(str(op), argument)
            self._connect(part.last, new.first)
            part = _Part(
                part.is_nullable and new.is_nullable,
                part.first | (new.first if part.is_nullable else 0),
                new.last | (part.last if new.is_nullable else 0),
            )
        return part

    def _item(self, op: str, argument: Any) -> _Part:
        if op == "BRANCH":
            parts = [self.sequence(branch) for branch in argument[1]]
            flags, first, last = False, 0, 0
            for part in parts:
                flags, first, last = flags or part.is_nullable, first | part.first, last | part.last
            return _Part(flags, first, last)
        if op == "SUBPATTERN":
            return self.sequence(argument[3])
        if op in ("MAX_REPEAT", "MIN_REPEAT"):
            return self._repeat(*argument)
        self.sets.append(self._characters(op, argument))
        self.follow.append(0)
        bit = 1 << len(self.sets) - 1
        return _Part(False, bit, bit)

    def _repeat(self, least: int, most: Any, items: Any) -> _Part:
        """Return x{least,most} as x(x(x)?)?: a position follows only those of one copy."""
        if most == 0:
            return _EMPTY
        has_end = isinstance(most, int) and str(most) != "MAXREPEAT"
        copy = self.sequence(items)
        least = 0 if copy.is_nullable else least
        first, last = copy.first, copy.last if least <= 1 else 0
        for k in range(2, (most if has_end else max(least, 1)) + 1):
            before, copy = copy, self.sequence(items)
            self._connect(before.last, copy.first)
            last |= copy.last if k >= least else 0
        if not has_end:
            self._connect(copy.last, copy.first)
        return _Part(least == 0, first, last)

    def _connect(self, last: int, first: int) -> None:
        for i in _bits(last):
            self.follow[i] |= first

    def _characters(self, op: str, argument: Any) -> np.ndarray[Any, Any]:
        codes = self._codes
        if op == "LITERAL":
            return codes == argument
        if op == "NOT_LITERAL":
            return codes != argument
        if op == "RANGE":
            return (codes >= argument[0]) & (codes <= argument[1])
        if op == "ANY":
            return codes != ord("\n")
        if op == "CATEGORY":
            members = re.findall(_CATEGORIES[str(argument)], self.alphabet)
            return np.isin(codes, [ord(c) for c in members])
        items = [(str(op), argument) for op, argument in argument]  # IN
        is_negated = items[0][0] == "NEGATE"
        sets = [self._characters(*item) for item in items[is_negated:]]
        return np.logical_or.reduce(sets) ^ is_negated


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _size(items: Any) -> int:
    """Return a bound on the work of an expression; refuse what no automaton recognizes."""
    total = 1
    for op, argument in items:
        name = str(op)
        if name in _UNSUPPORTED:
            raise _unsupported(_UNSUPPORTED[name])
        if name == "BRANCH":
            total += sum(map(_size, argument[1]))
        elif name == "SUBPATTERN":
            if argument[1] or argument[2]:
                raise _unsupported("a flag")
            total += _size(argument[3])
        elif name.endswith("REPEAT"):
            least, most, repeated = argument
            copies = max(least, 1) if str(most) == "MAXREPEAT" else most
            total += copies * _size(repeated)
        else:
            total += 1
    return total


def _unsupported(problem: str) -> ConfigError:
    return ConfigError(f"pattern must not have {problem}: no automaton recognizes it.")


def _parse(pattern: str) -> list[Any]:
    try:
        re.compile(pattern)
        parsed = import_module("re._parser").parse(pattern)
    except (re.error, OverflowError) as error:
        raise ConfigError(f"pattern must be a regular expression, got {error}.") from error
    except RecursionError as error:
        raise ConfigError("pattern must have fewer parentheses inside of each other.") from error
    if parsed.state.flags & ~int(re.UNICODE):
        raise _unsupported("a flag")
    items = list(parsed)
    if items and str(items[0][1]) in ("AT_BEGINNING", "AT_BEGINNING_STRING"):
        items = items[1:]
    if items and str(items[-1][1]) in ("AT_END", "AT_END_STRING"):
        items = items[:-1]
    return items


def compile_pattern(pattern: str, tokens: TokenTexts, *, at_start: bool = False) -> Automaton:
    """Return the automaton of all tokens whose text matches a regular expression as a whole.

    `at_start` says that the text has nothing before it. Raise `ConfigError` if the expression is
    none, too large, or beyond automata, as a lookahead is.
    """
    if not isinstance(cast(object, pattern), str) or not 0 < len(pattern) <= MAX_CHARACTERS:
        limits = f"a regular expression of 1 to {MAX_CHARACTERS:,} characters"
        raise ConfigError(f"pattern must be {limits}, got {shorten(pattern)}.")
    name = f"the pattern {shorten(pattern)}"
    items = _parse(pattern)
    if _size(items) > _MAX_POSITIONS:
        raise too_large(name)
    positions = _Positions(tokens.alphabet)
    part = positions.sequence(items)
    columns, char_class = _character_classes(positions)
    table, is_accepting = _deterministic(positions, part, columns, name)
    return _over_tokens(tokens, table, is_accepting, char_class, at_start=at_start, name=name)


def _character_classes(positions: _Positions) -> tuple[list[int], dict[int, str]]:
    """Return the positions that read each class of characters, and a class for each character."""
    distinct: dict[bytes, list[int]] = {}
    for i, flags in enumerate(positions.sets):
        distinct.setdefault(np.packbits(flags).tobytes(), []).append(i)
    members = [sum(1 << i for i in group) for group in distinct.values()]
    packed = [positions.sets[group[0]] for group in distinct.values()]
    flags = np.array(packed).reshape(len(packed), len(positions.alphabet))
    patterns, label = np.unique(flags, axis=1, return_inverse=True)
    columns = [
        sum(member for member, is_in in zip(members, column, strict=True) if is_in)
        for column in patterns.T
    ]
    pairs = zip(positions.alphabet, label.ravel().tolist(), strict=True)
    return columns, {ord(character): chr(label) for character, label in pairs}


def _deterministic(
    positions: _Positions, part: _Part, columns: list[int], name: str
) -> tuple[np.ndarray[Any, Any], list[bool]]:
    """Return the next state of each state and class of characters, -1 if there is none."""
    start = 1 << len(positions.sets)
    follow = [*positions.follow, part.first]
    accepting = part.last | (start if part.is_nullable else 0)
    states, rows, work = {start: 0}, list[list[int]](), 0
    queue = [start]
    for state in queue:
        reached = 0
        for i in _bits(state):
            reached |= follow[i]
            work += 1
        row = list[int]()
        for column in columns:
            target = reached & column
            if target and target not in states:
                states[target] = len(states)
                queue.append(target)
            row.append(states[target] if target else -1)
        rows.append(row)
        if len(states) > _MAX_STATES or work > _MAX_WORK:
            raise too_large(name)
    return np.array(rows).reshape(len(rows), -1), [bool(state & accepting) for state in queue]


def _over_tokens(
    tokens: TokenTexts,
    table: np.ndarray[Any, Any],
    is_accepting: Sequence[bool],
    char_class: dict[int, str],
    *,
    at_start: bool,
    name: str,
) -> Automaton:
    """Return the automaton whose edges are the paths of tokens through one over characters.

    State 0 is the beginning, where a token may lose its space; state i + 1 is i of the table.
    """
    drops_space = at_start and tokens.drops_space
    words: dict[tuple[str, bool], list[int]] = {}
    for token, text in tokens.texts.items():
        has_space = drops_space and text[0] == " "
        words.setdefault((text.translate(char_class), has_space), []).append(token)
    token_class = np.full(tokens.size, -1)
    labels: dict[bytes, int] = {}
    edges, num_edges = list[np.ndarray[Any, Any]](), 0
    everywhere = np.arange(len(table))
    stack, dead = [("", everywhere, everywhere)], None
    for (word, has_space), members in sorted(words.items()):
        begin = _run(table, word[1:] if has_space else word)
        if dead is not None and word.startswith(dead):
            source = target = everywhere[:0]
        else:
            dead = None
            while not word.startswith(stack[-1][0]):
                stack.pop()
            prefix, source, target = stack[-1]
            for k in range(len(prefix), len(word)):
                target = table[target, ord(word[k])]
                is_alive = target >= 0
                source, target = source[is_alive], target[is_alive]
                if not len(source):
                    dead = word[: k + 1]
                    break
                stack.append((word[: k + 1], source, target))
        pairs = np.stack([source + 1, target + 1], 1)
        if begin >= 0:
            pairs = np.concatenate([[[0, begin + 1]], pairs])
        if not len(pairs):
            continue
        key = pairs.tobytes()
        if key not in labels:
            labels[key] = len(labels)
            column = np.full(len(pairs), labels[key])
            edges.append(np.stack([pairs[:, 0], column, pairs[:, 1]], 1))
            num_edges += len(pairs)
            if num_edges > MAX_EDGES:
                raise too_large(name)
        token_class[members] = labels[key]
    token_class[token_class < 0] = len(labels)
    all_edges = np.concatenate(edges) if edges else np.zeros((0, 3), dtype=np.int64)
    accepting = np.array([is_accepting[0], *is_accepting])
    return Automaton(token_class, len(labels), all_edges, accepting, name)


def _run(table: np.ndarray[Any, Any], word: str) -> int:
    """Return the state after a word of classes; -1 if there is none."""
    state = 0
    for character in word:
        state = int(table[state, ord(character)])
        if state < 0:
            break
    return state
