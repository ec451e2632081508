"""The error rate of visible tokens at time t, and the time of an error rate.

A text with a fraction r of random tokens is a sample of Z_t without masks, for the t at that rate.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gidd.diffusion.constants import TRAINING_EPS
from gidd.diffusion.schedule import TINY, MixingSchedule, Times

if TYPE_CHECKING:
    from jaxtyping import Float

_BITS = 60
"""Number of bisections of [0, 1] that float64 resolves."""
_MAX_POINTS = 63
_SEARCH_ENTRIES = 1 << 16
"""Entries of a [B, V] tensor of the search: one operation takes microseconds."""


def visible_noise(
    schedule: MixingSchedule, t: Times, error_rate: Float[Tensor, " B"] | float | None = None
) -> tuple[Float[Tensor, " B"], Float[Tensor, "B V"]]:
    """Return keep and noise of q_t(z | x, z is not the mask) = keep 1[z = x] + noise(z).

    The noise is 0 on the mask and sums to 1 - keep. With `error_rate`, wrong tokens are distributed
    as at time t but are this fraction of all: for less noise than at the smallest trained time.
    """
    alpha, noise, total = _visible_masses(schedule, t)
    if error_rate is None:
        visible = (alpha + total).clamp_min(TINY)
        return alpha / visible, noise / visible[:, None]
    num_tokens = schedule.vocab.num_data_tokens
    redrawn = torch.as_tensor(error_rate).to(total) * num_tokens / (num_tokens - 1)
    redrawn = redrawn.clamp(0, 1).expand_as(total)
    return 1 - redrawn, noise * (redrawn / total.clamp_min(TINY))[:, None]


def error_rate_at(schedule: MixingSchedule, t: Times) -> Float[Tensor, " B"]:
    """Return P(z_t != x | z_t is not the mask), the mean over all clean tokens x.

    A token drawn from the noise is the clean one with probability 1 / V on average, V tokens
    without the mask. The result never decreases with t, as beta_t pi_t / alpha_t never does.
    """
    num_tokens = schedule.vocab.num_data_tokens
    alpha, _, total = _visible_masses(schedule, t)
    return total / (alpha + total).clamp_min(TINY) * ((num_tokens - 1) / num_tokens)


def can_score_visible_tokens(schedule: MixingSchedule) -> bool:
    """Whether a network trained with this noise predicts other tokens than those it sees.

    Under masking alone every visible token is correct: the network does not learn any.
    """
    return bool(_visible_masses(schedule, torch.tensor([0.5]))[2] > 0)


def _visible_masses(schedule: MixingSchedule, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return alpha [B], beta_pi without the mask [B, V], and its sum [B]."""
    noise = schedule.beta_pi(t)
    if schedule.vocab.mask_id is not None:
        noise = noise.clone()  # a schedule may keep its own
        noise[:, schedule.vocab.mask_id] = 0
    return schedule.alpha(t), noise, noise.sum(-1)  # 1 - alpha would lose digits


def time_at_error_rate(
    schedule: MixingSchedule,
    error_rate: Float[Tensor, " B"] | float,
    min_time: float = TRAINING_EPS,
    max_time: float = 1 - TRAINING_EPS,
) -> Float[Tensor, " B"]:
    """Return the t in [min_time, max_time] with this error rate, by bisection.

    Computed in float64 on the CPU. The nearest end is the time of an error rate outside the range.
    """
    wanted = torch.as_tensor(error_rate, dtype=torch.float64, device="cpu").reshape(-1)
    rows = max(1, _SEARCH_ENTRIES // schedule.vocab.size)
    parts = [_search(schedule, part, min_time, max_time) for part in wanted.split(rows)]
    times, device = torch.cat(parts), torch.as_tensor(error_rate).device
    return times.float().to(device) if device.type == "mps" else times.to(device)


def _search(schedule: MixingSchedule, wanted: Tensor, low: float, high: float) -> Tensor:
    """Return the time of each error rate, by multi-point bisection of all rates in parallel."""
    room = _SEARCH_ENTRIES // (schedule.vocab.size * len(wanted))
    num_points = min(max(1, room), _MAX_POINTS)
    fraction = torch.arange(num_points + 2, dtype=wanted.dtype) / (num_points + 1)
    below, above = torch.full_like(wanted, low), torch.full_like(wanted, high)
    for _ in range(math.ceil(_BITS / math.log2(num_points + 1))):
        times = torch.lerp(below[:, None], above[:, None], fraction)
        rates = error_rate_at(schedule, times[:, 1:-1].flatten()).view(len(wanted), -1)
        first = (rates < wanted[:, None]).sum(-1, keepdim=True)
        below = times.gather(-1, first).squeeze(-1)
        above = times.gather(-1, first + 1).squeeze(-1)
    ends = wanted.new_tensor([low, high])
    lowest, highest = error_rate_at(schedule, ends)
    middle = torch.where(wanted >= highest, ends[1], (below + above) / 2)
    return torch.where(wanted <= lowest, ends[0], middle)
