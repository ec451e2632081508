"""Output head and NELBO fused, on chunks of tokens: the values of `elbo.py` (docs/fused-loss.md).

The logits of a chunk are overwritten by their gradient, and the gradients of hidden states and head
are accumulated in the forward pass: the logits of all tokens are never allocated at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import record_function

from gidd.common.devices import device_type, has_kernels
from gidd.diffusion.elbo import elbo_weight
from gidd.diffusion.loss.token_terms import LossTokens, loss_rows, select, token_terms
from gidd.diffusion.schedule import Flags, MixingSchedule, Sequences, Times
from gidd.errors import ConfigError

if TYPE_CHECKING:
    from jaxtyping import Float, Int

CHUNK_TOKENS = 1024
"""Tokens per chunk. A larger chunk is slightly faster and needs V more numbers per token."""
CHUNK_TOKENS_OF_KERNELS = 4096
"""The same where a kernel computes the terms: the head's gradient is added up less often."""
LOSS_BLOCK_ENTRIES = 1 << 20
"""Logits processed at once within a chunk, few enough to stay in the cache of a core."""
HEAD_ROWS = 64
"""On GPUs the head is padded to a multiple of it: rows of logits begin at aligned addresses."""
HEAD_AND_LOSS = "gidd::head_and_loss"
"""Label of the fused loss in profiles; `gidd plan` attributes memory by it."""
_SLICE = 8192  # rows of the head whose bf16 gradient is computed at once


class FusedLoss(NamedTuple):
    """The loss, which supports `backward`, and its terms, which have no gradient."""

    loss: Float[Tensor, ""]
    """Sum of loss_weight * (kl + itakura_saito) over all tokens."""
    weight: Float[Tensor, "B L"]
    """The ELBO weight w_t(z_t, x) (Eq. 13), not the loss weight; 0 at tokens not scored."""
    kl: Float[Tensor, "B L"]
    """D_KL of Eq. 14; 0 where both weights are 0, because the head is skipped there."""
    itakura_saito: Float[Tensor, "B L"]
    """D_IS of Eq. 14; 0 where both weights are 0."""


def fused_loss(
    schedule: MixingSchedule,
    t: Times,
    x: Sequences,
    z: Sequences,
    hidden: Float[Tensor, "B L D"],
    head_weight: Float[Tensor, "V D"],
    head_bias: Float[Tensor, " V"],
    loss_weight: Float[Tensor, "B L"],
    chunk_tokens: int | None = None,
    compiled: bool = False,
    scored: Flags | None = None,
) -> FusedLoss:
    """Sum of the weighted divergences of x_theta = softmax(hidden @ head_weight.T + head_bias).

    `head_bias` is -inf at tokens that the denoiser never predicts. `loss_weight` is the weighting's
    value for each token, times the scale of the reduction (1 / number of tokens for a mean); it
    gets no gradient. Hidden states may be bf16, and are cast to it under autocast; everything
    between the matrix products is float32 (float64 if `t` is). `compiled` runs that part through
    `torch.compile`. Tokens that are not `scored` have no terms; their logits are not computed.
    Gradients are computed with the loss, unless under `torch.no_grad`: call `backward` only once,
    and do not train in fp16, whose gradients a scaler would multiply too late.
    """
    if len(head_weight) != (size := schedule.vocab.size):
        required = f"the head must have a row for each of the {size} tokens of schedule.vocab"
        raise ConfigError(f"{required}, got {len(head_weight)}. Build both with one vocabulary.")
    chunk_tokens = _chunk_tokens(chunk_tokens, hidden)
    with record_function(HEAD_AND_LOSS):
        weight = elbo_weight(schedule, t, x, z)
        # all other tokens need no logits: under mask-only noise, visible tokens
        touched = (weight != 0) | (loss_weight != 0)
        if scored is not None:
            touched, weight = touched & scored, weight * scored
        flat = schedule.flat_beta_pi(t)
        masks_only = flat is not None and flat.other is None
        row = select(touched, masks_only or scored is not None, device_type(hidden))
        width = _width(schedule.vocab.size, hidden)
        tokens = LossTokens.of(schedule, t, x, z, loss_weight * touched, row, width)
        states = _in_autocast(hidden.flatten(0, 1))
        loss, kl, itakura_saito = _head_loss(
            states, head_weight, head_bias, tokens, chunk_tokens, compiled
        )
        if device_type(hidden) != "cpu":  # others were computed as well
            kl, itakura_saito = (torch.where(touched.flatten(), v, 0) for v in (kl, itakura_saito))
        return FusedLoss(loss, weight, kl.view_as(x), itakura_saito.view_as(x))


def fused_cross_entropy(
    labels: Int[Tensor, " N"],
    hidden: Float[Tensor, "N D"],
    head_weight: Float[Tensor, "V D"],
    head_bias: Float[Tensor, " V"] | None,
    scale: float | Float[Tensor, ""],
    chunk_tokens: int | None = None,
) -> tuple[Float[Tensor, ""], Float[Tensor, " N"]]:
    """Cross-entropy of softmax(hidden @ head_weight.T + head_bias), computed as `fused_loss` is.

    Returns its sum times the scale, which supports `backward`, and -log p of each token.
    """
    with record_function(HEAD_AND_LOSS):
        bias = head_weight.new_zeros(len(head_weight)) if head_bias is None else head_bias
        if isinstance(scale, Tensor):
            weight = scale.float().expand(labels.shape)
        else:
            weight = torch.full(labels.shape, scale, device=hidden.device)
        states, tokens = _in_autocast(hidden), LossTokens.clean(labels, weight)
        chunk_tokens = _chunk_tokens(chunk_tokens, hidden)
        loss, nll, _ = _head_loss(states, head_weight, bias, tokens, chunk_tokens, False)
        return loss, nll


def _head_loss(
    hidden: Tensor, head_weight: Tensor, head_bias: Tensor, *arguments: Any
) -> tuple[Tensor, Tensor, Tensor]:
    trained = [part for part in (hidden, head_weight, head_bias) if part.requires_grad]
    is_training = torch.is_grad_enabled() and bool(trained)
    if is_training and torch.float16 in {part.dtype for part in (hidden, *trained)}:
        # stored before a gradient scaler multiplies the loss: small gradients would be rounded to 0
        raise ConfigError(
            "hidden states and head must not be float16 in training, got float16: their gradients "
            "are too small for it. Use bfloat16 (autocast, or bf16=True of a trainer) or float32."
        )
    with torch.autocast(hidden.device.type, enabled=False):
        return _HeadLoss.apply(hidden, head_weight, head_bias, *arguments, is_training)


def _in_autocast(hidden: Tensor) -> Tensor:
    """Return hidden states in the type of matrix products."""
    device = hidden.device.type
    is_autocast = torch.is_autocast_enabled(device)
    return hidden.to(torch.get_autocast_dtype(device)) if is_autocast else hidden


def _chunk_tokens(chunk_tokens: int | None, hidden: Tensor) -> int:
    if chunk_tokens is None:
        return CHUNK_TOKENS_OF_KERNELS if has_kernels(hidden) else CHUNK_TOKENS
    if chunk_tokens < 1:
        got = f"chunk_tokens must be at least 1, got {chunk_tokens}"
        raise ConfigError(f"{got}. Use {CHUNK_TOKENS}.")
    return chunk_tokens


class _HeadLoss(torch.autograd.Function):
    """Computes loss and gradients together."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        head_weight: Tensor,
        head_bias: Tensor,
        tokens: LossTokens,
        chunk_tokens: int,
        compiled: bool,
        is_training: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        weight, bias = _head_of(head_weight, head_bias, hidden)
        num_tokens, size, dtype = len(tokens.row), len(head_weight), tokens.alpha.dtype
        kl, itakura_saito = tokens.alpha.new_zeros(2, len(hidden))
        d_hidden = d_weight = d_bias = None
        if is_training:
            # the first chunk overwrites it
            new = torch.empty_like if num_tokens else torch.zeros_like
            d_hidden, d_weight = torch.zeros_like(hidden), new(weight, dtype=dtype)
            d_bias = torch.zeros_like(bias, dtype=dtype)
        buffer = hidden.new_empty(min(chunk_tokens, num_tokens), len(weight))
        for start in range(0, num_tokens, chunk_tokens):
            chunk = tokens.rows(slice(start, start + chunk_tokens))
            states = hidden[chunk.row]
            logits = torch.addmm(bias, states, weight.T, out=buffer[: len(states)])
            terms = _to_gradient(logits, chunk, d_bias, compiled)
            kl[chunk.row], itakura_saito[chunk.row] = terms
            if d_hidden is not None and d_weight is not None:
                d_hidden[chunk.row] = logits @ weight
                _add_product(d_weight, logits, states, first=start == 0)
            del chunk, states, logits, terms
        del buffer  # before the head's gradient is converted
        if d_weight is not None and d_bias is not None:
            d_head = d_weight[:size].to(head_weight.dtype), d_bias[:size].to(head_bias.dtype)
            ctx.gradients = d_hidden, *d_head
        ctx.mark_non_differentiable(kl, itakura_saito)
        return tokens.loss_weight @ (kl + itakura_saito)[tokens.row], kl, itakura_saito

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError(  # as torch does
                "fused_loss: backward was called a second time, but the gradients are freed after "
                "the first. Call fused_loss again, or use elbo_terms, which keeps its graph."
            )
        gradients, ctx.gradients = ctx.gradients, None
        # in place: a copy of the head's gradient would be the largest tensor
        return *(gradient.mul_(outputs[0]) for gradient in gradients), None, None, None, None


def _head_of(weight: Tensor, bias: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Return the head in the type of `hidden`; on GPUs with padding, whose logits are -inf."""
    size, width = len(weight), _width(len(weight), hidden)
    if size == width:
        return weight.to(hidden.dtype), bias.to(hidden.dtype)
    padded = weight.new_zeros(width, weight.shape[1], dtype=hidden.dtype)
    padded[:size] = weight
    return padded, F.pad(bias.to(hidden.dtype), (0, width - size), value=-math.inf)


def _width(size: int, hidden: Tensor) -> int:
    """Return the number of logits per token, with padding."""
    return size if device_type(hidden) == "cpu" else -(-size // HEAD_ROWS) * HEAD_ROWS


def _add_product(total: Tensor, d_logits: Tensor, states: Tensor, first: bool) -> None:
    """total += d_logits.T @ states, or total = ... for the first chunk."""
    beta = 0 if first else 1
    if d_logits.dtype == total.dtype:
        torch.addmm(total, d_logits.T, states, beta=beta, out=total)
    elif device_type(total) == "cuda":
        # accumulated in float32: the product itself is never rounded
        torch.addmm(total, d_logits.T, states, out_dtype=total.dtype, beta=beta, out=total)
    else:
        # a bf16 product is added to a float32 total, in slices to save memory
        for part, columns in zip(total.split(_SLICE), d_logits.split(_SLICE, dim=1), strict=True):
            product = columns.T @ states
            part.copy_(product) if first else part.add_(product)


def _to_gradient(
    logits: Float[Tensor, "N V"], tokens: LossTokens, d_bias: Tensor | None, compiled: bool
) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """Return KL and IS; overwrite logits by the gradient and add its sum to `d_bias`, if any."""
    if has_kernels(logits) and tokens.alpha.dtype == torch.float32:
        loss = loss_rows(logits, tokens, d_bias is not None)
        if d_bias is not None:
            d_bias += logits.sum(0, dtype=d_bias.dtype)
        return loss
    terms = _compiled_token_terms() if compiled else token_terms
    kl, itakura_saito = torch.empty_like(tokens.alpha), torch.empty_like(tokens.alpha)
    for rows in _blocks(tokens, logits, with_gradient=d_bias is not None):
        kl[rows], itakura_saito[rows], gradient = terms(
            logits[rows], tokens.rows(rows).gathered(), d_bias is not None
        )
        if d_bias is not None:
            d_bias += gradient.sum(0)
            logits[rows] = gradient
    return kl, itakura_saito


def _blocks(tokens: LossTokens, logits: Tensor, with_gradient: bool) -> Iterator[slice]:
    """Yield rows to compute at once, few enough for a core's cache; on a GPU, all.

    The rows of one sample share a row of noise.
    """
    if device_type(logits) != "cpu":
        yield slice(None)
        return
    size, ends = max(1, LOSS_BLOCK_ENTRIES // logits.shape[-1]), [len(logits)]
    if tokens.sample is not None:
        _, counts = tokens.sample.unique_consecutive(return_counts=True)
        if with_gradient or len(counts) * size <= len(logits):  # else they are short: mix them
            ends = list(accumulate(counts.tolist()))
    for start, end in pairwise([0, *ends]):
        for first in range(start, end, size):
            yield slice(first, min(first + size, end))


_compiled_token_terms = cache(lambda: torch.compile(token_terms, dynamic=True))
