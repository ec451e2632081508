"""Indexing, sampling and truncating categorical distributions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gidd.common.config.allowed import number, require_arguments
from gidd.common.devices import define_kernel, has_kernels
from gidd.diffusion.randomness import UNIT_BITS

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

CUT_OFF = number(
    lambda p: 0 <= p < 1, "in [0, 1)", "0 disables it; the paper's App. G studies 1e-7 to 1e-3."
)
_SCALE_BITS = 60
"""Probabilities are summed as integer multiples of 2**-60: exact, in any order."""


def at(p: Float[Tensor, "B L V"], z: Int[Tensor, "B L"]) -> Float[Tensor, "B L"]:
    """Entry of `p` at token `z`, for each position."""
    return p.gather(-1, z[..., None]).squeeze(-1)


def at_token(rows: Float[Tensor, "B V"], z: Int[Tensor, "B L"]) -> Float[Tensor, "B L"]:
    """Entry of a sample's row at token `z`; all positions of the sample use the same row."""
    return rows.gather(-1, z)


def draw(p: Float[Tensor, "*batch V"], u: Int[Tensor, "*batch K"]) -> Int[Tensor, "*batch K"]:
    """Draw K tokens from each row of `p` by inverse CDF, one for each fixed-point uniform in `u`.

    `u` comes from `randomness.random_integers`. Rows must be non-negative, with a sum in (0, 2). A
    rare token is drawn with its exact probability, unlike from a float32 cumulative sum, which
    drops what is below 6e-8 of the running total (an unintended truncation, App. G).
    """
    return draw_by_cdf(fixed_cdf(p), u)


def fixed_cdf(p: Float[Tensor, "*batch V"]) -> Int[Tensor, "*batch V"]:
    """Return cumulative sums of probabilities in fixed point, for `draw_by_cdf`."""
    return _fixed(p).cumsum(-1)


def draw_by_cdf(
    cdf: Int[Tensor, "*batch V"], u: Int[Tensor, "*batch K"]
) -> Int[Tensor, "*batch K"]:
    """`draw` for rows that are used many times: their sums are computed once."""
    target = _scaled(u, cdf[..., -1:])
    token = torch.searchsorted(cdf, target, right=True)
    return token.clamp_max(cdf.shape[-1] - 1)  # of a row of NaN any token, but never an invalid one


def flat_entries(keep: Tensor, mask: Tensor, other: Tensor | None) -> Int[Tensor, "B 3"]:
    """Return the three different entries of rows for `draw_flat`, [B] each; None is 0."""
    other = torch.zeros_like(keep) if other is None else other
    return _fixed(torch.stack([keep, mask, other], 1))


def draw_flat(
    entries: Int[Tensor, "B 3"], size: int, mask_id: int | None, u: Int[Tensor, "B K"]
) -> Int[Tensor, "B K"]:
    """Do as `draw`, bit for bit, with rows (keep, other, ..., other, mask, other, ...) of 1 + V.

    Running totals of equal entries are A, A + f, A + 2f, ...: a division finds the token.
    """
    draw_from = _draw_flat_kernel if has_kernels(u) else _draw_flat
    return draw_from(entries, -1 if mask_id is None else mask_id, size, u)


def _draw_flat(
    entries: Int[Tensor, "B 3"], mask_id: int, size: int, u: Int[Tensor, "B K"]
) -> Int[Tensor, "B K"]:
    keep, mask, other = (entry[:, None] for entry in entries.unbind(1))
    num_others = size - (mask_id >= 0)
    if mask_id < 0:
        mask_id, mask = size, torch.zeros_like(mask)  # behind all tokens
    above = _scaled(u, keep + num_others * other + mask) - keep
    before_mask = mask_id * other
    divisor = other.clamp_min(1)
    left = above.div(divisor, rounding_mode="floor")
    right = (above - before_mask - mask).div(divisor, rounding_mode="floor") + mask_id + 1
    token = torch.where(above < before_mask + mask, mask_id, right)
    token = torch.where(above < before_mask, left, token)
    # of NaN any token, but never an invalid one
    return torch.where(above < 0, 0, token.clamp(0, size - 1) + 1)


_draw_flat_kernel = define_kernel(
    "draw_flat(Tensor entries, int mask_id, int size, Tensor u) -> Tensor",
    definition=_draw_flat,
    shapes=lambda *a: torch.empty_like(a[-1]),
)


def happens(p: Float[Tensor, "*batch"], u: Int[Tensor, "*batch"]) -> Bool[Tensor, "*batch"]:
    """Return True with probability `p`, using one fixed-point uniform each; exact for small `p`.

    For the same `u`, the result is monotone in `p`: True for p implies True for any larger p.
    """
    return (u >> (UNIT_BITS - _SCALE_BITS)) < _fixed(p)


def _fixed(p: Float[Tensor, "*batch"]) -> Int[Tensor, "*batch"]:
    """Return probabilities as multiples of 2**-60, rounded down."""
    return (p * 2.0**_SCALE_BITS).to(torch.int64)


def _scaled(u: Int[Tensor, "*batch K"], total: Int[Tensor, "*batch 1"]) -> Int[Tensor, "*batch K"]:
    """floor(u * total / 2**62) in int64 arithmetic; total < 2**61, so the result is < total."""
    half = UNIT_BITS // 2
    low_bits = (1 << half) - 1
    u_high, u_low = u >> half, u & low_bits
    total_high, total_low = total >> half, total & low_bits
    middle = u_high * total_low + u_low * total_high + (u_low * total_low >> half)
    return u_high * total_high + (middle >> half)


def cut_below(p: Float[Tensor, "*batch V"], minimum: float) -> Float[Tensor, "*batch V"]:
    """Set probabilities below an absolute `minimum` to 0 and renormalise (the cut-off of App. G).

    The most likely token is always kept.
    """
    return _cut(p, minimum, "minimum", torch.full_like(p[..., :1], minimum))


def cut_below_max(p: Float[Tensor, "*batch V"], ratio: float) -> Float[Tensor, "*batch V"]:
    """Set probabilities below `ratio` times the largest one to 0 and renormalise (min-p)."""
    return _cut(p, ratio, "ratio", ratio * p.amax(-1, keepdim=True))


def _cut(p: Tensor, value: float, field: str, threshold: Tensor) -> Tensor:
    require_arguments(**{field: (value, CUT_OFF)})
    kept = torch.where(p >= threshold.minimum(p.amax(-1, keepdim=True)), p, 0)
    return kept / kept.sum(-1, keepdim=True)
