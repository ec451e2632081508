"""AllowedTexts: a slot of blanks becomes one of several sequences of tokens.

Positions of a slot are not independent, so a step cannot draw its tokens one by one. Before a step
reads x_theta, one option c of each slot is drawn from its posterior probability

    p(c | Z) is proportional to the product over the slot of x_theta(c_i) q_t(z_i | c_i)

and x_theta in the slot is one-hot at c. Under masking noise, q_t excludes the options that differ
from tokens that are written already. A slot of one token has the distribution of x_theta restricted
to the options.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gidd.diffusion.categorical import draw
from gidd.diffusion.process import marginal_at
from gidd.diffusion.randomness import Stream
from gidd.diffusion.schedule import TINY, MixingSchedule, Times
from gidd.errors import ConfigError
from gidd.sampling.predict import Predict, Rows
from gidd.sampling.state import State

if TYPE_CHECKING:
    from jaxtyping import Bool, Int


@dataclass(frozen=True)
class AllowedTexts:
    """Blanks to fill with one of several sequences of tokens, and these sequences."""

    start: int
    """Position of the first blank."""
    options: tuple[tuple[int, ...], ...]
    """Different sequences of the same number of tokens, the length of the slot."""

    @property
    def slot(self) -> slice:
        """The positions of the blanks."""
        return slice(self.start, self.start + len(self.options[0]))

    def check(self, blank: Sequence[bool], mask_id: int | None) -> None:
        """Raise `ConfigError` unless the options fit blanks of the sequence."""
        lengths = sorted({len(option) for option in self.options})
        if len(lengths) != 1 or lengths[0] == 0 or len(set(self.options)) < len(self.options):
            raise ConfigError(
                "the options of a choice must be different and have the same number of tokens, at "
                f"least 1, got {len(self.options)} options of {lengths} tokens."
            )
        if self.start < 0 or not (all(blank[self.slot]) and self.slot.stop <= len(blank)):
            raise ConfigError(
                f"a choice of {lengths[0]} tokens must be at that many blanks of the request, "
                f"none of them in another choice, got start {self.start}."
            )
        if any(mask_id in option for option in self.options):
            raise ConfigError(f"the options of a choice must not have the mask token, {mask_id}.")


class Constrained:
    """Wraps x_theta so that it is one-hot, in each slot, at the option drawn for time s."""

    def __init__(
        self,
        predict: Predict,
        schedule: MixingSchedule,
        s: Times,
        choices: Sequence[tuple[AllowedTexts, ...]],
    ) -> None:
        self._predict, self._schedule, self._s = predict, schedule, s
        self._slots = [(k, choice) for k in range(len(choices)) for choice in choices[k]]

    def __call__(self, state: State, t: Times, where: Bool[Tensor, "B L"]) -> Rows:
        """Return the rows of x_theta; outside of slots they are unchanged."""
        flat = self._draw(state, t, where, self._table(state)).flatten()

        def one_hot(rows: Tensor, index: Tensor) -> Tensor:
            token = F.pad(flat[index], (0, len(rows) - len(index)), value=-1)[:, None]
            certain = torch.zeros_like(rows).scatter(-1, token.clamp_min(0), 1)
            return torch.where(token >= 0, certain, rows)

        return self._predict(state, t, where).map(one_hot)

    def _table(self, state: State) -> Int[Tensor, "B L C"]:
        """Return the tokens of the options at each position, -1 if there is no other."""
        max_options = max(len(choice.options) for _, choice in self._slots)
        table = np.full((*state.tokens.shape, max_options), -1, np.int64)
        for k, choice in self._slots:
            table[k, choice.slot, : len(choice.options)] = np.array(choice.options).T
        return torch.from_numpy(table).to(state.tokens.device)

    def _draw(self, state: State, t: Times, where: Tensor, table: Tensor) -> Int[Tensor, "B L"]:
        """Draw an option for each slot of the sequences that have a position in `where`.

        Returns the tokens of the options, -1 elsewhere; any option for other sequences.
        """
        columns = table.flatten(0, 1).clamp_min(0)
        positions = (table[..., 0] >= 0) & where.any(-1, keepdim=True)
        rows = self._predict(state, t, positions)
        (x,) = rows.read(lambda rows, i: (rows.gather(-1, columns[i]),))
        chosen, u = torch.full_like(state.tokens, -1), state.random(Stream.CHOICE)
        for k, choice in self._slots:
            options = _options(table, k, choice)
            z = state.tokens[k, choice.slot].expand_as(options)
            is_same = z == options
            q = marginal_at(self._schedule, t[k].expand(len(z)), z, is_same.to(t))
            x_theta = x[k, choice.slot, : len(options)].T.contiguous().to(t)
            p = (q.log() + x_theta.clamp_min(TINY).log()).sum(-1).softmax(-1)
            # a corrector may replace some tokens of a slot only: it keeps an option that is there
            is_there = is_same.all(-1)
            is_kept = is_there.any() & (self._s[k] == t[k])
            p = torch.where(is_kept, is_there.to(p), p)
            index = draw(p[None], u[k, choice.start].view(1, 1))[0]
            chosen[k, choice.slot] = options[index].squeeze(0)
        return chosen

    def finish(
        self,
        state: State,
        t: Times,
        tokens: Int[Tensor, "B L"],
        is_member: Bool[Tensor, " B"],
    ) -> Int[Tensor, "B L"]:
        """Return the tokens after the step, at s = 0 with an option in every slot of its members.

        Steps that never replace a token, such as `Confidence`, may leave other tokens.
        """
        table = self._table(state)
        is_open = (table[..., 0] >= 0) & (is_member & (self._s == 0))[:, None]
        for k, choice in self._slots:
            is_there = (tokens[k, choice.slot] == _options(table, k, choice)).all(-1)
            is_open[k, choice.slot] &= ~is_there.any()
        return torch.where(is_open, self._draw(state, t, is_open, table), tokens)


def _options(table: Tensor, k: int, choices: AllowedTexts) -> Int[Tensor, "C S"]:
    return table[k, choices.slot, : len(choices.options)].T.contiguous()
