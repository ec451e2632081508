"""Tokens sampled from rows of x_theta, and the probabilities that steps need."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gidd.diffusion.categorical import at, draw
from gidd.diffusion.schedule import TINY
from gidd.sampling.processors import temper

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


class RowSampler:
    """One token sampled from each of K rows of x_theta, at a temperature."""

    def __init__(
        self,
        rows: Float[Tensor, "K V"],
        tokens: Int[Tensor, " K"],
        u: Int[Tensor, " K"],
        temperature: float = 1.0,
    ) -> None:
        """Take rows of x_theta, their current tokens and fixed-point uniforms."""
        self._rows, self._tokens, self._u, self._temperature = rows, tokens, u, temperature

    @property
    def current(self) -> Tensor:
        """x_theta of the current token."""
        return at(self._rows, self._tokens)

    @cached_property
    def _top(self) -> tuple[Tensor, Tensor]:
        top_probability, top = self._rows.max(-1)
        return top_probability, top

    @property
    def top(self) -> Tensor:
        """The most likely token."""
        return self._top[1]

    @property
    def top_probability(self) -> Tensor:
        """x_theta of the most likely token."""
        return self._top[0] if "_top" in vars(self) else self._rows.amax(-1)

    def draw(
        self, where: Bool[Tensor, " K"] | None = None
    ) -> tuple[Int[Tensor, " K"], Float[Tensor, " K"]]:
        """Return tokens and their x_theta, 0 except `where`: only these rows are drawn from."""
        rows, u = self._rows, self._u[:, None]
        if where is None:
            token = draw(temper(rows, self._temperature), u).squeeze(-1)
            return token, at(rows, token)
        chosen = rows[where]
        token = draw(temper(chosen, self._temperature), u[where]).squeeze(-1)
        return (
            torch.zeros_like(self._u).masked_scatter(where, token),
            rows.new_zeros(len(rows)).masked_scatter(where, at(chosen, token)),
        )

    def log_odds(self, token: Tensor, where: Tensor) -> Tensor:
        """Return `scaled_log_odds` of the tokens of `draw`, 0 except `where`."""
        rows, at_token, tau = self._rows, token[:, None], self._temperature
        odds = scaled_log_odds(rows[where], at_token[where], tau)
        return rows.new_zeros(len(rows)).masked_scatter(where, odds)


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
