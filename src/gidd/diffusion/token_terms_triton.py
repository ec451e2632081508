"""The parts of `token_terms` that involve x or z alone, of one row in a Triton kernel."""

# Triton's compiler reads the kernels, not Python: its constants and tuples have types of their own
# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportGeneralTypeIssues=false
# pyright: reportOperatorIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from gidd.diffusion.math_triton import LN2, LOG2E, SMALLEST, log, log1p, minus_one, power


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
def gradient_at(own, others, p, log_p, alpha, b):
    """Return the gradient at x or z for c = 1: g is `own` there, of `others` in the mean.

    g - mean x_theta - alpha r, without the cancellation of g - g x_theta where x_theta is near 1.
    """
    alpha_r = alpha * b / tl.maximum(alpha * p + b, SMALLEST)  # over x_theta
    return -own * minus_one(p, log_p) - p * (others + alpha_r)
