"""Output head and NELBO fused, computed on chunks of tokens.

Same values as the reference in `elbo.py`; docs/fused-loss.md derives it. The logits of a chunk are
overwritten by their gradient, and those of hidden states and head accumulated in the forward pass:
the logits of all tokens are never allocated at once; the backward pass only scales the gradients.
"""

from __future__ import annotations

from functools import cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.profiler import record_function

from gidd.diffusion.categorical import at_token
from gidd.diffusion.elbo import elbo_weight, itakura_saito_term
from gidd.diffusion.schedule import TINY, MixingSchedule
from gidd.errors import ConfigError

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

CHUNK_TOKENS = 1024
"""Tokens per chunk. A larger chunk is slightly faster and needs V more numbers per token."""
LOSS_BLOCK_ENTRIES = 1 << 20
"""Logits processed at once within a chunk, few enough to stay in the cache of a core."""
HEAD_AND_LOSS = "gidd::head_and_loss"
"""Label of the fused loss in profiles; `gidd plan` attributes memory by it."""
_SLICE = 8192  # rows of the head whose bf16 gradient is computed at once


class FusedLoss(NamedTuple):
    """The loss, which supports `backward`, and its terms, which have no gradient."""

    loss: Float[Tensor, ""]
    """Sum of loss_weight * (kl + itakura_saito) over all tokens."""

    weight: Float[Tensor, "B L"]
    """The ELBO weight w_t(z_t, x) (Eq. 13), not the loss weight."""

    kl: Float[Tensor, "B L"]
    """D_KL of Eq. 14; 0 where both weights are 0, because the head is skipped there."""

    itakura_saito: Float[Tensor, "B L"]
    """D_IS of Eq. 14; 0 where both weights are 0."""


def fused_loss(
    schedule: MixingSchedule,
    t: Float[Tensor, " B"],
    x: Int[Tensor, "B L"],
    z: Int[Tensor, "B L"],
    hidden: Float[Tensor, "B L D"],
    head_weight: Float[Tensor, "V D"],
    head_bias: Float[Tensor, " V"],
    loss_weight: Float[Tensor, "B L"],
    chunk_tokens: int = CHUNK_TOKENS,
    compiled: bool = False,
    scored: Bool[Tensor, "B L"] | None = None,
) -> FusedLoss:
    """Sum of the weighted divergences of x_theta = softmax(hidden @ head_weight.T + head_bias).

    `head_bias` is -inf at tokens that the denoiser never predicts. `loss_weight` is the weighting's
    value for each token, times the scale of the reduction (1 / number of tokens for a mean); it
    gets no gradient. Hidden states may be bf16, and are cast to it under autocast; everything
    between the matrix products is float32 (float64 if `t` is). `compiled` runs that part through
    `torch.compile`. Tokens that are not `scored` have no terms; their logits are not computed.

    The gradients are computed with the loss, so `backward` can be called only once. Under
    `torch.no_grad` they are not computed.
    """
    if chunk_tokens < 1:
        raise ConfigError(
            f"chunk_tokens must be at least 1, got {chunk_tokens}. It is the number of tokens "
            f"whose logits are in memory at once; {CHUNK_TOKENS} suits most machines."
        )
    with record_function(HEAD_AND_LOSS):
        weight = elbo_weight(schedule, t, x, z)
        # all other tokens need no logits: under mask-only noise, those that are not masked
        touched = (weight != 0) | (loss_weight != 0)
        if scored is not None:
            touched &= scored
        tokens = _Tokens.of(schedule, t, x, z, loss_weight, touched)
        device = hidden.device.type
        if torch.is_autocast_enabled(device):
            hidden = hidden.to(torch.get_autocast_dtype(device))
        with torch.autocast(device, enabled=False):
            states, is_training = hidden.flatten(0, 1), torch.is_grad_enabled()
            loss, kl, itakura_saito = _HeadLoss.apply(
                states, head_weight, head_bias, tokens, chunk_tokens, compiled, is_training
            )
        return FusedLoss(loss, weight, kl.view_as(x), itakura_saito.view_as(x))


class _Tokens(NamedTuple):
    """The inputs of the loss for each token, and the noise of each sample."""

    row: Int[Tensor, " N"]
    """Index into the flattened batch."""

    sample: Int[Tensor, " N"]
    """Index of the sample in the batch, and of its row of `noise`."""

    x: Int[Tensor, " N"]
    z: Int[Tensor, " N"]
    alpha: Float[Tensor, " N"]
    noise_x: Float[Tensor, " N"]
    """beta_t pi_t at x."""

    noise_z: Float[Tensor, " N"]
    loss_weight: Float[Tensor, " N"]

    noise: Float[Tensor, "B V"]
    """beta_t pi_t."""

    @classmethod
    def of(
        cls,
        schedule: MixingSchedule,
        t: Tensor,
        x: Tensor,
        z: Tensor,
        loss_weight: Tensor,
        touched: Tensor,
    ) -> _Tokens:
        noise = schedule.beta_pi(t)
        sample, position = touched.nonzero(as_tuple=True)
        return cls(
            row=sample * x.shape[1] + position,
            sample=sample,
            x=x[sample, position],
            z=z[sample, position],
            alpha=schedule.alpha(t)[sample],
            noise_x=at_token(noise, x)[sample, position],
            noise_z=at_token(noise, z)[sample, position],
            loss_weight=loss_weight[sample, position].to(t.dtype),
            noise=noise,
        )

    def rows(self, rows: slice) -> _Tokens:
        return _Tokens(*(part[rows] for part in self[:-1]), noise=self.noise)


class _HeadLoss(torch.autograd.Function):
    """Computes loss and gradients together."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        head_weight: Tensor,
        head_bias: Tensor,
        tokens: _Tokens,
        chunk_tokens: int,
        compiled: bool,
        is_training: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        weight, bias = head_weight.to(hidden.dtype), head_bias.to(hidden.dtype)
        needs_gradients = is_training and any(ctx.needs_input_grad)
        gradients = _Gradients.empty(hidden, weight, bias, tokens) if needs_gradients else None
        chunks = hidden, weight, bias, tokens, chunk_tokens, compiled
        kl, itakura_saito = _all_chunks(*chunks, gradients)
        if gradients is not None:
            d_hidden, d_weight, d_bias = gradients
            ctx.gradients = d_hidden, d_weight.to(head_weight.dtype), d_bias.to(head_bias.dtype)
        ctx.mark_non_differentiable(kl, itakura_saito)
        loss = tokens.loss_weight @ (kl + itakura_saito)[tokens.row]
        return loss, kl, itakura_saito

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            # not a GiddError: torch raises RuntimeError for the same mistake
            raise RuntimeError(
                "fused_loss: backward was called a second time, but the gradients are freed after "
                "the first. Call fused_loss again, or use elbo_terms, which keeps its graph."
            )
        gradients, ctx.gradients = ctx.gradients, None
        # in place: a copy of the head's gradient would be the largest tensor
        return *(gradient.mul_(outputs[0]) for gradient in gradients), None, None, None, None


class _Gradients(NamedTuple):
    """Of the weighted sum; those of the head are float32, and the first chunk overwrites them."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor

    @classmethod
    def empty(cls, hidden: Tensor, weight: Tensor, bias: Tensor, tokens: _Tokens) -> _Gradients:
        dtype = tokens.alpha.dtype
        new = torch.empty_like if len(tokens.row) else torch.zeros_like
        d_weight, d_bias = new(weight, dtype=dtype), torch.zeros_like(bias, dtype=dtype)
        return cls(torch.zeros_like(hidden), d_weight, d_bias)


def _all_chunks(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    tokens: _Tokens,
    chunk_tokens: int,
    compiled: bool,
    gradients: _Gradients | None,
) -> tuple[Tensor, Tensor]:
    """Return KL and IS of all tokens, and fill in the gradients."""
    kl, itakura_saito = tokens.alpha.new_zeros(2, len(hidden))
    buffer = hidden.new_empty(min(chunk_tokens, len(tokens.row)), len(weight))
    d_bias = gradients and gradients.bias
    for start in range(0, len(tokens.row), chunk_tokens):
        chunk = tokens.rows(slice(start, start + chunk_tokens))
        states = hidden[chunk.row]
        logits = torch.addmm(bias, states, weight.T, out=buffer[: len(states)])
        chunk_kl, chunk_is = _to_gradient(logits, chunk, d_bias, compiled)
        kl[chunk.row], itakura_saito[chunk.row] = chunk_kl, chunk_is
        if gradients is not None:
            gradients.hidden[chunk.row] = logits @ weight
            _add_product(gradients.weight, logits, states, first=start == 0)
    return kl, itakura_saito


def _add_product(total: Tensor, d_logits: Tensor, states: Tensor, first: bool) -> None:
    """total += d_logits.T @ states, or total = ... for the first chunk."""
    if d_logits.dtype == total.dtype:
        torch.addmm(total, d_logits.T, states, beta=0 if first else 1, out=total)
        return
    # a bf16 product is added to a float32 total, in slices to save memory
    for part, columns in zip(total.split(_SLICE), d_logits.split(_SLICE, dim=1), strict=True):
        product = columns.T @ states
        part.copy_(product) if first else part.add_(product)


def _to_gradient(
    logits: Float[Tensor, "N V"],
    tokens: _Tokens,
    d_bias: Float[Tensor, " V"] | None,
    compiled: bool,
) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """Overwrite logits by the gradient of the weighted loss and add its sum to `d_bias`.

    Works on blocks of rows; those of one sample share a row of noise. Returns KL and IS [N].
    Without `d_bias` there is no gradient, and a block may have rows of several samples.
    """
    terms = _compiled_token_terms() if compiled else token_terms
    kl, itakura_saito = torch.empty_like(tokens.alpha), torch.empty_like(tokens.alpha)
    num_rows = max(1, LOSS_BLOCK_ENTRIES // logits.shape[-1])
    _, counts = tokens.sample.unique_consecutive(return_counts=True)
    ends = list(accumulate(counts.tolist()))
    if mixes := d_bias is None and len(ends) * num_rows > len(logits):
        ends = ends[-1:]  # several short samples in a block
    for start, end in pairwise([0, *ends]):
        for first in range(start, end, num_rows):
            rows = slice(first, min(first + num_rows, end))
            block = tokens.rows(rows)
            noise = tokens.noise[block.sample if mixes else block.sample[0]]
            found = terms(logits[rows], noise, block, d_bias is not None)
            kl[rows], itakura_saito[rows], gradient = found
            if d_bias is not None:
                d_bias += gradient.sum(0)
                logits[rows] = gradient
    return kl, itakura_saito


def token_terms(
    logits: Float[Tensor, "N V"], noise: Float[Tensor, "*N V"], tokens: _Tokens, with_gradient: bool
) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"], Float[Tensor, "N V"]]:
    """KL, IS and the gradient of loss_weight * (KL + IS) in the logits, which is else unspecified.

    Tokens of one sample have one row of noise.

    In the notation of docs/fused-loss.md: b is the noise beta pi, p = alpha x_theta + b. Only S,
    sum(r) and the gradient involve the full vocabulary; all else is at x or at z alone.
    """
    alpha, b_x, b_z = tokens.alpha, tokens.noise_x, tokens.noise_z
    at_x, at_z = tokens.x[:, None], tokens.z[:, None]
    logits = logits.to(noise.dtype)
    top = logits.amax(-1, keepdim=True)
    x_theta = (logits - top).exp_()
    total = x_theta.sum(-1, keepdim=True)
    log_total = top + total.log()
    log_x_theta_x = (logits.gather(-1, at_x) - log_total).squeeze(-1)
    log_x_theta_z = (logits.gather(-1, at_z) - log_total).squeeze(-1)
    x_theta /= total

    # one_plus = p / b;  S = sum_v b log(p / b);  r = x_theta b / p
    kept = alpha[0] if noise.ndim == 1 else alpha[:, None]
    one_plus = (x_theta * (kept / noise.clamp_min(TINY))).add_(1)
    logs = one_plus.log() if with_gradient else one_plus.log_()
    S = logs @ noise if noise.ndim == 1 else logs.mul_(noise).sum(-1)
    del logs
    # in log space, for precision where x_theta underflows and b = 0
    log_p_x = torch.logaddexp(alpha.log() + log_x_theta_x, b_x.log())
    log_p_z = torch.logaddexp(alpha.log() + log_x_theta_z, b_z.log())
    q_x = alpha + b_x
    kl = q_x * (q_x.log() - log_p_x) + b_x * (log_p_x - b_x.clamp_min(TINY).log()) - S
    kept = tokens.z == tokens.x
    q_z = torch.where(kept, q_x, b_z)
    gap_z = -alpha * torch.where(kept, log_x_theta_z.expm1(), log_x_theta_z.exp())  # q - p at z
    p_z = log_p_z.exp()
    itakura_saito = itakura_saito_term(q_z, p_z, gap_z)

    if not with_gradient:
        return kl, itakura_saito, x_theta
    r = torch.div(x_theta, one_plus, out=one_plus)

    # x_theta dKL/dx_theta = -alpha r, plus g_x at x; x_theta dIS/dx_theta = g_z at z, else 0
    g_x = -alpha * (alpha.log() + log_x_theta_x - log_p_x).exp()
    g_z = -(alpha.log() + log_x_theta_z - log_p_z).exp() * gap_z / p_z.clamp_min(TINY)
    mean = g_x + g_z - alpha * r.sum(-1)
    c = tokens.loss_weight
    gradient = x_theta.mul_((-c * mean)[:, None]).sub_(r.mul_((c * alpha)[:, None]))
    gradient.scatter_add_(-1, at_x, (c * g_x)[:, None]).scatter_add_(-1, at_z, (c * g_z)[:, None])
    return kl, itakura_saito, gradient


_compiled_token_terms = cache(lambda: torch.compile(token_terms, dynamic=True))
