"""The training loss of a batch, for a plain PyTorch loop.

for step, tokens in enumerate(batches):
    diffusion_loss(denoiser, schedule, tokens, step=step).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from gidd.diffusion.constants import TRAINING_EPS
from gidd.diffusion.loss import FusedLoss, fused_loss
from gidd.diffusion.process import noise
from gidd.diffusion.randomness import Stream, random_integers
from gidd.diffusion.schedule import Flags, MixingSchedule, Sequences, Times
from gidd.diffusion.times import stratified_times
from gidd.diffusion.weighting import TightWeighting, Weighting
from gidd.errors import DataError
from gidd.vocab import Vocab

if TYPE_CHECKING:
    from jaxtyping import Float


class HiddenAndHead(Protocol):
    """x_theta in two parts, as in `gidd.models.Denoiser`."""

    def hidden(self, z: Sequences, t: Times) -> Float[Tensor, "B L D"]:
        """Compute hidden states; networks for padding and packed rows have `valid`, `segments`."""
        ...

    def head(self) -> tuple[Float[Tensor, "V D"], Float[Tensor, " V"]]:
        """Return weight and bias of the output layer; the bias is -inf for the mask."""
        ...


class DiffusionLoss(NamedTuple):
    """The loss of a batch."""

    loss: Float[Tensor, ""]
    """Mean over all tokens of the weighted divergence; call `backward` on it, once."""
    nelbo: Float[Tensor, ""]
    """The NELBO per token in nats, whatever the weighting: an estimate, without a gradient."""


def diffusion_loss(
    denoiser: HiddenAndHead,
    schedule: MixingSchedule,
    tokens: Sequences,
    *,
    weighting: Weighting | None = None,
    seed: int = 0,
    step: int,
    eps: float = TRAINING_EPS,
    given: Flags | None = None,
    valid: Flags | None = None,
    segments: Sequences | None = None,
) -> DiffusionLoss:
    """Noise a batch at one random time per sequence and return its loss (Eq. 14).

    Times and noise are functions of (seed, step, row, position): count `step` up from batch to
    batch; processes that train together need other seeds.

    Args:
        denoiser: The model, e.g. `gidd.models.Denoiser(network, vocab)`.
        schedule: The noise.
        tokens: Clean tokens, int64 [B, L]. Masks and ids outside the vocabulary are an error: on a
            GPU a failed assertion of the device, which the host does not wait for.
        weighting: Weights of the loss; by default `TightWeighting`, bounded, with the minimiser of
            the ELBO.
        seed: Of times and noise.
        step: Number of the batch.
        eps: Times are in [eps, 1 - eps].
        given: The condition, e.g. prompts: never noised, not scored. The loss is a bound of
            -log p(other tokens | given ones).
        valid: False at padding at the end of rows: not scored, and hidden from the network, which
            must accept padding.
        segments: Number of each token's document in a packed row; padding has a number of its own.
            The network, which must accept segments, reads no other document.
    """
    _require_shapes(tokens, given=given, valid=valid, segments=segments)
    rows = torch.arange(len(tokens), device=tokens.device)
    position = torch.arange(tokens.shape[1], device=tokens.device)
    t = stratified_times(seed, step, rows, len(tokens), eps)
    u = random_integers(seed, Stream.NOISE, step, rows, position)
    weighting = weighting or TightWeighting(schedule)
    fixed = given if valid is None else ~valid if given is None else given | ~valid
    require_clean(schedule.vocab, tokens, fixed)
    scale = 1 / tokens.numel() if fixed is None else 1 / (~fixed).sum().clamp_min(1)
    z = noisy_tokens(schedule, t, tokens, u, fixed)
    terms = loss_at(
        denoiser,
        schedule,
        weighting,
        t,
        tokens,
        z,
        scale,
        given=fixed,
        valid=valid,
        segments=segments,
    )
    nelbo = (terms.weight * (terms.kl + terms.itakura_saito)).sum() * scale
    return DiffusionLoss(terms.loss, nelbo)


def _require_shapes(tokens: Sequences, **flags: Tensor | None) -> None:
    if tokens.dtype != torch.int64 or tokens.ndim != 2 or not tokens.numel():
        got = f"{tokens.dtype} of shape {list(tokens.shape)}"
        raise DataError(f"tokens must be int64 of shape [sequences, length], got {got}.")
    for name, value in flags.items():
        is_wrong_type = value is not None and (value.dtype == torch.bool) == (name == "segments")
        if value is not None and (is_wrong_type or value.shape != tokens.shape):
            kind = "integers" if name == "segments" else "bool"
            got = f"{value.dtype} of shape {list(value.shape)}"
            raise DataError(f"{name} must be {kind} of the shape of tokens, got {got}.")


def require_clean(vocab: Vocab, tokens: Sequences, fixed: Flags | None) -> None:
    """Refuse ids outside the vocabulary, and masks where tokens are not `fixed`, but scored."""
    is_wrong = (tokens < 0) | (tokens >= vocab.size)
    if vocab.mask_id is not None:
        is_mask = tokens == vocab.mask_id
        is_wrong |= is_mask if fixed is None else is_mask & ~fixed
    problem = (
        f"tokens must be clean text: ids in [0, {vocab.size}) other than the mask {vocab.mask_id}"
    )
    if tokens.device.type == "cuda":  # the device stops there: the host does not wait for it
        torch._assert_async(~is_wrong.any(), problem)  # pyright: ignore[reportPrivateUsage]
    elif is_wrong.any():
        got = tokens[is_wrong][0].item()
        raise DataError(f"{problem}, got {got}. Encode with the tokenizer of schedule.vocab.")


def noisy_tokens(
    schedule: MixingSchedule, t: Times, x: Sequences, u: Sequences, given: Flags | None = None
) -> Sequences:
    """Return z_t, made of x and random numbers u; tokens that are `given` are not noised."""
    z = noise(schedule, t, x, u)
    return z if given is None else torch.where(given, x, z)


def what_is_read(
    x: Sequences,
    valid: Flags | None = None,
    segments: Sequences | None = None,
    block_index: Sequences | None = None,
) -> dict[str, Tensor]:
    """Return the arguments of `Denoiser.hidden` after z and t that are not None."""
    visible = {"valid": valid} if segments is None else {"segments": segments}
    if block_index is not None:
        visible |= {"clean": x, "block_index": block_index}
    return {name: value for name, value in visible.items() if value is not None}


def loss_at(
    denoiser: HiddenAndHead,
    schedule: MixingSchedule,
    weighting: Weighting,
    t: Times,
    x: Sequences,
    z: Sequences,
    scale: float | Float[Tensor, ""],
    *,
    compiled: bool = False,
    given: Flags | None = None,
    valid: Flags | None = None,
    segments: Sequences | None = None,
    block_index: Sequences | None = None,
) -> FusedLoss:
    """Return the loss of the prediction from noisy tokens z times `scale`.

    Tokens that are `given` are not scored; the network does not read tokens that are not `valid`,
    nor tokens of other `segments`, which say where padding is as well. With the `block_index` of
    each token, a block is predicted from its noisy tokens and the clean tokens before it.
    """
    loss_weight = weighting(t, x, z)
    visible = what_is_read(x, valid, segments, block_index)
    hidden = cast(Any, denoiser).hidden(z, t, **visible)
    head, scored = denoiser.head(), None if given is None else ~given
    return fused_loss(
        schedule, t, x, z, hidden, *head, loss_weight * scale, compiled=compiled, scored=scored
    )
