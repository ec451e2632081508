"""Elementary functions of Triton kernels, with a known error.

Triton's own logarithm is `lg2.approx` on NVIDIA, 2^-22 off near 1. Those here consist of sums and
products: the interpreter computes what a GPU does.
"""

# Triton's compiler reads the kernels, not Python: its constants and tuples have types of their own
# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportGeneralTypeIssues=false
# pyright: reportOperatorIssue=false

from __future__ import annotations

import triton
import triton.language as tl

SMALLEST = tl.constexpr(1e-30)
"""`gidd.diffusion.schedule.TINY` as a constant of kernels."""
LOWEST = tl.constexpr(-1e30)
"""Below all logits: a maximum that starts at -inf would give -inf - (-inf)."""
LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
_TWO_THIRDS = tl.constexpr(0x3F2AAAAB)
"""Bits of 2/3 as a float32."""
_EXPONENT = tl.constexpr(-0x800000)
"""Bits of sign and exponent of a float32."""


@triton.jit
def tile_columns(NUMBER: tl.constexpr, OWN: tl.constexpr):
    """Columns 0, 1, ... of a tile [NUMBER // OWN, OWN]; a thread has rows: it sums them itself."""
    return tl.arange(0, NUMBER // OWN)[:, None] * OWN + tl.arange(0, OWN)[None, :]


@triton.jit
def power(logits, peak, FAST: tl.constexpr):
    """2^(logits log2(e) - peak)."""
    return exp2(tl.fma(logits, LOG2E, -peak), FAST)


@triton.jit
def exp2(x, FAST: tl.constexpr):
    """2^x; FAST (NVIDIA): 2 units in the last place off, and 0 below 1e-38."""
    if FAST:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return tl.exp2(x)


@triton.jit
def inverse(x, FAST: tl.constexpr):
    """1 / x; FAST (NVIDIA): 1 unit in the last place off, and 0 below 1e-38."""
    if FAST:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return 1.0 / x


@triton.jit
def log(x):
    """Logarithm of a finite x >= 1e-37, 1e-7 of it off; NaN of NaN."""
    return _log(x, x - 1.0) + (x - x)


@triton.jit
def log1p(m):
    """log(1 + m) for 0 <= m < 3e38, 1e-7 of it off; some number for NaN."""
    return _log(1.0 + m, m)


@triton.jit
def _log(x, minus_1):
    """Logarithm of x; `minus_1` is x - 1, perhaps before the rounding of x."""
    bits = x.to(tl.int32, bitcast=True)
    exponent = (bits - _TWO_THIRDS) & _EXPONENT  # x = 2^i (1 + f) with f in [-1/3, 1/3)
    f = (bits - exponent).to(tl.float32, bitcast=True) - 1.0
    f = tl.where(exponent == 0, minus_1, f)
    # log(1 + f) = f + f^2 (-1/2 + f q(f)), q of least relative error
    q = 0.138202242 * f - 0.151221829
    q = q * f + 0.140423116
    q = q * f - 0.164723263
    q = q * f + 0.200079194
    q = q * f - 0.250042378
    q = q * f + 0.33333266
    fraction = (q * f - 0.5) * (f * f) + f
    return exponent.to(tl.float32) * (LN2 * 2.0**-23) + fraction


@triton.jit
def minus_one(y, log_y):
    """y - 1 for 0 <= y <= 1 without cancellation, from its logarithm.

    (y - 1) / log(y) hardly depends on the rounding of y (Kahan).
    """
    is_near = (y > 0.5) & (y != 1.0)
    near = (y - 1.0) / log(tl.where(is_near, y, 0.5)) * log_y
    return tl.where(is_near, near, tl.where(y == 1.0, log_y, y - 1.0))
