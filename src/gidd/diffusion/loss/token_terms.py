"""The terms of the loss of some tokens from their logits, and the gradient in the logits.

`token_terms` is the definition (docs/fused-loss.md); `loss_rows` is the same in one kernel on CUDA.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gidd.common.devices import define_kernel, device_type
from gidd.diffusion.elbo import itakura_saito_term
from gidd.diffusion.process import noise_at
from gidd.diffusion.schedule import TINY, Flags, MixingSchedule, Sequences, Times

if TYPE_CHECKING:
    from jaxtyping import Float, Int


class LossTokens(NamedTuple):
    """The inputs of the loss for each of N tokens of a batch."""

    row: Int[Tensor, " N"]
    """Index into the flattened batch."""
    x: Int[Tensor, " N"]

    z: Int[Tensor, " N"] | None
    """None: nothing is noisy, and KL is the cross-entropy of an autoregressive model."""
    alpha: Float[Tensor, " N"]
    noise_x: Float[Tensor, " N"]
    """beta_t pi_t at x."""
    noise_z: Float[Tensor, " N"]
    loss_weight: Float[Tensor, " N"]

    noise: Float[Tensor, "N 1"] | Float[Tensor, "B V"] | None
    """beta_t pi_t of tokens that can be predicted: one number per token if it is flat, a row per
    sample if not, None if noise only masks."""
    sample: Int[Tensor, " N"] | None
    """Row of `noise`, unless it is flat."""

    @classmethod
    def of(
        cls,
        schedule: MixingSchedule,
        t: Times,
        x: Sequences,
        z: Sequences,
        loss_weight: Float[Tensor, "B L"],
        row: Int[Tensor, " N"],
        width: int,
    ) -> LossTokens:
        """Take the tokens at some places of a batch; rows of noise are padded to `width`."""
        sample = row.div(x.shape[1], rounding_mode="floor")
        flat = schedule.flat_beta_pi(t)
        if flat is None:
            noise = F.pad(schedule.beta_pi(t), (0, width - schedule.vocab.size))
        else:
            noise = None if flat.other is None else flat.other[sample, None]
        places = (x, z, noise_at(schedule, t, x), noise_at(schedule, t, z), loss_weight.to(t.dtype))
        at_x, at_z, noise_x, noise_z, weight = (part.flatten()[row] for part in places)
        alpha, sample_of_token = schedule.alpha(t)[sample], sample if flat is None else None
        return cls(row, at_x, at_z, alpha, noise_x, noise_z, weight, noise, sample_of_token)

    @classmethod
    def clean(cls, x: Int[Tensor, " N"], loss_weight: Float[Tensor, " N"]) -> LossTokens:
        """Build the inputs of plain cross-entropy (autoregressive model)."""
        ones, zeros = torch.ones_like(loss_weight), torch.zeros_like(loss_weight)
        row = torch.arange(len(x), device=x.device)
        return cls(row, x, None, ones, zeros, zeros, loss_weight, None, None)

    def rows(self, rows: slice) -> LossTokens:
        """Select some of the tokens."""
        values: Any = (None if value is None else value[rows] for value in self)
        chosen = LossTokens(*values)
        return chosen if self.sample is None else chosen._replace(noise=self.noise)

    def gathered(self) -> LossTokens:
        """Return the tokens with a row of noise for each; on a CPU, one row per sample."""
        if self.noise is None or self.sample is None:
            return self
        first, last = self.sample[:1], self.sample[-1:]
        is_shared = device_type(first) == "cpu" and torch.equal(first, last)  # they are in order
        return self._replace(noise=self.noise[first if is_shared else self.sample], sample=None)


class TokenTerms(NamedTuple):
    """Divergences of Eq. 14, and a gradient."""

    kl: Float[Tensor, " N"]
    itakura_saito: Float[Tensor, " N"]

    gradient: Float[Tensor, "N V"]
    """Gradient of loss_weight * (kl + itakura_saito) in the logits, if it was requested."""


def token_terms(
    logits: Float[Tensor, "N V"], tokens: LossTokens, with_gradient: bool
) -> TokenTerms:
    """Compute KL, IS and the gradient of their weighted sum in the logits of `gathered` tokens.

    In the notation of docs/fused-loss.md: b is the noise beta pi, p = alpha x_theta + b. Only S,
    sum(r) and the gradient involve the full vocabulary; all else is at x or at z alone.
    """
    if tokens.z is None:
        return _cross_entropy(logits.to(tokens.alpha.dtype), tokens, with_gradient)
    alpha, b_x, b_z = tokens.alpha, tokens.noise_x, tokens.noise_z
    at_x, at_z = tokens.x[:, None], tokens.z[:, None]
    logits = logits.to(alpha.dtype)
    top = logits.amax(-1, keepdim=True)
    x_theta = (logits - top).exp_()
    total = x_theta.sum(-1, keepdim=True)
    log_total = top + total.log()
    log_x_theta_x = (logits.gather(-1, at_x) - log_total).squeeze(-1)
    log_x_theta_z = (logits.gather(-1, at_z) - log_total).squeeze(-1)
    x_theta /= total
    S, r = _noise_terms(x_theta, alpha, tokens.noise, with_gradient)

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
        return TokenTerms(kl, itakura_saito, x_theta)

    # x_theta dKL/dx_theta = -alpha r, plus g_x at x; x_theta dIS/dx_theta = g_z at z, else 0
    g_x = -alpha * (alpha.log() + log_x_theta_x - log_p_x).exp()
    g_z = -(alpha.log() + log_x_theta_z - log_p_z).exp() * gap_z / p_z.clamp_min(TINY)
    c = tokens.loss_weight
    mean = g_x + g_z if r is None else g_x + g_z - alpha * r.sum(-1)
    gradient = x_theta.mul_((-c * mean)[:, None])
    if r is not None:
        gradient.sub_(r.mul_((c * alpha)[:, None]))
    gradient.scatter_add_(-1, at_x, (c * g_x)[:, None]).scatter_add_(-1, at_z, (c * g_z)[:, None])
    return TokenTerms(kl, itakura_saito, gradient)


def _cross_entropy(logits: Tensor, tokens: LossTokens, with_gradient: bool) -> TokenTerms:
    """-log x_theta(x), and x_theta - 1[v = x] times the weight."""
    at_x = tokens.x[:, None]
    log_x_theta = logits.log_softmax(-1)
    nll = -log_x_theta.gather(-1, at_x).squeeze(-1)
    if with_gradient:
        weight = tokens.loss_weight[:, None]
        log_x_theta.exp_().mul_(weight).scatter_add_(-1, at_x, -weight)
    return TokenTerms(nll, torch.zeros_like(nll), log_x_theta)


def _noise_terms(
    x_theta: Tensor, alpha: Tensor, noise: Tensor | None, with_gradient: bool
) -> tuple[Tensor | float, Tensor | None]:
    """S = sum_v b log(p / b) [N], and r = x_theta b / p [N, V] if there is a gradient.

    Both are 0 where no token that can be predicted has noise.
    """
    if noise is None:
        return 0.0, None
    is_flat, is_shared = noise.shape[-1] == 1, len(noise) == 1
    kept = alpha[:1, None] if is_shared else alpha[:, None]
    one_plus = (x_theta * (kept / noise.clamp_min(TINY))).add_(1)  # p / b
    logs = one_plus.log() if with_gradient else one_plus.log_()
    if is_flat:
        total = noise.squeeze(-1) * logs.sum(-1)
    else:
        total = logs @ noise[0] if is_shared else logs.mul_(noise).sum(-1)
    del logs
    return total, torch.div(x_theta, one_plus, out=one_plus) if with_gradient else None


def _loss_rows(logits: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    """Compute by definition, for few rows at a time to bound memory."""
    *fields, with_gradient = arguments
    tokens = LossTokens(fields[0], *fields)  # `row` is not used
    kl, itakura_saito = _shapes_of_terms(logits, *arguments)
    for start in range(0, len(logits), 64):
        rows = slice(start, start + 64)
        terms = token_terms(logits[rows], tokens.rows(rows).gathered(), with_gradient)
        kl[rows], itakura_saito[rows] = terms.kl, terms.itakura_saito
        if with_gradient:
            logits[rows] = terms.gradient
    return kl, itakura_saito


def _shapes_of_terms(*arguments: Any) -> tuple[Tensor, Tensor]:
    alpha = arguments[3]
    return torch.empty_like(alpha), torch.empty_like(alpha)


_loss_rows_kernel = define_kernel(
    "loss_rows(Tensor(a!) logits, Tensor x, Tensor? z, Tensor alpha, Tensor noise_x,"
    " Tensor noise_z, Tensor loss_weight, Tensor? noise, Tensor? sample, bool with_gradient)"
    " -> (Tensor, Tensor)",
    definition=_loss_rows,
    launch=lambda *a: import_module("gidd.diffusion.kernels.loss").launch_loss_rows(*a),
    shapes=_shapes_of_terms,
)


def loss_rows(
    logits: Float[Tensor, "N W"], tokens: LossTokens, with_gradient: bool
) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """Return KL and IS of tokens, and overwrite their logits by the gradient: one kernel on CUDA.

    Rows have W >= V logits, W a multiple of 64; the logits of padding are -inf, with gradient 0.
    """
    return _loss_rows_kernel(logits, *tokens[1:], with_gradient)


def select(touched: Flags, few: bool, kind: str) -> Int[Tensor, " N"]:
    """Return the places of a batch whose logits are computed, all `touched` ones among them.

    A CPU computes these alone. A GPU computes all tokens rather than wait to know their number,
    except if only a `few` are touched, because noise only masks or tokens are given. Their number
    is then rounded up to a multiple of 256, so that shapes, and memory with them, differ little.
    """
    everywhere = touched.flatten()
    if kind == "cpu":
        return everywhere.nonzero().squeeze(-1)
    if not few:
        return torch.arange(len(everywhere), device=everywhere.device)
    count = int(everywhere.sum())
    first = everywhere.to(torch.uint8).argsort(descending=True, stable=True)
    return first[: min(-(-count // 256) * 256, len(first))]
