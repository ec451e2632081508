"""Automata over tokens, and the distribution of the texts that one accepts.

Tokens that every state treats alike are one class, so an edge is (state, class) -> state. For
positions that are independent, each with a weight for every class, `Trellis` computes by the
forward-backward algorithm, in log space, what each position is given that the automaton accepts all
positions together, and draws them together. Only edges on a path that can be accepted are kept: the
sets of states are sparse, and positions with the same edges share them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gidd.errors import ConfigError, DataError

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from numpy import ndarray as Array

MAX_EDGES = 1 << 16
"""Largest number of edges of an automaton: at 256 positions a step then takes about a second."""

_NEVER = -np.inf
_KEPT_TRELLISES = 64


@dataclass(frozen=True, eq=False)
class Automaton:
    """A deterministic automaton over classes of tokens. It begins in state 0."""

    token_class: Int[Array, " V"]
    """The class of each token; `num_classes` for a token that only `any` edges read."""
    num_classes: int
    edges: Int[Array, "E 3"]
    """State, class and next state; the class `num_classes` stands for any token."""
    is_accepting: Bool[Array, " N"]
    name: str = ""
    """What it accepts, for messages."""

    def __post_init__(self) -> None:
        if len(self.edges) > MAX_EDGES:
            raise too_large(self.name)

    @cached_property
    def _next(self) -> dict[tuple[int, int], int]:
        return {(state, label): target for state, label, target in self.edges.tolist()}

    def with_end(self, tokens: Iterable[int]) -> Automaton:
        """Return the automaton of texts that end before any of some tokens; all may follow it."""
        end, label = len(self.is_accepting), self.num_classes
        token_class = np.where(self.token_class == label, label + 1, self.token_class)
        token_class[list(tokens)] = label
        edges = [*self.edges.tolist(), (end, label + 1, end)]
        edges += [(state, label, end) for state in self.is_accepting.nonzero()[0].tolist()]
        accepting = np.append(self.is_accepting, True)
        return Automaton(token_class, label + 1, np.array(edges), accepting, self.name)

    def state_after(self, tokens: Sequence[int]) -> int | None:
        """Return the state after some tokens from the beginning; None if there is none."""
        state: int | None = 0
        for token in tokens:
            read = self._next.get((state, int(self.token_class[token])))
            state = self._next.get((state, self.num_classes)) if read is None else read
            if state is None:
                return None
        return state

    def trellis(self, length: int, num_later: int = 0) -> Trellis:
        """Return the paths of `length` positions which `num_later` more can complete."""
        return _trellis(self, length, num_later)


def too_large(name: str) -> ConfigError:
    """Return the error of an automaton with too many states or edges."""
    return ConfigError(
        f"{name} is too large: its automaton needs too many states. Use fewer or smaller repeats, "
        "such as .* in place of .{1,500}."
    )


def one_of(
    texts: Sequence[Sequence[int]], vocab_size: int, name: str = "the list of texts"
) -> Automaton:
    """Return the automaton of some sequences of tokens: a prefix tree."""
    tokens = sorted({token for text in texts for token in text})
    if unknown := [token for token in tokens if not 0 <= token < vocab_size]:
        raise DataError(f"tokens must be in [0, {vocab_size}), got {unknown[:10]}.")
    classes = {token: label for label, token in enumerate(tokens)}
    tree: dict[tuple[int, int], int] = {}
    ends: set[int] = set()
    for text in texts:
        state = 0
        for token in text:
            state = tree.setdefault((state, classes[token]), len(tree) + 1)
        ends.add(state)
    token_class = np.full(vocab_size, len(tokens))
    token_class[tokens] = range(len(tokens))
    edges = np.array([(*key, target) for key, target in tree.items()], int).reshape(-1, 3)
    is_accepting = np.isin(range(len(tree) + 1), list(ends))
    return Automaton(token_class, len(tokens), edges, is_accepting, name)


class _Groups(NamedTuple):
    """Edges in order of a column, to add up what belongs to equal values of it."""

    order: Int[Array, " E"]
    start: Int[Array, " G"]
    group: Int[Array, " E"]
    value: Int[Array, " G"]

    @classmethod
    def by(cls, column: Int[Array, " E"]) -> _Groups:
        order = np.argsort(column, kind="stable")
        value, start, group = np.unique(column[order], return_index=True, return_inverse=True)
        return cls(order, start, group, value)

    def log_sum(self, values: Float[Array, " E"], size: int) -> Float[Array, " size"]:
        """Return log(sum(exp(values))) of each group, at the group's value."""
        values = values[self.order]
        largest = np.maximum.reduceat(values, self.start)
        largest[largest == _NEVER] = 0
        terms = np.exp(values - largest[self.group])
        result = np.full(size, _NEVER)
        with np.errstate(divide="ignore"):
            result[self.value] = np.log(np.add.reduceat(terms, self.start)) + largest
        return result


class _Edges:
    """The edges that can be used at a position."""

    def __init__(self, edges: Int[Array, "E 3"]) -> None:
        self.source, self.label, self.target = edges.T
        self.by_source, self.by_label, self.by_target = map(_Groups.by, edges.T)


class Trellis:
    """The paths of an automaton through a number of positions. Weights are [L, C + 1] logarithms.

    The last column is the weight of any token.
    """

    def __init__(self, automaton: Automaton, length: int, num_later: int) -> None:
        self._num_states = len(automaton.is_accepting)
        self._num_labels = automaton.num_classes + 1
        source, _, target = automaton.edges.T
        total = length + num_later
        first = np.arange(self._num_states) == 0
        forward = _reached(first, source, target, length)
        backward = _reached(automaton.is_accepting, target, source, total)
        edges: dict[bytes, _Edges] = {}
        self._edges: list[_Edges] = []
        for i in range(length):
            used = forward[i][source] & backward[total - i - 1][target]
            key = used.tobytes()
            if key not in edges:
                edges[key] = _Edges(automaton.edges[used])
            self._edges.append(edges[key])
        self.is_final = backward[num_later]
        """States after the last position from which the later ones can be accepted."""
        any_token = automaton.num_classes
        is_free = {id(e): bool((e.label == any_token).all()) for e in edges.values()}
        self.is_read = np.array([not is_free[id(e)] for e in self._edges], dtype=bool)
        """Positions where the token matters."""
        self.is_possible = all(len(e.label) for e in edges.values())

    def backward(self, weights: Float[Array, "L C"]) -> Float[Array, "L1 N"]:
        """Return log of the weight of all that follows each state, [L + 1, N]."""
        messages = np.full((len(self._edges) + 1, self._num_states), _NEVER)
        messages[-1, self.is_final] = 0
        for i in reversed(range(len(self._edges))):
            e = self._edges[i]
            values = weights[i, e.label] + messages[i + 1, e.target]
            messages[i] = e.by_source.log_sum(values, self._num_states)
        return messages

    def log_total(self, weights: Float[Array, "L C"]) -> float:
        """Return log of the weight of all that is accepted."""
        return float(self.backward(weights)[0, 0]) if self.is_possible else _NEVER

    def messages(self, weights: Float[Array, "L C"]) -> Float[Array, "L C"]:
        """Return log of the weight of all other positions, for each class at each position."""
        backward, forward = self.backward(weights), np.full(self._num_states, _NEVER)
        forward[0] = 0
        result = np.empty_like(weights)
        for i, e in enumerate(self._edges):
            values = forward[e.source] + backward[i + 1, e.target]
            result[i] = e.by_label.log_sum(values, self._num_labels)
            values = forward[e.source] + weights[i, e.label]
            forward = e.by_target.log_sum(values, self._num_states)
        return result

    def draw(self, weights: Float[Array, "L C"], u: Float[Array, " L"] | None) -> Int[Array, " L"]:
        """Draw the classes of all positions together, with a uniform number for each.

        None takes the most likely class at each position, given those before.
        """
        backward, state, labels = self.backward(weights), 0, list[int]()
        for i, e in enumerate(self._edges):
            groups = e.by_source
            group = int(np.searchsorted(groups.value, state))
            end = groups.start[group + 1] if group + 1 < len(groups.start) else None
            members = groups.order[groups.start[group] : end]
            values = weights[i, e.label[members]] + backward[i + 1, e.target[members]]
            if u is None:
                chosen = int(values.argmax())
            else:
                cdf = np.exp(values - values.max()).cumsum()
                chosen = int(np.searchsorted(cdf, u[i] * cdf[-1], side="right"))
            edge = members[min(chosen, len(members) - 1)]
            labels.append(int(e.label[edge]))
            state = int(e.target[edge])
        return np.array(labels)


def _reached(
    first: Bool[Array, " N"], source: Int[Array, " E"], target: Int[Array, " E"], length: int
) -> list[Bool[Array, " N"]]:
    """Return the states that are reached after 0, ..., `length` edges."""
    sets = [first]
    while len(sets) <= length:
        reached = np.zeros_like(first)
        reached[target[sets[-1][source]]] = True
        if (reached == sets[-1]).all():  # and so are all later ones
            return sets + [reached] * (length + 1 - len(sets))
        sets.append(reached)
    return sets


_trellis = lru_cache(maxsize=_KEPT_TRELLISES)(Trellis)
