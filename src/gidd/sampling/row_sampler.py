"""Samplers of rows of x_theta: a token from each row, and the probabilities that steps need."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gidd.common.devices import define_kernel, kind_of
from gidd.diffusion.categorical import at, draw
from gidd.diffusion.schedule import TINY
from gidd.sampling.processors import temper

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


class DenseSampler:
    """Samples from distributions."""

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
        """Return tokens and their x_theta, 0 except `where`; a CPU draws from these rows alone."""
        rows, u = self._rows, self._u[:, None]
        if where is None:
            token = draw(temper(rows, self._temperature), u).squeeze(-1)
            return token, at(rows, token)
        if kind_of(rows) != "cpu":  # their number is not known without waiting for the device
            token, probability = self.draw()
            return _only(where, token), _only(where, probability)
        chosen = rows[where]
        token = draw(temper(chosen, self._temperature), u[where]).squeeze(-1)
        return (
            torch.zeros_like(self._u).masked_scatter(where, token),
            rows.new_zeros(len(rows)).masked_scatter(where, at(chosen, token)),
        )

    def log_odds(self, token: Tensor, where: Tensor) -> Tensor:
        """Return `scaled_log_odds` of the tokens of `draw`, 0 except `where`."""
        rows, at_token, tau = self._rows, token[:, None], self._temperature
        if kind_of(rows) != "cpu":
            return _only(where, scaled_log_odds(rows, at_token, tau))
        odds = scaled_log_odds(rows[where], at_token[where], tau)
        return rows.new_zeros(len(rows)).masked_scatter(where, odds)


class KernelSampler:
    """Samples from logits with one kernel."""

    def __init__(
        self,
        tokens: Int[Tensor, " K"],
        u: Int[Tensor, " K"],
        temperature: float = 1.0,
        with_odds: bool = False,
    ) -> None:
        """Take current tokens and fixed-point uniforms; `with_odds`: `log_odds` will be called."""
        self._tokens, self._u = tokens, u
        self._temperature, self._with_odds = temperature, with_odds
        self._token, self.top = torch.empty_like(tokens), torch.empty_like(tokens)
        numbers = torch.empty(4, len(tokens), device=tokens.device)
        self._probability, self.current, self.top_probability, self._odds = numbers

    def fill(self, rows: slice, logits: Float[Tensor, "k W"]) -> None:
        """Draw from the logits of some rows, in float32; -inf at padding."""
        inputs, outputs = (self._tokens, self._u), (self._token, self._probability, self.current)
        outputs += (self.top, self.top_probability, self._odds)
        parts = [part[rows] for part in (*inputs, *outputs)]
        _draw_rows_kernel(logits, *parts[:2], self._temperature, self._with_odds, *parts[2:])

    def draw(self, where: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return tokens and their x_theta."""
        if where is None:
            return self._token, self._probability
        return _only(where, self._token), _only(where, self._probability)

    def log_odds(self, token: Tensor, where: Tensor) -> Tensor:
        """Return the odds that the kernel computed."""
        del token
        return _only(where, self._odds)


RowSampler = DenseSampler | KernelSampler
"""One token sampled from each of K rows of x_theta, at a temperature."""


def _only(where: Tensor, value: Tensor) -> Tensor:
    return value.masked_fill(~where, 0)


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


def _draw_rows(
    logits: Tensor, tokens: Tensor, u: Tensor, temperature: float, with_odds: bool, *outputs: Tensor
) -> None:
    """Compute by definition, for few rows at a time to bound memory."""
    for start in range(0, len(logits), 64):
        rows = slice(start, start + 64)
        sampler = DenseSampler(logits[rows].softmax(-1), tokens[rows], u[rows], temperature)
        top, (token, probability) = sampler.top, sampler.draw()
        everywhere = torch.ones_like(token, dtype=torch.bool)
        odds = sampler.log_odds(token, everywhere) if with_odds else torch.zeros_like(probability)
        found = token, probability, sampler.current, top, sampler.top_probability, odds
        for output, value in zip(outputs, found, strict=True):
            output[rows] = value


def _launch_draw_rows(*arguments: Any) -> None:
    from gidd.diffusion.kernels.rows import launch_draw_rows

    logits, tokens, u, temperature, with_odds, *outputs = arguments
    launch_draw_rows(logits, tokens, u, temperature, with_odds, tuple(outputs))


_draw_rows_kernel = define_kernel(
    "draw_rows(Tensor logits, Tensor tokens, Tensor u, float temperature, bool with_odds,"
    " Tensor(a!) token, Tensor(b!) probability, Tensor(c!) current, Tensor(d!) top,"
    " Tensor(e!) top_probability, Tensor(f!) odds) -> ()",
    definition=_draw_rows,
    launch=_launch_draw_rows,
    shapes=lambda *_: None,
)
