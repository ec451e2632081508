"""Ancestral sampling with the factorised reverse step; reads x_theta only where needed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from gidd.common.config.components import CheckedOptions
from gidd.common.devices import copy_to, kind_of
from gidd.diffusion.categorical import draw_flat, flat_entries, happens
from gidd.diffusion.process import flat_transition, noise, noise_at, transition_noise_at
from gidd.diffusion.randomness import Stream
from gidd.diffusion.schedule import TINY, FlatNoise, MixingSchedule, Times
from gidd.sampling.canvas import Canvas, StepOutput
from gidd.sampling.prediction import Prediction
from gidd.sampling.ranges import PROBABILITY
from gidd.sampling.row_sampler import RowSampler

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

FROM_X_THETA = -1
"""Placeholder for a token that is still to be drawn from x_theta."""


def redraw_probability(arrived: Float[Tensor, ...], q_t: Float[Tensor, ...]) -> Float[Tensor, ...]:
    """Compute r, the probability that a reverse step redraws a token (Eq. 16, factorised).

        p_theta(z_s | z_t) = (1 - r) 1[z_s = z_t] + r q_s(z_s | x_theta)
        r = (beta pi)_{t|s}(z_t) / q_t(z_t | x_theta)

    `arrived` is (beta pi)_{t|s}(z_t), the probability that noise between s and t produced z_t.
    """
    return (arrived / q_t.clamp_min(TINY)).clamp_max(1)


def ancestral(
    schedule: MixingSchedule, s: Times, t: Times, canvas: Canvas, prediction: Prediction
) -> StepOutput:
    """Draw z_s ~ p_theta(z_s | z_t) (Eq. 16); the distribution of `process.posterior`.

    r is largest for x_theta(z_t) = 0, so a token that is kept even then is kept for any x_theta.
    The head runs only at the other positions, about as many as change. A mask has x_theta(z_t) = 0,
    so its x_theta is read only if it is replaced by a token drawn from x_theta. If no position
    needs x_theta, the network is not called.
    """
    return reverse_step(ReverseNoise(schedule, s, t, canvas), prediction)


def reverse_step(
    noise_of: ReverseNoise, prediction: Prediction, restarts: Bool[Tensor, "B L"] | None = None
) -> StepOutput:
    """Draw z_s ~ p_theta(z_s | z_t), as `ancestral`.

    Where `restarts` is True, draw x ~ p(x | z_t), the step to time 0, and then z_s ~ q_s(. | x).
    """
    canvas, vocab = noise_of.canvas, noise_of.schedule.vocab
    z = canvas.tokens
    arrived, noise_t, alpha_t = noise_of.at(z)
    fresh = noise_of.draw(torch.full_like(z, FROM_X_THETA), canvas.random(Stream.RENOISE))
    pending = fresh == FROM_X_THETA
    if restarts is not None:  # noise of time s replaces any x; between 0 and t arrives all of t's
        arrived = torch.where(restarts, torch.where(pending, noise_t, 1), arrived)
    u = canvas.random(Stream.REDRAW)
    may_change = canvas.free & happens(redraw_probability(arrived, noise_t), u)
    visible = z != vocab.mask_id if vocab.mask_id is not None else may_change

    def redraw(rows: RowSampler, i: Tensor) -> tuple[Tensor, ...]:
        q_t = alpha_t.flatten()[i] * rows.current + noise_t.flatten()[i]
        changes = happens(redraw_probability(arrived.flatten()[i], q_t), u.flatten()[i])
        return changes, *rows.draw(changes & pending.flatten()[i])

    needed = may_change & (pending | (visible & (arrived < 1)))  # 1: redrawn for any x_theta
    token_u = canvas.random(Stream.TOKEN)
    changes, token, probability = prediction.read_samples(needed, token_u, redraw)
    changes = torch.where(needed, changes, may_change)
    new = torch.where(pending, token, fresh)
    return StepOutput(torch.where(changes, new, z), probability)


@final
@dataclass(frozen=True)
class ReverseNoise:
    """Noise at time t, between s and t, and at time s."""

    schedule: MixingSchedule
    s: Times
    t: Times
    canvas: Canvas

    @cached_property
    def on_device(self) -> tuple[FlatNoise, FlatNoise, Tensor, Tensor] | None:
        """Flat noise between s and t and at t, alpha_t, and `flat_entries` at s, on the device.

        They are computed on the host in float64, if it has the times of the step, and copied in two
        asynchronous copies.
        """
        if self.canvas.times_on_host is None:
            return None
        schedule, (s, t), device = self.schedule, self.canvas.times_on_host, self.t.device
        at_t, at_s = schedule.flat_beta_pi(t), schedule.flat_beta_pi(s)
        arrived = flat_transition(schedule, s, t)
        if at_t is None or at_s is None or arrived is None:
            return None
        alpha, is_mixed = schedule.alpha(t), at_t.other is not None
        others = [torch.zeros_like(alpha) if n.other is None else n.other for n in (arrived, at_t)]
        numbers = copy_to(torch.stack([alpha, arrived.mask, at_t.mask, *others]).float(), device)
        entries = copy_to(flat_entries(schedule.alpha(s), at_s.mask, at_s.other), device)
        alpha_t, mask_arrived, mask_t, other_arrived, other_t = numbers
        return (
            FlatNoise(at_t.mask_id, mask_arrived, other_arrived if is_mixed else None),
            FlatNoise(at_t.mask_id, mask_t, other_t if is_mixed else None),
            alpha_t,
            entries,
        )

    def at(self, z: Int[Tensor, "B L"]) -> tuple[Float[Tensor, "B L"], ...]:
        """Return (beta pi)_{t|s}(z), beta_t pi_t(z) and alpha_t, at every position.

        A GPU has them in float32: the numbers are rounded, not the arithmetic.
        """
        if self.on_device is not None:
            arrived, at_t, alpha_t, _ = self.on_device
            return arrived.at(z), at_t.at(z), alpha_t[:, None].expand_as(z)
        dtype = self.t.dtype if kind_of(z) == "cpu" else torch.float32
        return (
            transition_noise_at(self.schedule, self.s, self.t, z, dtype),
            noise_at(self.schedule, self.t, z, dtype),
            self.schedule.alpha(self.t).to(dtype)[:, None].expand_as(z),
        )

    def draw(self, x: Int[Tensor, "B L"], u: Int[Tensor, "B L"]) -> Int[Tensor, "B L"]:
        """Draw z_s ~ q_s(. | x)."""
        if self.on_device is None:
            return noise(self.schedule, self.s, x, u)
        vocab = self.schedule.vocab
        choice = draw_flat(self.on_device[3], vocab.size, vocab.mask_id, u)
        return torch.where(choice == 0, x, choice - 1)


@final
@dataclass(frozen=True)
class Psi(CheckedOptions):
    """Draw z_s from the Psi-posterior of Deschenaux et al. (arXiv 2602.21185), for every noise.

        (1 - renoise) p_theta(z_s | z_t) + renoise sum_x p(x | z_t) q_s(z_s | x)

    `renoise` is 1 - kappa of the paper. Both terms have the marginals of Z_s, so the mixture has
    them too, and the second one can change any token, also a mistake of an earlier step. p(x | z_t)
    is x_theta times q_t(z_t | x), normalised: the reverse step to time 0. It is close to certain
    near t = 0, so samples converge to the data with more steps. With s = t it is a corrector.
    """

    renoise: float = 0.1
    """Probability to redraw a token from the data and renew its noise."""

    allowed = {"renoise": PROBABILITY._replace(fix="0 is the ancestral sampler.")}

    def __call__(
        self, schedule: MixingSchedule, s: Times, t: Times, canvas: Canvas, prediction: Prediction
    ) -> StepOutput:
        """Draw the tokens of time s."""
        renoise = torch.full_like(t, self.renoise)[:, None]
        restarts = happens(renoise, canvas.random(Stream.PLACE))
        return reverse_step(ReverseNoise(schedule, s, t, canvas), prediction, restarts)
