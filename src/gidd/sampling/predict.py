"""x_theta at the positions that a step reads; guidance, processors and constraints wrap it.

A `Predict` is a function. The others are wrappers of it, which combine:

    predict = processed(guided(NetworkPredict(network, V, B), tokens, scale), processors)
    rows = predict(state, t, state.free)         # no forward pass before this
    token, probability = rows.draw(state.random(Stream.TOKEN))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from gidd.diffusion.categorical import at, draw
from gidd.diffusion.schedule import TINY, Times
from gidd.models.context import FinishedBlocks
from gidd.sampling.network import DenoisingNetwork
from gidd.sampling.processors import Processor, temper
from gidd.sampling.state import State

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from gidd.sampling.request import Request

TILE_ENTRIES = 6_500_000
"""Maximum size of a [positions, V] tensor: 128 positions for GPT-2's vocabulary."""

BLOCK_ENTRIES = 1 << 20
"""Entries that are processed together, so that they stay in a core's cache."""

KEPT_ENTRIES = 1 << 26
"""Rows of x_theta with at most this many entries are kept until the step ends (256 MB); more are
computed again for each question."""

RowFunction = Callable[[Tensor, Tensor], tuple[Tensor, ...]]
"""(rows of x_theta [K, V], their indices in the flattened [B * L]) -> values, each [K, ...]."""


class Rows:
    """x_theta at chosen positions. Methods return tensors [B, L, ...], 0 elsewhere."""

    def __init__(
        self,
        tokens: Int[Tensor, "B L"],
        index: Int[Tensor, " K"],
        vocab_size: int,
        tile: int,
        compute: Callable[[Int[Tensor, " k"]], Float[Tensor, "T V"]],
    ) -> None:
        """Take flat positions, and a function that computes x_theta of at most `tile` of them.

        It returns their rows, and may return rows of padding behind them.
        """
        self.tokens, self.index, self.vocab_size, self.tile = tokens, index, vocab_size, tile
        self.compute = compute
        self._kept: list[Tensor] = []

    def map(self, function: Callable[[Tensor, Tensor], Tensor]) -> Rows:
        """Return the rows, with `function(tile, positions)` applied to each tile of x_theta."""
        return Rows(
            self.tokens,
            self.index,
            self.vocab_size,
            self.tile,
            lambda index: function(self.compute(index), index),
        )

    def at(self, where: Bool[Tensor, "B L"]) -> Rows:
        """Return the rows at some of the positions; what was kept is not computed again."""

        def compute(index: Tensor) -> Tensor:
            if not self._kept:
                return self.compute(index)
            return torch.cat(self._kept)[torch.searchsorted(self.index, index)]

        index = where.flatten().nonzero().squeeze(-1)
        return Rows(self.tokens, index, self.vocab_size, self.tile, compute)

    def _tiles(self) -> Iterator[tuple[Tensor, Tensor]]:
        parts = self.index.split(self.tile)
        if self._kept:
            yield from zip(self._kept, parts, strict=True)
            return
        kept: list[Tensor] = []
        for index in parts:
            rows = self.compute(index)[: len(index)]
            if len(self.index) * self.vocab_size <= KEPT_ENTRIES:
                kept.append(rows)
            yield rows, index
        self._kept = kept

    def read(self, function: RowFunction) -> tuple[Tensor, ...]:
        """Return the values of a function of each row of x_theta."""
        parts: list[tuple[Tensor, ...]] = []
        if not len(self.index):
            parts.append(
                function(torch.empty(0, self.vocab_size, device=self.index.device), self.index)
            )
        else:
            for rows, index in self._tiles():
                blocks = zip(rows.split(self.block), index.split(self.block), strict=True)
                parts += [function(*block) for block in blocks]
        return tuple(self._scatter(torch.cat(v)) for v in zip(*parts, strict=True))

    @property
    def block(self) -> int:
        """Rows that are processed together."""
        return max(32, BLOCK_ENTRIES // self.vocab_size // 32 * 32)  # vector loops have no tail

    def _scatter(self, values: Tensor) -> Tensor:
        everywhere = values.new_zeros(self.tokens.numel(), *values.shape[1:])
        return everywhere.index_copy(0, self.index, values).unflatten(0, self.tokens.shape)

    @property
    def dense(self) -> Float[Tensor, "B L V"]:
        """The rows themselves, for reference steps and small vocabularies."""
        return self.read(lambda rows, _: (rows,))[0]

    @cached_property
    def current(self) -> Float[Tensor, "B L"]:
        """x_theta of the current token."""
        z = self.tokens.flatten()
        return self.read(lambda rows, i: (at(rows, z[i]),))[0]

    @cached_property
    def _top(self) -> tuple[Tensor, ...]:
        def most_likely(rows: Tensor, _: Tensor) -> tuple[Tensor, ...]:
            return tuple(rows.max(-1))

        return self.read(most_likely)

    @property
    def top(self) -> Int[Tensor, "B L"]:
        """The most likely token."""
        return self._top[1]

    @property
    def top_probability(self) -> Float[Tensor, "B L"]:
        """x_theta of the most likely token."""
        return self._top[0]

    @cached_property
    def entropy(self) -> Float[Tensor, "B L"]:
        """Entropy of x_theta, in nats."""

        def entropies(rows: Tensor, _: Tensor) -> tuple[Tensor, ...]:
            return (torch.special.entr(rows).sum(-1),)

        return self.read(entropies)[0]

    @property
    def drawn(self) -> Rows:
        """The rows of a transition that redraws each token by itself, as `reverse_step` does.

        With constraints they are one-hot at a text that is accepted, else x_theta.
        """
        return self

    def draw(
        self, u: Int[Tensor, "B L"] | None, where: Bool[Tensor, "B L"] | None = None
    ) -> tuple[Int[Tensor, "B L"], Float[Tensor, "B L"]]:
        """Draw the tokens of all rows, or only `where`; return tokens and their x_theta.

        `u` are fixed-point uniforms, `state.random(Stream.TOKEN)`; None takes the most likely
        tokens. With constraints they are drawn together, given the tokens at other positions.
        """
        return (self.top, self.top_probability) if u is None else self.draw_each(u, where)

    def draw_each(
        self,
        u: Int[Tensor, "B L"],
        where: Bool[Tensor, "B L"] | None = None,
        temperature: float = 1.0,
    ) -> tuple[Int[Tensor, "B L"], Float[Tensor, "B L"]]:
        """Draw a token from each row by itself, as for a change of one position alone."""
        flat, chosen = u.flatten(), None if where is None else where.flatten()

        def draw_tokens(rows: Tensor, i: Tensor) -> tuple[Tensor, ...]:
            if chosen is None:
                token = draw(temper(rows, temperature), flat[i, None]).squeeze(-1)
                return token, at(rows, token)
            is_drawn = chosen[i]
            some = rows[is_drawn]
            token = draw(temper(some, temperature), flat[i[is_drawn], None]).squeeze(-1)
            return (
                torch.zeros_like(i).masked_scatter(is_drawn, token),
                rows.new_zeros(len(rows)).masked_scatter(is_drawn, at(some, token)),
            )

        token, probability = self.read(draw_tokens)
        return token, probability

    def log_odds(
        self, token: Int[Tensor, "B L"], where: Bool[Tensor, "B L"], temperature: float
    ) -> Float[Tensor, "B L"]:
        """Return the `scaled_log_odds` of tokens at the positions `where`."""
        tokens, chosen = token.flatten(), where.flatten()

        def odds_of(rows: Tensor, i: Tensor) -> tuple[Tensor, ...]:
            is_asked = chosen[i]
            odds = scaled_log_odds(rows[is_asked], tokens[i[is_asked], None], temperature)
            return (rows.new_zeros(len(rows)).masked_scatter(is_asked, odds),)

        return self.read(odds_of)[0]


Predict = Callable[[State, Times, Tensor], Rows]
"""(state, t, positions [B, L]) -> x_theta(state.tokens, t) at these positions."""


def scaled_log_odds(
    p: Float[Tensor, "K V"], token: Int[Tensor, "K 1"], temperature: float
) -> Float[Tensor, " K"]:
    """Compute temperature * log(q / (1 - q)), q the probability of `token` at that temperature.

    It has the same order as q, which is not used itself: at a temperature of 0.1 float32 rounds q
    to 1 as soon as the token is six times as likely as the next. At temperature 0 it is the limit,
    log p(token) minus the largest other log p; at 1 it is log q, which has the same order.
    """
    others = p.clamp_min(TINY).scatter(-1, token, 0)
    second, index = others.max(-1, keepdim=True)
    fraction = temper(others, temperature).gather(-1, index)  # of the second among the others
    log_rest = second.log() - temperature * fraction.log()
    return (p.gather(-1, token).log() - log_rest).squeeze(-1)


class NetworkPredict:
    """x_theta of a network, with one forward pass per state and time, made when it is read.

    Results must not depend on the rest of the batch, but the last bits of a matrix product depend
    on its shape. So shapes are fixed: every batch has the same number of sequences, and the head
    gets positions of one sequence (B = 1), or tiles of one size, padded with zeros (B > 1).
    """

    def __init__(
        self,
        network: DenoisingNetwork,
        vocab_size: int,
        num_rows: int = 1,
        device: torch.device | None = None,
        context: FinishedBlocks | None = None,
    ) -> None:
        """Predict batches of `num_rows` sequences, perhaps given finished blocks before them."""
        self._context = {} if context is None else {"context": context}
        self._network, self._vocab_size, self._num_rows = network, vocab_size, num_rows
        self.was_read = torch.zeros(num_rows, dtype=torch.bool, device=device)
        """Sequences of which anything was read; if none, the network is not called."""
        self.is_finite = ~self.was_read
        """Whether all that was read of a sequence is finite."""
        self._last: tuple[Tensor | None, Tensor | None, Tensor | None] = None, None, None
        """Tokens, times and features of the last forward pass."""

    def __call__(self, state: State, t: Times, where: Tensor) -> Rows:
        """Return x_theta at the positions; the network runs only if there are any."""
        index = where.flatten().nonzero().squeeze(-1)
        length, size = state.tokens.shape[1], self._vocab_size
        tile = max(32, TILE_ENTRIES // size // 32 * 32)  # vector loops have no tail
        tile = min(tile, (self._num_rows * length + 31) // 32 * 32)
        self.was_read[index // length % self._num_rows] = True  # guidance doubles the sequences
        is_known = self._last[0] is state.tokens and self._last[1] is t
        if len(index) and not is_known:
            valid = () if state.valid.all() else (state.valid,)
            self._last = (
                state.tokens,
                t,
                self._network.hidden(state.tokens, t, *valid, **self._context),
            )
        features = self._last[2]

        def compute(i: Tensor) -> Tensor:
            assert features is not None
            hidden = features[i // length, i % length]
            if self._num_rows > 1:
                hidden = torch.cat([hidden, hidden.new_zeros(tile - len(i), hidden.shape[1])])
            rows = self._network.distribution(hidden)
            # of a softmax either all entries are NaN or none
            damaged = i[~rows[: len(i), 0].isfinite()] // length
            self.is_finite[damaged % self._num_rows] = False
            return rows

        return Rows(state.tokens, index, size, tile, compute)


def processed(
    predict: Predict,
    processors: Sequence[tuple[Processor, ...]],
    requests: Sequence[Request | None] = (),
) -> Predict:
    """Wrap x_theta so that the processors of each request change its rows."""
    groups: dict[tuple[tuple[Processor, ...], int | None], list[int]] = {}
    for row, functions in enumerate(processors):
        is_shared = all(getattr(function, "ignores_request", False) for function in functions)
        groups.setdefault((functions, None if is_shared else row), []).append(row)

    def predict_processed(state: State, t: Times, where: Tensor) -> Rows:
        rows, length = predict(state, t, where), state.tokens.shape[1]

        def process(p: Tensor, index: Tensor) -> Tensor:
            positions = state.position.flatten()[index]
            positions = F.pad(positions, (0, len(p) - len(index)))  # p may have further rows
            for (functions, row), members in groups.items():
                request = requests[row] if requests and row is not None else None
                if functions and len(groups) == 1:
                    p = _in_blocks(p, positions, functions, request, rows.block)
                elif functions:
                    is_member = torch.isin(index // length, torch.tensor(members, device=p.device))
                    (chosen,) = is_member.nonzero(as_tuple=True)
                    if len(chosen):  # in blocks of one size, whoever shares the batch
                        size = min(rows.block, len(p))
                        some = F.pad(chosen, (0, -len(chosen) % size))
                        changed = _in_blocks(p[some], positions[some], functions, request, size)
                        p = p.index_copy(0, chosen, changed[: len(chosen)])
            return p

        return rows.map(process)

    return predict_processed


def _in_blocks(
    p: Tensor,
    positions: Tensor,
    processors: Sequence[Processor],
    request: Request | None,
    block: int,
) -> Tensor:
    """Process blocks of one size: sums depend on shapes. The last one begins earlier."""
    size, done = min(block, len(p)), list[Tensor]()
    for start in range(0, len(p), size):
        first = min(start, len(p) - size)
        part, places = p[first : first + size], positions[first : first + size]
        for processor in processors:
            part = processor(part, places, request)
        done.append(part[start - first :])
    return torch.cat(done)
