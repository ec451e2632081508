"""Choices: a slot of blanks becomes one of several sequences of tokens.

Positions of a slot are not independent, so a step cannot draw its tokens one by one. Before a step
reads x_theta, one option c of each slot is drawn from its posterior probability

    p(c | Z) is proportional to the product over the slot of x_theta(c_i) q_t(z_i | c_i)

and x_theta in the slot is one-hot at c. Under masking noise, q_t excludes the options that differ
from tokens that are written already. A slot of one token has the distribution of x_theta restricted
to the options.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from gidd.common.devices import copy_to
from gidd.diffusion.categorical import draw
from gidd.diffusion.process import marginal_at
from gidd.diffusion.randomness import Stream
from gidd.diffusion.schedule import TINY, MixingSchedule, Times
from gidd.errors import ConfigError
from gidd.sampling.canvas import Canvas

if TYPE_CHECKING:
    from jaxtyping import Bool, Int

_Rows = Callable[[Tensor, Tensor], tuple[Tensor, ...]]
_Read = Callable[[Tensor, _Rows], tuple[Tensor, ...]]
"""`Prediction.read`: positions, function of their rows -> values."""


@dataclass(frozen=True)
class Choices:
    """A slot of blanks, and the sequences of tokens of which it becomes one."""

    start: int
    """Position of the first blank."""
    options: tuple[tuple[int, ...], ...]
    """Different sequences of the same number of tokens, the length of the slot."""

    @property
    def slot(self) -> slice:
        """The positions."""
        return slice(self.start, self.start + len(self.options[0]))

    def check(self, blank: Sequence[bool], mask_id: int | None) -> None:
        """Raise `ConfigError` unless the options are for blanks of a sequence."""
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


class BatchChoices:
    """The choices of a batch in a step from t to s."""

    def __init__(
        self,
        schedule: MixingSchedule,
        s: Times,
        t: Times,
        canvas: Canvas,
        choices: Sequence[tuple[Choices, ...]],
    ) -> None:
        """Take the choices of the first sequences; the others pad the batch."""
        self._schedule, self._s, self._t, self._z = schedule, s, t, canvas.tokens
        self._slots = [(k, each) for k, own in enumerate(choices) for each in own]
        shape = *canvas.tokens.shape, max(len(each.options) for _, each in self._slots)
        table = np.full(shape, -1, np.int64)
        for k, each in self._slots:
            table[k, each.slot, : len(each.options)] = np.array(each.options).T
        self._table = copy_to(torch.from_numpy(table), s.device)
        self._in_slot = self._table[..., 0] >= 0
        self._u = canvas.random(Stream.CHOICE)

    def draw(self, where: Bool[Tensor, "B L"], read: _Read) -> Int[Tensor, "B L"]:
        """Draw an option for each slot of the sequences that have a position in `where`.

        Returns the tokens of the options, -1 elsewhere; any option for other sequences.
        """
        table = self._table.flatten(0, 1).clamp_min(0)
        positions = self._in_slot & where.any(-1, keepdim=True)
        (x,) = read(positions, lambda rows, i: (rows.gather(-1, table[i]),))
        chosen = torch.full_like(self._z, -1)
        for k, each in self._slots:
            options = self._options(k, each)
            z = self._z[k, each.slot].expand_as(options)
            t, is_same = self._t[k], z == options
            q = marginal_at(self._schedule, t.expand(len(z)), z, is_same.to(t))
            x_theta = x[k, each.slot, : len(options)].T.contiguous().to(t)
            p = (q.log() + x_theta.clamp_min(TINY).log()).sum(-1).softmax(-1)
            # a corrector may replace some tokens of a slot only: it keeps an option that is there
            is_there = is_same.all(-1)
            is_kept = is_there.any() & (self._s[k] == t)
            p = torch.where(is_kept, is_there.to(p), p)
            index = draw(p[None], self._u[k, each.start].view(1, 1))[0]
            chosen[k, each.slot] = options[index].squeeze(0)
        return chosen

    def finish(self, tokens: Int[Tensor, "B L"], read: _Read) -> Int[Tensor, "B L"]:
        """Return the tokens at the end of the step, at s = 0 with an option in every slot.

        Steps that never replace a token, such as `Confidence`, may leave other tokens.
        """
        is_open = self._in_slot & (self._s == 0)[:, None]
        for k, each in self._slots:
            is_there = (tokens[k, each.slot] == self._options(k, each)).all(-1)
            is_open[k, each.slot] &= ~is_there.any()
        return torch.where(is_open, self.draw(is_open, read), tokens)

    def _options(self, k: int, choices: Choices) -> Int[Tensor, "C S"]:
        return self._table[k, choices.slot, : len(choices.options)].T.contiguous()


def with_tokens(chosen: Int[Tensor, "B L"], function: _Rows) -> _Rows:
    """Return the function of rows that are one-hot at the chosen tokens; -1 leaves a row."""
    flat = chosen.flatten()

    def of_rows(rows: Tensor, i: Tensor) -> tuple[Tensor, ...]:
        token = flat[i, None]
        one_hot = torch.zeros_like(rows).scatter(-1, token.clamp_min(0), 1)
        return function(torch.where(token >= 0, one_hot, rows), i)

    return of_rows
