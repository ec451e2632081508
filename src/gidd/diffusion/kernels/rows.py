"""Draw a token from each row of logits in one launch (Triton): `temper` and `categorical.draw`.

One program computes one row: the softmax; the fixed-point sum of each tile of columns, which shows
in which tile the token is; the running sum of that tile. Sums of integers do not depend on order.
"""

# Triton's compiler reads the kernels, not Python: its constants and tuples have types of their own
# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportGeneralTypeIssues=false
# pyright: reportOperatorIssue=false, reportCallIssue=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gidd.diffusion.kernels.math import LOG2E, LOWEST, SMALLEST, exp2, log, scaled, tile_columns

TILE = 4096
"""Columns that a program loads at once."""
DRAW_OPTIONS: dict[str, Any] = {"num_warps": 8, "enable_fp_fusion": True}
"""How `draw_kernel` is compiled."""
_UNIT = tl.constexpr(2.0**60)
"""Probabilities are summed in multiples of its inverse."""
_LOG_TINY = tl.constexpr(-69.07755278982137)


def launch_draw_rows(
    logits: Tensor,
    current: Tensor,
    u: Tensor,
    temperature: float,
    with_odds: bool,
    outputs: Sequence[Tensor],
) -> None:
    """Draw a token from each row of logits, float32 [K, W], -inf where a token has probability 0.

    `current` and the fixed-point uniforms `u` are int64 [K]. The outputs, [K] each: the token,
    int64; its probability at temperature 1; the current token's; the most likely token, int64; its
    probability; the token's `scaled_log_odds`, or 0. Of NaN, probabilities are NaN.
    """
    number, width = logits.shape
    is_greedy = temperature < SMALLEST.value
    draw_kernel[(number,)](
        logits,
        current,
        u,
        *outputs,
        width,
        temperature,
        1.0 if is_greedy else 1.0 / temperature,
        IS_GREEDY=is_greedy,
        IS_TEMPERED=temperature != 1 and not is_greedy,
        ODDS=with_odds,
        TILE=TILE,
        NUM_TILES=triton.next_power_of_2(triton.cdiv(width, TILE)),
        FAST=logits.is_cuda and torch.version.hip is None,
        **DRAW_OPTIONS,
    )


@triton.jit
def draw_kernel(
    logits_ptr,
    current_ptr,
    u_ptr,
    token_ptr,
    p_token_ptr,
    p_current_ptr,
    top_ptr,
    p_top_ptr,
    odds_ptr,
    width,
    temperature,
    inverse_temperature,
    IS_GREEDY: tl.constexpr,
    IS_TEMPERED: tl.constexpr,
    ODDS: tl.constexpr,
    TILE: tl.constexpr,
    NUM_TILES: tl.constexpr,
    FAST: tl.constexpr,
):
    """Compute one row. FAST: approximate instructions of NVIDIA, 2 units in the last place off."""
    n = tl.program_id(0)
    row = logits_ptr + n.to(tl.int64) * width
    sharpness = inverse_temperature * LOG2E
    peak, mass, tempered = _sums(row, width, sharpness, IS_TEMPERED, TILE, FAST)
    scale = _UNIT / tempered
    top, sums = _tiles(row, width, peak, sharpness, scale, IS_GREEDY, TILE, NUM_TILES, FAST)
    token = top
    if not IS_GREEDY:
        total = tl.sum(sums, 0)
        target = scaled(tl.load(u_ptr + n), total)
        is_before = tl.cumsum(sums, 0) <= target
        first = tl.sum(is_before.to(tl.int32), 0) * TILE
        before = tl.sum(tl.where(is_before, sums, 0), 0)
        columns = first + tl.arange(0, TILE)
        fixed = _fixed_point(_logits(row, columns, width), peak, sharpness, scale, FAST)
        drawn = first + tl.sum((before + tl.cumsum(fixed, 0) <= target).to(tl.int32), 0)
        token = tl.where(total > 0, tl.minimum(drawn, width - 1), top)  # 0 in a row with NaN

    logit, logit_current = tl.load(row + token), tl.load(row + tl.load(current_ptr + n))
    tl.store(token_ptr + n, token.to(tl.int64))
    tl.store(p_token_ptr + n, exp2((logit - peak) * LOG2E, FAST) / mass)
    tl.store(p_current_ptr + n, exp2((logit_current - peak) * LOG2E, FAST) / mass)
    tl.store(top_ptr + n, top.to(tl.int64))
    tl.store(p_top_ptr + n, tl.where(mass > 0.0, 1.0 / mass, float("nan")))
    odds = 0.0
    if ODDS:
        log_mass = log(mass)
        odds = logit - peak - log_mass
        if IS_GREEDY or IS_TEMPERED:
            floor = peak + log_mass + _LOG_TINY
            second, others = _others(row, width, token, floor, sharpness, TILE, FAST)
            odds = logit - second + 0.0 * mass
            if IS_TEMPERED:
                odds -= temperature * log(others)
    tl.store(odds_ptr + n, odds)


@triton.jit
def _sums(row, width, sharpness, IS_TEMPERED: tl.constexpr, TILE: tl.constexpr, FAST: tl.constexpr):
    """Return the largest logit and the sums of e^(l - it), at temperature 1 and the other one."""
    columns = tile_columns(TILE, 4)
    top = tl.full((columns.shape[0], 1), LOWEST, tl.float32)
    mass = tl.zeros_like(top)
    tempered = tl.zeros_like(top)
    for start in range(0, width, TILE):
        logits = _logits(row, start + columns, width)
        higher = tl.maximum(top, tl.max(logits, 1, keep_dims=True))
        powers = exp2((logits - higher) * LOG2E, FAST)
        mass = mass * exp2((top - higher) * LOG2E, FAST) + tl.sum(powers, 1, keep_dims=True)
        if IS_TEMPERED:
            powers = exp2((logits - higher) * sharpness, FAST)
            tempered *= exp2((top - higher) * sharpness, FAST)
            tempered += tl.sum(powers, 1, keep_dims=True)
        top = higher
    peak = tl.max(top)
    mass = tl.sum(mass * exp2((top - peak) * LOG2E, FAST))
    if IS_TEMPERED:
        return peak, mass, tl.sum(tempered * exp2((top - peak) * sharpness, FAST))
    else:
        return peak, mass, mass


@triton.jit
def _tiles(
    row,
    width,
    peak,
    sharpness,
    scale,
    IS_GREEDY: tl.constexpr,
    TILE: tl.constexpr,
    NUM_TILES: tl.constexpr,
    FAST: tl.constexpr,
):
    """Return the first column of the largest logit, and the fixed-point sum of each tile."""
    columns = tile_columns(TILE, 4)
    first = tl.full((columns.shape[0],), width, tl.int32)
    index = tl.arange(0, NUM_TILES)
    sums = tl.zeros((NUM_TILES,), tl.int64)
    for start in range(0, width, TILE):
        v = start + columns
        logits = _logits(row, v, width)
        first = tl.minimum(first, tl.min(tl.where(logits == peak, v, width), 1))
        if not IS_GREEDY:
            fixed = _fixed_point(logits, peak, sharpness, scale, FAST)
            sums = tl.where(index * TILE == start, tl.sum(fixed), sums)
    top = tl.min(first, 0)
    return tl.where(top == width, 0, top), sums


@triton.jit
def _others(row, width, token, floor, sharpness, TILE: tl.constexpr, FAST: tl.constexpr):
    """Return the largest logit of all other tokens, and the sum of e^((l - it) / temperature)."""
    columns = tile_columns(TILE, 4)
    top = tl.full((columns.shape[0], 1), LOWEST, tl.float32)
    total = tl.zeros_like(top)
    for start in range(0, width, TILE):
        v = start + columns
        logits = tl.maximum(_logits(row, v, width), floor)
        logits = tl.where((v == token) | (v >= width), float("-inf"), logits)
        higher = tl.maximum(top, tl.max(logits, 1, keep_dims=True))
        powers = exp2((logits - higher) * sharpness, FAST)
        total *= exp2((top - higher) * sharpness, FAST)
        total += tl.sum(powers, 1, keep_dims=True)
        top = higher
    second = tl.max(top)
    return second, tl.sum(total * exp2((top - second) * sharpness, FAST))


@triton.jit
def _fixed_point(logits, peak, sharpness, scale, FAST: tl.constexpr):
    """Probabilities in multiples of 2^-60; 0 for NaN."""
    return tl.maximum(exp2((logits - peak) * sharpness, FAST) * scale, 0.0).to(tl.int64)


@triton.jit
def _logits(row, columns, width):
    return tl.load(row + columns, mask=columns < width, other=float("-inf"))
