"""The interface of noise schedules, and a check that a Markov chain has their marginals.

Shapes: B batch, L length, V vocabulary. `t` is always [B] in [0, 1], larger is noisier; `s <= t`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from gidd.errors import ScheduleError
from gidd.vocab import Vocab

if TYPE_CHECKING:
    import torch
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

Times: TypeAlias = 'Float[Tensor, " B"]'
Sequences: TypeAlias = 'Int[Tensor, "B L"]'
Distributions: TypeAlias = 'Float[Tensor, "B L V"]'
Flags: TypeAlias = 'Bool[Tensor, "B L"]'

TINY = 1e-30
"""Lower limit of probabilities before a logarithm or a division; the only one in the library. Its
inverse times the largest weight in [1e-6, 1 - 1e-6] fits in float32."""
_CHECK_STEPS = 128
_CHECK_TOLERANCE = 1e-9
_CHECK_ENTRIES = 1 << 22
"""Number of entries of the largest [B, V] tensor that `check` allocates."""


class FlatNoise(NamedTuple):
    """Noise with the same value on every token but the mask: two numbers in place of a row [V]."""

    mask_id: int | None
    mask: Float[Tensor, " B"]
    """Value on the mask."""
    other: Float[Tensor, " B"] | None
    """Value on each other token; None: 0 at all times, so that noise only masks."""

    def at(self, z: Int[Tensor, "B L"]) -> Float[Tensor, "B L"]:
        """Return the entry at token `z`, as `at_token` of the rows does."""
        import torch

        other = torch.zeros_like(self.mask) if self.other is None else self.other
        if self.mask_id is None:
            return other[:, None].expand_as(z)
        return torch.where(z == self.mask_id, self.mask[:, None], other[:, None])

    def rows(self, vocab: Vocab) -> Float[Tensor, "B V"]:
        """Return the entry of every token."""
        import torch

        tokens = torch.arange(vocab.size, device=self.mask.device)
        return self.at(tokens.expand(len(self.mask), -1))

    def to(self, dtype: torch.dtype) -> FlatNoise:
        """Round both numbers to another type."""
        other = None if self.other is None else self.other.to(dtype)
        return FlatNoise(self.mask_id, self.mask.to(dtype), other)

    def total(self, vocab: Vocab) -> Float[Tensor, " B"]:
        """Return the sum over all tokens."""
        return self.mask if self.other is None else self.mask + vocab.num_data_tokens * self.other


class MixingSchedule(ABC):
    """The mixing rate alpha_t and mixing distribution pi_t of the noise (Defs. 3.1 and 3.2).

    A schedule is three functions of time, from which `process.py`, `elbo.py` and `weighting.py`
    derive all else. To add one here, name it in `COMPONENTS` of `schedules/` and in
    `SCHEDULE_BUILDERS` of tests/support/strategies.py.
    """

    vocab: Vocab

    @abstractmethod
    def alpha(self, t: Times) -> Times:
        """Cumulative mixing rate alpha_t: 1 at t = 0, decreasing, 0 at t = 1."""

    @abstractmethod
    def beta_pi(self, t: Times) -> Float[Tensor, "B V"]:
        """Noise mass on each token, beta_t pi_t; sums to 1 - alpha_t."""

    @abstractmethod
    def inflow(self, t: Times) -> Float[Tensor, "B V"]:
        """Rate at which mass enters each token: beta pi' - (alpha'/alpha) pi, for 0 < t < 1.

        It is the second term of the forward rate (Eq. 11) and equals alpha d/dt (beta pi / alpha)
        (App. H.8). It sums to -alpha'/alpha (Lemma H.5).
        """

    def flat_beta_pi(self, t: Times) -> FlatNoise | None:
        """`beta_pi`, bit for bit, if all tokens but the mask have the same noise; else None.

        Optional: computing with two numbers is faster than with rows [B, V], most of all on GPUs.
        """
        return None

    def flat_inflow(self, t: Times) -> FlatNoise | None:
        """`inflow`, bit for bit, if `flat_beta_pi` is not None."""
        return None


def check(schedule: MixingSchedule) -> None:
    """Raise `ScheduleError` if no Markov chain has these marginals, on a grid of times in float64.

    Defs. 3.1 and 3.2 require an alpha that decreases from 1 to 0 and a distribution pi. That is not
    sufficient: the transition from s to t adds beta_t pi_t - (alpha_t/alpha_s) beta_s pi_s to every
    token, and a probability cannot be negative. So inflow must be non-negative on every token.
    """
    from gidd.diffusion.times import sine_times

    times = sine_times(_CHECK_STEPS).flip(0)
    parts = times.split(max(1, _CHECK_ENTRIES // schedule.vocab.size))
    for check_part, times_to_check in ((_alpha_problems, [times]), (_noise_problems, parts)):
        for t in times_to_check:
            for problem in check_part(schedule, t):
                raise ScheduleError(f"{type(schedule).__name__}: {problem}")


def _alpha_problems(schedule: MixingSchedule, t: Times) -> Iterator[str]:
    alpha = schedule.alpha(t)
    ends = alpha[[0, -1]]
    if (ends - ends.new_tensor([1, 0])).abs().max() > _CHECK_TOLERANCE:
        yield (
            f"alpha must be 1 at t = 0 and 0 at t = 1, got {ends[0]:.6g} and {ends[1]:.6g}. "
            "Rescale alpha: data has no noise at t = 0 and is all noise at t = 1."
        )
    rise = alpha.diff()
    if not (rise < _CHECK_TOLERANCE).all():
        i = int(rise.nan_to_num(nan=math.inf).argmax())
        yield (
            f"alpha must decrease from 1 to 0, got alpha({t[i]:.4f}) = {alpha[i]:.6g} and then "
            f"alpha({t[i + 1]:.4f}) = {alpha[i + 1]:.6g}. Use one that never increases."
        )


def _noise_problems(schedule: MixingSchedule, t: Times) -> Iterator[str]:
    alpha, beta_pi, shape = schedule.alpha(t), schedule.beta_pi(t), [len(t), schedule.vocab.size]
    if list(beta_pi.shape) != shape:
        yield (
            f"beta_pi must have shape {shape} (times, vocabulary), got {list(beta_pi.shape)}. "
            "Return one row over the vocabulary for each time."
        )
    negative = ~(beta_pi >= -_CHECK_TOLERANCE)
    if negative.any():
        row, token = negative.nonzero()[0]
        yield (
            f"beta_pi must be non-negative, got {beta_pi[row, token]:.6g} on token {token} at "
            f"t = {t[row]:.4f}. pi must be a probability distribution at every time."
        )
    excess = (beta_pi.sum(-1) + alpha - 1).abs()
    if excess.max() > _CHECK_TOLERANCE:
        row = int(excess.argmax())
        yield (
            f"beta_pi must sum to 1 - alpha = {1 - alpha[row]:.6g} at t = {t[row]:.4f}, got "
            f"{beta_pi[row].sum():.6g}. pi is a distribution: divide it by its sum."
        )
    inside = t[(t > 0) & (t < 1)]
    inflow = schedule.inflow(inside)
    scale = inflow.abs().sum(-1, keepdim=True)
    bad = ~(inflow >= -_CHECK_TOLERANCE * scale) | ~inflow.isfinite()
    if bad.any():
        row, token = bad.nonzero()[0]
        yield (
            f"inflow must be finite and non-negative for 0 < t < 1, got {inflow[row, token]:.6g} "
            f"on token {token} at t = {inside[row]:.4f}. No Markov chain has these marginals: "
            "beta_pi / alpha must never decrease on any token."
        )
