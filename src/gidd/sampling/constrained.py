"""Constraints: x_theta given that an automaton accepts the whole text.

The tokens Z of a step and x_theta give a distribution of clean texts,

    P(x | Z) is proportional to the product over positions of x_theta(x_i) q_t(z_i | x_i),

and a constraint is the condition that x is accepted. `Constrained` wraps x_theta: its rows are the
distribution of each token given all other positions and the condition, by forward-backward over the
states of the automaton. What a step draws, it draws together: see `ConstrainedRows`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gidd.diffusion.categorical import at, draw
from gidd.diffusion.process import noise_at
from gidd.diffusion.randomness import UNIT_BITS, Stream
from gidd.diffusion.schedule import TINY, MixingSchedule, Times
from gidd.errors import ConfigError, DataError
from gidd.sampling.automaton import Automaton, Trellis
from gidd.sampling.predict import Predict, Rows
from gidd.sampling.state import State, time_dtype
from gidd.vocab import Vocab

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from numpy import ndarray as Array

_LEAST_NOISE = TINY * TINY
"""In place of a probability of 0 that noise wrote a token: a text that differs from fewer tokens is
more likely than any that differs from more."""


@dataclass(frozen=True, eq=False)
class Constraint:
    """An automaton that accepts the tokens start .. stop - 1 of a sequence."""

    automaton: Automaton
    start: int
    stop: int
    """May be behind the end of a sequence that is a block of a longer one."""

    def trellis(self, length: int) -> Trellis:
        """Return the paths through the positions of a sequence of `length` tokens."""
        stop = min(self.stop, length)
        return self.automaton.trellis(stop - self.start, self.stop - stop)

    def check(self, tokens: Sequence[int | None], vocab: Vocab) -> None:
        """Raise unless some text agrees with the given tokens of a sequence."""
        automaton, given = self.automaton, tokens[self.start : self.stop]
        if not 0 <= self.start < min(self.stop, len(tokens)):
            raise ConfigError(
                f"a constraint must have a position of the {len(tokens)} tokens of its request, "
                f"got start {self.start} and stop {self.stop}."
            )
        is_known = len(automaton.token_class) == vocab.size
        mask_class = automaton.num_classes
        if is_known and vocab.mask_id is not None:
            mask_class = automaton.token_class[vocab.mask_id]
        if not is_known or mask_class != automaton.num_classes:
            raise ConfigError(
                f"{automaton.name} must have tokens of the model's vocabulary, {vocab}, without "
                f"its mask, got {len(automaton.token_class)} tokens."
            )
        weights = np.zeros((len(given), automaton.num_classes + 1))
        for i, token in enumerate(given):
            if token is not None:
                weights[i] = _certain(automaton, token)
        if self.trellis(len(tokens)).log_total(weights) == -np.inf:
            num_given = sum(token is not None for token in given)
            raise DataError(
                f"{automaton.name} must accept a text in {self.stop - self.start} tokens"
                f"{f', {num_given} of them given' if num_given else ''}, but accepts none. Change "
                "the number of tokens, or the constraint."
            )

    def accepts(self, tokens: Sequence[int]) -> bool:
        """Return whether the tokens of a sequence are accepted, or can be in later blocks."""
        state = self.automaton.state_after(tokens[self.start : self.stop])
        return state is not None and bool(self.trellis(len(tokens)).is_final[state])


def _certain(automaton: Automaton, token: int) -> Float[Array, " C"]:
    """Return the weights of a position with a known token."""
    weights = np.full(automaton.num_classes + 1, -np.inf)
    weights[[automaton.token_class[token], automaton.num_classes]] = 0
    return weights


class _Region(NamedTuple):
    """The constraint of some positions of a sequence of the batch."""

    row: int
    constraint: Constraint
    length: int
    """Tokens of the sequence, without padding."""

    @property
    def positions(self) -> slice:
        return slice(self.constraint.start, min(self.constraint.stop, self.length))

    @property
    def trellis(self) -> Trellis:
        return self.constraint.trellis(self.length)


class Constrained:
    """Wraps x_theta of sequences with constraints; see the module."""

    def __init__(self, predict: Predict, schedule: MixingSchedule, requests: Sequence[Any]) -> None:
        """Take `Request`s, of which some have constraints."""
        self._predict, self.schedule = predict, schedule
        self._regions = [
            _Region(row, constraint, len(request.tokens))
            for row, request in enumerate(requests)
            for constraint in request.constraints
        ]
        self._last: tuple[Tensor | None, Tensor | None, dict[_Region, _Weights]] = None, None, {}

    def __call__(self, state: State, t: Times, where: Bool[Tensor, "B L"]) -> Rows:
        """Return the rows of x_theta; those outside of constraints are unchanged."""
        asked = where.cpu()
        regions = [r for r in self._regions if bool(asked[r.row, r.positions].any())]
        if not regions:
            return self._predict(state, t, where)
        return self._rows(state, t, where, regions, state.tokens)

    def finish(
        self, state: State, t: Times, tokens: Int[Tensor, "B L"], rows: Sequence[int]
    ) -> Int[Tensor, "B L"]:
        """Return the tokens after a step, with an accepted text in the constraints of some rows.

        Where it is not accepted, such as after a step that never replaces a token, it is drawn
        given these tokens as noise of time t.
        """
        regions = [
            region
            for region in self._regions
            if region.row in rows
            and not region.constraint.accepts(tokens[region.row, : region.length].tolist())
        ]
        if not regions:
            return tokens
        where = _positions_of(regions, state.free) & state.free
        drawn, _ = self._rows(state, t, where, regions, tokens).draw_all()
        return torch.where(where, drawn, tokens)

    def _rows(
        self, state: State, t: Times, where: Tensor, regions: Sequence[_Region], observed: Tensor
    ) -> ConstrainedRows:
        """Read x_theta once, `where` it is asked for and where the regions need it."""
        if self._last[0] is not observed or self._last[1] is not t:
            self._last = observed, t, {}
        known = self._last[2]
        new = [region for region in regions if region not in known]
        needed = torch.zeros_like(where)
        for region in new:
            is_read = torch.from_numpy(region.trellis.is_read)
            needed[region.row, region.positions] = is_read.to(where.device)
        rows = self._predict(state, t, where | needed & state.free)
        if new:
            classes, z = Classes(new, where), observed.flatten()
            dtype = time_dtype(where.device)

            def read_classes(p: Tensor, i: Tensor) -> tuple[Tensor, ...]:
                mass = p.new_zeros(len(p), classes.num_columns, dtype=dtype)
                return mass.scatter_add_(1, classes.of(i), p.to(dtype)), at(p, z[i])

            mass, current = rows.read(read_classes)
            noise, alpha = noise_at(self.schedule, t, observed), self.schedule.alpha(t)
            columns = torch.stack(
                [current.to(dtype), noise.to(dtype), state.protected.to(dtype)], -1
            )
            numbers = torch.cat([columns, mass], -1).cpu().numpy()
            for region in new:
                place = region.row, region.positions
                z_here, automaton = observed[place].cpu().numpy(), region.constraint.automaton
                known[region] = _weights(
                    automaton, z_here, float(alpha[region.row]), numbers[place]
                )
        weights = [(region, known[region]) for region in regions]
        return ConstrainedRows(self.schedule, rows.at(where), weights, state, t, observed)


def _positions_of(regions: Sequence[_Region], like: Tensor) -> Bool[Tensor, "B L"]:
    where = torch.zeros_like(like, dtype=torch.bool)
    for region in regions:
        where[region.row, region.positions] = True
    return where


class _Weights(NamedTuple):
    """log of the weights of the classes of tokens at a region; the last is that of any token."""

    alone: Float[Array, "L C"]
    """Sums of x_theta."""
    noisy: Float[Array, "L C"]
    """Sums of x_theta times q_t of the current token."""


def _weights(
    automaton: Automaton, z: Int[Array, " L"], alpha: float, numbers: Float[Array, "L N"]
) -> _Weights:
    """Compute weights from (x_theta of z, noise on z, whether it is given, sums of classes)."""
    numbers, num_classes = np.nan_to_num(numbers), automaton.num_classes
    current, noise, is_given = numbers[:, 0], numbers[:, 1], numbers[:, 2] > 0
    sums = numbers[:, 3 : 4 + num_classes].clip(TINY)
    sums[:, -1] = 1
    alone, noise = np.log(sums), np.log(noise.clip(_LEAST_NOISE))
    kept = np.log(current.clip(TINY)) + (np.log(alpha) if alpha > 0 else -np.inf)
    noisy, labels = alone + noise[:, None], automaton.token_class[z]
    noisy[:, -1] = np.logaddexp(noise, kept)
    i = (labels < num_classes).nonzero()[0]
    noisy[i, labels[i]] = np.logaddexp(noisy[i, labels[i]], kept[i])
    for i in is_given.nonzero()[0]:
        alone[i] = noisy[i] = _certain(automaton, int(z[i]))
    return _Weights(alone, noisy)


class Classes:
    """The class of each token at the positions of some regions."""

    def __init__(self, regions: Sequence[_Region], where: Bool[Tensor, "B L"]) -> None:
        automata = list(dict.fromkeys(region.constraint.automaton for region in regions))
        self.num_columns = 1 + max(automaton.num_classes for automaton in automata)
        tables = [_class_table(automaton, where.device) for automaton in automata]
        self._table = tables[0][None] if len(tables) == 1 else torch.stack(tables)
        self._automaton = torch.zeros(where.shape, dtype=torch.int64, device=where.device)
        for region in regions:
            index = automata.index(region.constraint.automaton)
            self._automaton[region.row, region.positions] = index

    def of(self, index: Int[Tensor, " K"]) -> Int[Tensor, "K V"]:
        """Return the classes of all tokens at flat positions."""
        if len(self._table) == 1:
            return self._table.expand(len(index), -1)
        return self._table[self._automaton.flatten()[index]]


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _class_table(automaton: Automaton, device: torch.device) -> Int[Tensor, " V"]:
    return torch.from_numpy(automaton.token_class).to(device)


_FREE, _ANY = -2, -1  # in place of a class: no constraint, or any token


class ConstrainedRows(Rows):
    """x_theta of each token given all other positions and the constraints, and joint draws."""

    def __init__(
        self,
        schedule: MixingSchedule,
        rows: Rows,
        weights: Sequence[tuple[_Region, _Weights]],
        state: State,
        t: Times,
        observed: Int[Tensor, "B L"],
    ) -> None:
        """Take the rows of x_theta, and the weights of classes given the observed tokens Z."""
        self._schedule, self.source, self._weights = schedule, rows, weights
        self._state, self._t, self._observed = state, t, observed
        self._classes = Classes([region for region, _ in weights], state.protected)
        super().__init__(rows.tokens, rows.index, rows.vocab_size, rows.tile, self._marginal_rows)

    def _marginal_rows(self, index: Tensor) -> Tensor:
        """Return x_theta times the probability of all else given each token, normalised."""
        p = self.source.compute(index)
        index = F.pad(index, (0, len(p) - len(index)))
        factors = self._factors[index].to(p)
        return _normalised(p.clamp_min(TINY) * factors.gather(1, self._classes.of(index)))

    @cached_property
    def _factors(self) -> Float[Tensor, "N C"]:
        """What x_theta of each class of tokens is multiplied by; 1 without a constraint."""
        factors = np.ones((*self.tokens.shape, self._classes.num_columns))
        for region, weights in self._weights:
            trellis, num_classes = region.trellis, region.constraint.automaton.num_classes
            rest = trellis.messages(weights.noisy)
            rest[:, :-1] = np.logaddexp(rest[:, :-1], rest[:, -1:])
            # scaled by the largest probability of a class, so that TINY times a factor is above 0
            scale = (rest + weights.alone).max(-1, keepdims=True)
            is_read, part = trellis.is_read, np.exp(rest - scale)
            factors[region.row, region.positions, : num_classes + 1][is_read] = part[is_read]
        device = self.tokens.device
        return torch.from_numpy(factors).to(time_dtype(device)).to(device).flatten(0, 1)

    def draw(
        self, u: Int[Tensor, "B L"] | None, where: Bool[Tensor, "B L"] | None = None
    ) -> tuple[Int[Tensor, "B L"], Float[Tensor, "B L"]]:
        """Draw the tokens `where` together, given those at all other positions.

        Returns tokens and their x_theta without the constraint.
        """
        if where is None:
            where = torch.zeros_like(self._state.protected)
            where.view(-1)[self.index] = True
        return self._draw(u, where, where)

    def draw_all(self) -> tuple[Tensor, Tensor]:
        """Draw a clean text from P(x | Z); return its tokens and their x_theta."""
        everywhere = torch.ones_like(self._state.protected)
        return self._draw(self._state.random(Stream.TOKEN), everywhere, ~everywhere)

    @property
    def log_accepted(self) -> Float[Tensor, " B"]:
        """log of the probability that texts drawn from x_theta alone are accepted."""
        totals = np.zeros(len(self.tokens))
        for region, weights in self._weights:
            totals[region.row] += region.trellis.log_total(weights.alone)
        device = self.tokens.device
        return torch.from_numpy(totals).to(time_dtype(device)).to(device)

    @property
    def drawn(self) -> Rows:
        """Rows that are one-hot, in constraints, at a text drawn from P(x | Z)."""
        where = _positions_of([region for region, _ in self._weights], self.tokens)
        return _DrawnRows(self.source, *self.draw_all(), where)

    def _draw(self, u: Tensor | None, where: Tensor, is_ignored: Tensor) -> tuple[Tensor, Tensor]:
        """Draw classes along the sequence, then tokens, from P(x | Z without ignored tokens)."""
        labels, path = np.full(self.tokens.shape, _FREE), None
        if u is not None:
            path = self._state.random(Stream.CHOICE).cpu().numpy() / 2.0**UNIT_BITS
        ignored = is_ignored.cpu().numpy()
        for region, weights in self._weights:
            place, trellis = (region.row, region.positions), region.trellis
            chosen = np.where(ignored[place][:, None], weights.alone, weights.noisy)
            drawn = trellis.draw(chosen, None if path is None else path[place])
            drawn[drawn == region.constraint.automaton.num_classes] = _ANY
            labels[place] = np.where(trellis.is_read, drawn, _FREE)
        label = torch.from_numpy(labels).to(self.tokens.device).flatten()
        # noise on a token, over the probability that the observed token is written
        noise = noise_at(self._schedule, self._t, self._observed).clamp_min(_LEAST_NOISE)
        ratio = noise / (noise + self._schedule.alpha(self._t)[:, None])
        ratio = torch.where(is_ignored, 1, ratio).flatten()
        flat, z, numbers = where.flatten(), self._observed.flatten(), None
        if u is not None:
            numbers = u.flatten()

        def draw_tokens(p: Tensor, i: Tensor) -> tuple[Tensor, ...]:
            chosen = flat[i].nonzero().squeeze(-1)
            rows, k = p[chosen], i[chosen]
            current, allowed = z[k, None], label[k, None]
            weights = rows.clamp_min(TINY) * ratio[k, None].to(rows)
            weights.scatter_(1, current, rows.gather(1, current).clamp_min(TINY))
            is_allowed = (allowed == _ANY) | (self._classes.of(k) == allowed)
            weights = torch.where(allowed == _FREE, rows, torch.where(is_allowed, weights, 0))
            if numbers is None:
                token = weights.argmax(-1)
            else:
                token = draw(_normalised(weights), numbers[k, None]).squeeze(-1)
            return (
                torch.zeros_like(i).index_copy(0, chosen, token),
                p.new_zeros(len(p)).index_copy(0, chosen, at(rows, token)),
            )

        token, probability = self.source.read(draw_tokens)
        return token, probability


class _DrawnRows(Rows):
    """Rows that are one-hot at drawn tokens, at the positions with a constraint."""

    def __init__(self, rows: Rows, token: Tensor, probability: Tensor, where: Tensor) -> None:
        self._token, self._probability, self._where = token, probability, where

        def one_hot(p: Tensor, index: Tensor) -> Tensor:
            chosen = F.pad(torch.where(where, token, -1).flatten()[index], (0, len(p) - len(index)))
            certain = torch.zeros_like(p).scatter(-1, chosen.clamp_min(0)[:, None], 1)
            return torch.where(chosen[:, None] >= 0, certain, p)

        mapped = rows.map(one_hot)
        super().__init__(rows.tokens, rows.index, rows.vocab_size, rows.tile, mapped.compute)

    def draw(self, u: Tensor | None, where: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the drawn tokens, and draw the others."""
        token, probability = super().draw(u, where)
        is_logged = self._where if where is None else self._where & where
        return token, torch.where(is_logged, self._probability, probability)


@final
@dataclass(frozen=True)
class ReadCandidates:
    """Read log x_theta of the tokens of some texts, and of the constraints; changes no token.

    `Sample.values` are [L, K], one column for each candidate, and [L], equal at all positions.
    """

    candidates: tuple[tuple[int, ...], ...]
    """Texts of the length of the request."""

    def __call__(
        self, schedule: MixingSchedule, s: Times, t: Times, state: State, predict: Predict
    ) -> State:
        """Read the logarithms."""
        rows, length = predict(state, t, state.free), state.tokens.shape[1]
        table = torch.tensor(self.candidates, device=t.device).T
        table = F.pad(table, (0, 0, 0, length - len(table)))
        constrained = isinstance(rows, ConstrainedRows)
        unconstrained = rows.source if constrained else rows
        (p,) = unconstrained.read(lambda p, i: (p.gather(1, table[i % length]),))
        log_p = torch.where(state.free[..., None], p.clamp_min(TINY).log(), 0)
        total = rows.log_accepted if constrained else torch.zeros_like(t)
        return state._replace(values=(log_p, total[:, None].expand(state.tokens.shape)))


def _normalised(p: Tensor) -> Tensor:
    return p / p.sum(-1, keepdim=True)
