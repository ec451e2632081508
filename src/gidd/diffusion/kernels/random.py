"""`random_integers` and `draw_flat` in one launch each (Triton), bit for bit."""

# Triton's compiler reads the kernels, not Python: its constants and tuples have types of their own
# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportGeneralTypeIssues=false
# pyright: reportOperatorIssue=false, reportCallIssue=false

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gidd.diffusion.kernels.math import scaled

_BLOCK = 512
"""Positions of one program."""
RANDOM_OPTIONS: dict[str, Any] = {"num_warps": 4, "enable_fp_fusion": True}
"""How these kernels are compiled; without the latter Triton 3.9 warns."""


def launch_random_integers(*address: Any) -> Tensor:
    """Return fixed-point uniforms [B, L]; seed and step are numbers, or int64 [B] if not None."""
    seed, seeds, stream, step, steps, sample, position = address
    num_samples, length = len(sample), len(position)
    integers = torch.empty(num_samples, length, dtype=torch.int64, device=sample.device)
    # the signed numbers of the lowest 32 bits
    words = seed, seed >> 32, step
    low, high, step = ((word + (1 << 31)) % (1 << 32) - (1 << 31) for word in words)
    addresses = seeds, low, high, stream, steps, step, sample, position
    grid = num_samples, triton.cdiv(length, _BLOCK)
    options = {"BLOCK": _BLOCK, **RANDOM_OPTIONS}
    random_integers_kernel[grid](integers, *addresses, length, **options)
    return integers


@triton.jit(do_not_specialize=["seed_low", "seed_high", "stream", "step"])
def random_integers_kernel(
    integers_ptr,
    seeds_ptr,
    seed_low,
    seed_high,
    stream,
    steps_ptr,
    step,
    sample_ptr,
    position_ptr,
    length,
    BLOCK: tl.constexpr,
):
    """Compute a block of positions of one sample; seed and step are numbers or have pointers."""
    n = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    if seeds_ptr is not None:
        seed = tl.load(seeds_ptr + n)
        seed_low, seed_high = seed, seed >> 32
    if steps_ptr is not None:
        step = tl.load(steps_ptr + n)
    sample = tl.load(sample_ptr + n)
    position = tl.load(position_ptr + column, mask=column < length, other=0).to(tl.uint32)
    zero = tl.zeros((BLOCK,), tl.uint32)
    # the key of the stream: the seed, encrypted with the stream as counter
    key = zero + seed_low.to(tl.uint32), zero + seed_high.to(tl.uint32)
    key = _philox(zero + stream.to(tl.uint32), zero, zero, zero, *key)
    low, high = zero + sample.to(tl.uint32), zero + (sample >> 32).to(tl.uint32)
    c0, c1 = _philox(position, low, high, zero + step.to(tl.uint32), *key)
    bits = (c0.to(tl.int64) << 30) | (c1 >> 2).to(tl.int64)
    tl.store(integers_ptr + n.to(tl.int64) * length + column, bits, mask=column < length)


@triton.jit
def _philox(c0, c1, c2, c3, k0, k1):
    """The first two words of Philox4x32-10, from uint32 tensors; products and sums wrap."""
    for _ in tl.static_range(10):
        before0, before2 = c0, c2
        c0 = tl.umulhi(before2, 0xCD9E8D57) ^ c1 ^ k0
        c1 = before2 * 0xCD9E8D57
        c2 = tl.umulhi(before0, 0xD2511F53) ^ c3 ^ k1
        c3 = before0 * 0xD2511F53
        k0 += 0x9E3779B9
        k1 += 0xBB67AE85
    return c0, c1


@triton.jit
def _draw_flat_kernel(
    out_ptr, entries_ptr, u_ptr, mask_id, size, length, stride, BLOCK: tl.constexpr
):
    """Draw as `categorical._draw_flat` does: one row of entries, BLOCK positions per program."""
    row = tl.program_id(0).to(tl.int64)
    position = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = position < length
    entry = entries_ptr + (row * stride) * 3
    keep, mask, each = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2)
    has_mask = mask_id >= 0
    mask = tl.where(has_mask, mask, 0)
    place = tl.where(has_mask, mask_id, size).to(tl.int64)
    num_others = tl.where(has_mask, size - 1, size).to(tl.int64)
    u = tl.load(u_ptr + row * length + position, mask=inside, other=0)
    above = scaled(u, keep + num_others * each + mask) - keep
    before = place * each
    divisor = tl.maximum(each, 1)
    left = above // divisor
    right = (above - before - mask) // divisor + place + 1
    token = tl.where(above < before, left, tl.where(above < before + mask, place, right))
    token = tl.minimum(tl.maximum(token, 0), size - 1) + 1
    tl.store(out_ptr + row * length + position, tl.where(above < 0, 0, token), mask=inside)


def launch_draw_flat(entries: Tensor, mask_id: int, size: int, u: Tensor) -> Tensor:
    """Return the entry drawn for each fixed-point uniform [B, K]; one row of entries serves all."""
    u = u.contiguous()
    out = torch.empty_like(u)
    rows, length = u.shape
    arguments = out, entries.contiguous(), u, mask_id, size, length, int(len(entries) > 1)
    grid = rows, triton.cdiv(length, _BLOCK)
    _draw_flat_kernel[grid](*arguments, BLOCK=_BLOCK, **RANDOM_OPTIONS)
    return out
