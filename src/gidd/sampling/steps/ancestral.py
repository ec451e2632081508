"""Ancestral sampling with the factorised reverse step; reads x_theta only where needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from gidd.common.devices import copy_to, kind_of
from gidd.diffusion.categorical import FlatRows, draw_entries, happens
from gidd.diffusion.process import flat_transition, noise, noise_at, transition_noise_at
from gidd.diffusion.randomness import Stream
from gidd.diffusion.schedule import TINY, FlatNoise, MixingSchedule
from gidd.sampling.canvas import Canvas, StepOutput, Times
from gidd.sampling.prediction import Prediction
from gidd.sampling.row_sampler import RowSampler

if TYPE_CHECKING:
    from jaxtyping import Float, Int


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
    z = canvas.tokens
    noise_of = ReverseNoise.of(schedule, s, t, canvas)
    arrived, noise_t, alpha_t = noise_of.at(z)
    u = canvas.random(Stream.REDRAW)
    may_change = canvas.free & happens(redraw_probability(arrived, noise_t), u)
    fresh = noise_of.draw(torch.full_like(z, FROM_X_THETA), canvas.random(Stream.RENOISE))
    pending = fresh == FROM_X_THETA
    visible = z != schedule.vocab.mask_id if schedule.vocab.mask_id is not None else may_change

    def redraw(rows: RowSampler, i: Tensor) -> tuple[Tensor, ...]:
        q_t = alpha_t.flatten()[i] * rows.current + noise_t.flatten()[i]
        changes = happens(redraw_probability(arrived.flatten()[i], q_t), u.flatten()[i])
        return changes, *rows.draw(changes & pending.flatten()[i])

    needed = may_change & (visible | pending)
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
    on_device: _FlatReverseNoise | None
    """The numbers of flat noise, if they were computed on the host."""

    @classmethod
    def of(cls, schedule: MixingSchedule, s: Times, t: Times, canvas: Canvas) -> ReverseNoise:
        """Compute flat noise on the host, if it has the times of the step."""
        flat = None
        if canvas.times_on_host is not None:
            host_s, host_t = canvas.times_on_host
            flat = _FlatReverseNoise.of(schedule, host_s, host_t, t.device)
        return cls(schedule, s, t, flat)

    def at(self, z: Int[Tensor, "B L"]) -> tuple[Float[Tensor, "B L"], ...]:
        """Return (beta pi)_{t|s}(z), beta_t pi_t(z) and alpha_t, at every position.

        A GPU has them in float32: the numbers are rounded, not the arithmetic.
        """
        if self.on_device is not None:
            arrived, at_t = self.on_device.arrived.at(z), self.on_device.at_t.at(z)
            return arrived, at_t, self.on_device.alpha_t[:, None].expand_as(z)
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
        choice = draw_entries(self.on_device.entries_s, vocab.size, vocab.mask_id, u)
        return torch.where(choice == 0, x, choice - 1)


@final
@dataclass(frozen=True)
class _FlatReverseNoise:
    alpha_t: Float[Tensor, " B"]
    at_t: FlatNoise
    arrived: FlatNoise
    entries_s: Int[Tensor, "B 3"]
    """`FlatRows.entries` at time s."""

    @classmethod
    def of(
        cls, schedule: MixingSchedule, s: Times, t: Times, device: torch.device
    ) -> _FlatReverseNoise | None:
        """Compute on the host in float64, and copy the result in two asynchronous copies."""
        at_t, at_s = schedule.flat_beta_pi(t), schedule.flat_beta_pi(s)
        arrived = flat_transition(schedule, s, t)
        if at_t is None or at_s is None or arrived is None:
            return None
        alpha, vocab = schedule.alpha(t), schedule.vocab
        zero, is_mixed = torch.zeros_like(alpha), at_t.other is not None
        others = [zero if n.other is None else n.other for n in (at_t, arrived)]
        numbers = copy_to(torch.stack([alpha, at_t.mask, arrived.mask, *others]).float(), device)
        rows = FlatRows(vocab.size, at_s.mask_id, schedule.alpha(s), at_s.mask, at_s.other)
        alpha_t, mask_t, mask_arrived, other_t, other_arrived = numbers
        return cls(
            alpha_t,
            FlatNoise(vocab.mask_id, mask_t, other_t if is_mixed else None),
            FlatNoise(vocab.mask_id, mask_arrived, other_arrived if is_mixed else None),
            copy_to(rows.entries(), device),
        )
