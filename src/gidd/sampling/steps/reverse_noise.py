"""What a reverse step needs of the noise at its two times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from gidd.common.devices import copy_to, kind_of
from gidd.diffusion.categorical import FlatRows, draw_entries
from gidd.diffusion.process import flat_transition, noise, noise_at, transition_noise_at
from gidd.diffusion.schedule import FlatNoise, MixingSchedule
from gidd.sampling.canvas import Canvas, Times

if TYPE_CHECKING:
    from jaxtyping import Float, Int


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
