"""`draw_flat` in one launch (Triton): the same tokens as `gidd.diffusion.categorical`."""

# Triton's compiler reads the kernels, not Python: its constants and tuples have types of their own
# pyright: basic, reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 512


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
    total = keep + num_others * each + mask

    u = tl.load(u_ptr + row * length + position, mask=inside, other=0)
    low = (1 << 31) - 1
    middle = (u >> 31) * (total & low) + (u & low) * (total >> 31)
    middle += ((u & low) * (total & low)) >> 31
    above = (u >> 31) * (total >> 31) + (middle >> 31) - keep

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
    grid = rows, triton.cdiv(length, _BLOCK)
    stride = 0 if len(entries) == 1 else 1
    _draw_flat_kernel[grid](
        out,
        entries.contiguous(),
        u,
        mask_id,
        size,
        length,
        stride,
        BLOCK=_BLOCK,
        enable_fp_fusion=True,  # without it Triton 3.9 warns
    )
    return out
