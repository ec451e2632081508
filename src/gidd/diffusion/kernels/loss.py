"""KL, IS and the gradient of a chunk of tokens in one launch (Triton).

The values of `token_terms`, for logits that are padded with -inf to a multiple of 16 columns, so
that 16 bytes are loaded at a time. One program computes one row, in three passes: its softmax, the
sums S and alpha sum(r) of docs/fused-loss.md, the gradient. The first reads device memory, the
others find the row in the L2 cache: 16 warps per row and two rows per multiprocessor.

- Powers of 2: x_theta is 2^(l log2(e) - peak) / mass, one FMA and a power.
- Flat noise: with u = alpha x_theta / b, S = b sum log(1 + u) and alpha sum(r) = b sum u / (1 + u).
  Four logits share one logarithm and one reciprocal, of (1 + u0) (1 + u1) (1 + u2) (1 + u3).
- The gradient has further terms at x and z, which are stored afterwards.
"""

# Triton's compiler reads the kernels, not Python: its constants and tuples have types of their own
# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportGeneralTypeIssues=false
# pyright: reportOperatorIssue=false, reportCallIssue=false

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gidd.diffusion.kernels.math import (
    LN2,
    LOG2E,
    LOWEST,
    SMALLEST,
    exp2,
    inverse,
    log,
    log1p,
    minus_one,
    power,
    tile_columns,
)

TILE_BYTES = 8192
"""Bytes of a row that a program loads at once: 16 for each of its 512 threads."""
LOSS_OPTIONS: dict[str, dict[str, Any]] = {
    # 64 registers: two programs per multiprocessor
    "cuda": {"num_warps": 16, "maxnreg": 64, "enable_fp_fusion": True},
    "hip": {"num_warps": 8, "enable_fp_fusion": True},  # a warp of AMD has 64 threads
}
"""How `loss_kernel` is compiled, by backend."""
_MAX_RATIO = tl.constexpr(3e9)
"""Largest alpha / b in products of four, which are at most (1 + alpha / (4 b))^4: below 1e36."""


def launch_loss_rows(logits: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    """Return KL and IS [N] and overwrite logits [N, W] by the gradient of loss_weight (KL + IS).

    The arguments are the fields of `LossTokens` from x on, and `with_gradient`. `noise` is None if
    no token that can be predicted has any (masks only), [N] if all of them have the same, else
    [B, W] with 0 in padding columns. Without `z`, KL is the cross-entropy at x, and IS is 0.
    """
    *tokens, with_gradient = arguments
    terms = torch.empty_like(tokens[5]), torch.empty_like(tokens[5])
    backend = "cuda" if torch.version.hip is None else "hip"
    loss_kernel[(len(logits),)](
        logits,
        *tokens,
        *terms,
        logits.shape[1],
        GRADIENT=with_gradient,
        BLOCK=TILE_BYTES // logits.element_size(),
        FAST=logits.is_cuda and backend == "cuda",
        **LOSS_OPTIONS[backend],
    )
    return terms


@triton.jit
def loss_kernel(
    logits_ptr,
    x_ptr,
    z_ptr,
    alpha_ptr,
    noise_x_ptr,
    noise_z_ptr,
    loss_weight_ptr,
    noise_ptr,
    sample_ptr,
    kl_ptr,
    itakura_saito_ptr,
    width,
    GRADIENT: tl.constexpr,
    BLOCK: tl.constexpr,
    FAST: tl.constexpr,
):
    """Compute one row. FAST: approximate instructions of NVIDIA, 2 units in the last place off."""
    n = tl.program_id(0)
    row = logits_ptr + n.to(tl.int64) * width
    dtype = row.dtype.element_ty
    peak, mass = _softmax_sums(row, width, BLOCK, FAST)
    x = tl.load(x_ptr + n)
    if z_ptr is None:
        p_x, log_x = softmax_at(row + x, peak, mass, FAST)
        tl.store(kl_ptr + n, -log_x)
        tl.store(itakura_saito_ptr + n, 0.0)
        if GRADIENT:
            c = tl.load(loss_weight_ptr + n)
            tl.debug_barrier()  # all threads have loaded the logit at x
            _store_gradient(row, width, peak, c / mass, 0.0, 0.0, False, BLOCK, FAST)
            tl.debug_barrier()
            tl.store(row + x, (c * minus_one(p_x, log_x)).to(dtype))
    else:
        alpha, share = tl.load(alpha_ptr + n), 1.0 / mass
        k, S, alpha_R = 0.0, 0.0, 0.0
        if sample_ptr is not None:
            noise_row = noise_ptr + tl.load(sample_ptr + n) * width
            S, alpha_R = _sums(row, noise_row, width, peak, alpha * share, BLOCK, FAST)
        elif noise_ptr is not None:
            b = tl.maximum(tl.load(noise_ptr + n), SMALLEST)
            k = alpha / b
            S, alpha_R = _flat_sums(row, width, peak, k * share, k < _MAX_RATIO, BLOCK, FAST)
            k, S, alpha_R = k * share, b * S, b * alpha_R

        z = tl.load(z_ptr + n)
        b_x, b_z = tl.load(noise_x_ptr + n), tl.load(noise_z_ptr + n)
        p_x, log_x = softmax_at(row + x, peak, mass, FAST)
        p_z, log_z = softmax_at(row + z, peak, mass, FAST)
        kl, g_x = kl_at_x(p_x, log_x, alpha, b_x, S)
        itakura_saito, g_z = itakura_saito_at_z(p_z, log_z, alpha, b_x, b_z, z == x)
        tl.store(kl_ptr + n, tl.where(mass == mass, kl, mass))  # NaN if a logit is
        tl.store(itakura_saito_ptr + n, tl.where(mass == mass, itakura_saito, mass))
        if GRADIENT:
            c = tl.load(loss_weight_ptr + n)
            mean = g_x + g_z - alpha_R
            own_x = tl.where(z == x, g_x + g_z, g_x)
            d_x = gradient_at(own_x, mean - own_x, p_x, log_x, alpha, b_x)
            d_z = gradient_at(g_z, mean - g_z, p_z, log_z, alpha, b_z)
            of_p, of_r, a = -c * mean * share, -c * alpha * share, alpha * share
            tl.debug_barrier()  # all threads have loaded the logits at x and z
            if sample_ptr is not None:
                _store_any_gradient(row, noise_row, width, peak, of_p, of_r, a, BLOCK, FAST)
            else:
                is_flat: tl.constexpr = noise_ptr is not None
                _store_gradient(row, width, peak, of_p, of_r, k, is_flat, BLOCK, FAST)
            tl.debug_barrier()
            tl.store(row + z, (c * d_z).to(dtype))
            tl.store(row + x, (c * d_x).to(dtype))  # the last one: z may be x


@triton.jit
def _softmax_sums(row, width, BLOCK: tl.constexpr, FAST: tl.constexpr):
    """Return peak, the largest l log2(e), and mass, the sum of 2^(l log2(e) - peak)."""
    columns = _columns(row, BLOCK)
    top = tl.full((columns.shape[0], 1), LOWEST, tl.float32)
    total = tl.zeros_like(top)
    full = width // (4 * BLOCK) * (4 * BLOCK)
    for start in range(0, full, 4 * BLOCK):
        l0 = tl.load(row + start + columns).to(tl.float32)
        l1 = tl.load(row + start + BLOCK + columns).to(tl.float32)
        l2 = tl.load(row + start + 2 * BLOCK + columns).to(tl.float32)
        l3 = tl.load(row + start + 3 * BLOCK + columns).to(tl.float32)
        highest = tl.maximum(tl.maximum(l0, l1), tl.maximum(l2, l3))
        higher = tl.maximum(top, tl.max(highest, 1, keep_dims=True) * LOG2E)
        sum01 = power(l0, higher, FAST) + power(l1, higher, FAST)
        sum23 = power(l2, higher, FAST) + power(l3, higher, FAST)
        total = total * exp2(top - higher, FAST) + tl.sum(sum01 + sum23, 1, keep_dims=True)
        top = higher
    for start in range(full, width, BLOCK):
        logits = _masked_logits(row, start + columns, width)
        higher = tl.maximum(top, tl.max(logits, 1, keep_dims=True) * LOG2E)
        powers = power(logits, higher, FAST)
        total = total * exp2(top - higher, FAST) + tl.sum(powers, 1, keep_dims=True)
        top = higher
    peak = tl.max(top)
    return peak, tl.sum(total * exp2(top - peak, FAST))


@triton.jit
def _flat_sums(row, width, peak, k, is_small, BLOCK: tl.constexpr, FAST: tl.constexpr):
    """Return the sums of log(1 + u) and of u / (1 + u), u = k 2^(l log2(e) - peak)."""
    columns = _columns(row, BLOCK)
    logs = tl.zeros((columns.shape[0],), tl.float32)
    ratios = tl.zeros_like(logs)
    in_fours = tl.where(is_small, width // (4 * BLOCK) * (4 * BLOCK), 0)
    for start in range(0, in_fours, 4 * BLOCK):
        u0 = k * power(tl.load(row + start + columns).to(tl.float32), peak, FAST)
        u1 = k * power(tl.load(row + start + BLOCK + columns).to(tl.float32), peak, FAST)
        u2 = k * power(tl.load(row + start + 2 * BLOCK + columns).to(tl.float32), peak, FAST)
        u3 = k * power(tl.load(row + start + 3 * BLOCK + columns).to(tl.float32), peak, FAST)
        # products minus 1: one of numbers close to 1 would lose most digits of u
        m01 = u0 * u1 + (u0 + u1)
        m23 = u2 * u3 + (u2 + u3)
        m = m01 * m23 + (m01 + m23)
        logs += tl.sum(log1p(m), 1)
        # u0 / (1 + u0) + u1 / (1 + u1) = (m01 + u0 u1) / (1 + m01)
        n01 = u0 * u1 + m01
        n23 = u2 * u3 + m23
        numerator = (n01 * m23 + n01) + (n23 * m01 + n23)
        ratios += tl.sum(numerator * inverse(1.0 + m, FAST), 1)
    for start in range(in_fours, width, BLOCK):
        u = k * power(_masked_logits(row, start + columns, width), peak, FAST)
        logs += tl.sum(log1p(u), 1)
        ratios += tl.sum(u * inverse(1.0 + u, FAST), 1)
    return tl.sum(logs, 0), tl.sum(ratios, 0)


@triton.jit
def _sums(row, noise_row, width, peak, alpha, BLOCK: tl.constexpr, FAST: tl.constexpr):
    """Return S and alpha sum(r) for a row of noise; `alpha` is divided by the mass."""
    columns = _columns(row, BLOCK)
    logs = tl.zeros((columns.shape[0],), tl.float32)
    ratios = tl.zeros_like(logs)
    for start in range(0, width, BLOCK):
        v = start + columns
        b = tl.load(noise_row + v, mask=v < width, other=0.0)
        predicted = alpha * power(_masked_logits(row, v, width), peak, FAST)
        u = predicted * inverse(tl.maximum(b, SMALLEST), FAST)
        logs += tl.sum(b * log1p(u), 1)
        ratios += tl.sum(predicted * inverse(1.0 + u, FAST), 1)
    return tl.sum(logs, 0), tl.sum(ratios, 0)


@triton.jit
def _store_gradient(
    row, width, peak, of_p, of_r, k, IS_NOISY: tl.constexpr, BLOCK: tl.constexpr, FAST: tl.constexpr
):
    """Overwrite a row by p (of_p + of_r / (1 + k p)), p = 2^(l log2(e) - peak)."""
    columns = _columns(row, BLOCK)
    full = width // (4 * BLOCK) * (4 * BLOCK)
    dtype = row.dtype.element_ty
    for start in range(0, full, 4 * BLOCK):
        for i in tl.static_range(4):
            v = start + i * BLOCK + columns
            p = power(tl.load(row + v).to(tl.float32), peak, FAST)
            factor = of_p + of_r * inverse(1.0 + k * p, FAST) if IS_NOISY else of_p
            tl.store(row + v, (p * factor).to(dtype))
    for start in range(full, width, BLOCK):
        v = start + columns
        p = power(_masked_logits(row, v, width), peak, FAST)
        factor = of_p + of_r * inverse(1.0 + k * p, FAST) if IS_NOISY else of_p
        tl.store(row + v, (p * factor).to(dtype), mask=v < width)


@triton.jit
def _store_any_gradient(
    row, noise_row, width, peak, of_p, of_r, alpha, BLOCK: tl.constexpr, FAST: tl.constexpr
):
    """Overwrite a row by p (of_p + of_r b / (b + alpha p)), p = 2^(l log2(e) - peak)."""
    columns = _columns(row, BLOCK)
    for start in range(0, width, BLOCK):
        v = start + columns
        b = tl.load(noise_row + v, mask=v < width, other=0.0)
        p = power(_masked_logits(row, v, width), peak, FAST)
        r = b * inverse(tl.maximum(b + alpha * p, SMALLEST), FAST)
        tl.store(row + v, (p * (of_p + of_r * r)).to(row.dtype.element_ty), mask=v < width)


@triton.jit
def _columns(row, BLOCK: tl.constexpr):
    return tile_columns(BLOCK, 128 // row.dtype.element_ty.primitive_bitwidth)


@triton.jit
def _masked_logits(row, v, width):
    return tl.load(row + v, mask=v < width, other=float("-inf")).to(tl.float32)


@triton.jit
def softmax_at(logit_ptr, peak, mass, FAST: tl.constexpr):
    """Return the probability of one token and its logarithm, also where the former is 0."""
    logit = tl.load(logit_ptr).to(tl.float32)
    return power(logit, peak, FAST) / mass, tl.fma(logit, LOG2E, -peak) * LN2 - log(mass)


@triton.jit
def kl_at_x(p_x, log_x, alpha, b_x, S):
    """Return KL and g_x, from x_theta at x and its logarithm."""
    b, predicted, gap = tl.maximum(b_x, SMALLEST), alpha * p_x, -alpha * minus_one(p_x, log_x)
    is_noisy = b_x > SMALLEST
    log_ratio = tl.where(is_noisy, log1p(gap / (predicted + b)), -log_x)  # log(q / p)
    kl = (alpha + b_x) * log_ratio + b_x * log1p(predicted / b) - S
    return kl, -alpha * tl.where(is_noisy, predicted / (predicted + b), 1.0)


@triton.jit
def itakura_saito_at_z(p_z, log_z, alpha, b_x, b_z, is_kept):
    """Return IS and g_z, from x_theta at z and its logarithm.

    IS is q/p - log(q/p) - 1, by the series of `itakura_saito_term` where q/p is close to 1.
    """
    gap = -alpha * tl.where(is_kept, minus_one(p_z, log_z), p_z)  # q - p
    q, p = tl.where(is_kept, alpha + b_x, b_z), tl.maximum(alpha * p_z + b_z, SMALLEST)
    is_near = tl.abs(gap) < 0.1 * p
    d = tl.where(is_near, gap / p, 0.0)
    y = d / (2.0 + d)
    y2 = y * y
    tail = 1 / 3 + y2 * (1 / 5 + y2 * (1 / 7 + y2 * (1 / 9 + y2 * (1 / 11 + y2 * (1 / 13)))))
    ratio = tl.where(is_near, 1.0, tl.maximum(q, SMALLEST) / p)
    itakura_saito = tl.where(is_near, d * y - 2.0 * y * y2 * tail, (ratio - 1.0) - log(ratio))
    return itakura_saito, -tl.where(b_z > SMALLEST, alpha * p_z / p, 1.0) * gap / p


@triton.jit
def gradient_at(g, others, p, log_p, alpha, b):
    """Return the gradient at x or z for c = 1: `g` there, `others` in the mean of tokens.

    g - mean x_theta - alpha r, without the cancellation of g - g x_theta where x_theta is near 1.
    """
    alpha_r = alpha * b / tl.maximum(alpha * p + b, SMALLEST)  # over x_theta
    return -g * minus_one(p, log_p) - p * (others + alpha_r)
