"""Any time-varying combination of fixed noises: mask, uniform, word frequencies, ..."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Self, final

import torch
from torch import Tensor

from gidd.diffusion.schedule import MixingSchedule, check
from gidd.diffusion.schedules.amounts import Amount, Bump, FunctionAmount, Ramp
from gidd.diffusion.schedules.distributions import mask_noise, uniform_noise
from gidd.errors import ScheduleError
from gidd.vocab import Vocab

if TYPE_CHECKING:
    from jaxtyping import Float


class Component(NamedTuple):
    """One kind of noise and how much of it there is."""

    noise: Float[Tensor, " V"]
    """Where this noise sends a token: a distribution over all ids, mask included."""

    amount: Amount
    """How much, over time: `Ramp` (what remains at t = 1), `Bump` (on the way), or any function."""


@final
@dataclass(frozen=True, eq=False)
class MixtureSchedule(MixingSchedule):
    """Fixed distributions P_k in amounts a_k(t), beside 1 - t parts of signal (see `amounts.py`).

    Example: masking, with random words on the way that follow the word frequencies of the corpus::

        MixtureSchedule(vocab, (
            Component(mask_noise(vocab), Ramp()),
            Component(unigram_frequencies, Bump(peak=0.2)),
        ))
    """

    vocab: Vocab
    components: tuple[Component, ...]
    _noises: dict[tuple[torch.device, torch.dtype], list[Tensor]] = field(
        default_factory=lambda: {}, init=False, repr=False
    )
    """The distributions P_k on each device they were asked for on, copied there once."""

    def __post_init__(self) -> None:
        """Check every distribution and that the chain exists."""
        if not self.components:
            raise ScheduleError(
                "mixture.components must name at least one noise, got none. "
                "Component(mask_noise(vocab), Ramp()) is masked diffusion."
            )
        for k, (noise, _) in enumerate(self.components):
            _check_distribution(f"mixture.components[{k}].noise", noise, self.vocab)
        check(self)

    def alpha(self, t: Tensor) -> Tensor:
        """(1 - t) / C_t."""
        return (1 - t) / self._total(t)

    def beta_pi(self, t: Tensor) -> Tensor:
        """sum_k a_k P_k / C_t."""
        total = self._total(t)
        return self._combine([amount.value(t) / total for _, amount in self.components])

    def inflow(self, t: Tensor) -> Tensor:
        """sum_k g_k P_k / ((1 - t) C_t)."""
        scale = (1 - t) * self._total(t)
        return self._combine([amount.gain(t) / scale for _, amount in self.components])

    def _total(self, t: Tensor) -> Tensor:
        """C_t = 1 - t + sum_k a_k(t)."""
        return 1 - t + torch.stack([amount.value(t) for _, amount in self.components]).sum(0)

    def _combine(self, coefficients: list[Tensor]) -> Tensor:
        """sum_k coefficient_k P_k; not a matrix product, which autocast would round to bf16."""
        first = coefficients[0]
        key = (first.device, first.dtype)
        if key not in self._noises:
            self._noises[key] = [noise.to(first) for noise, _ in self.components]
        rows = zip(coefficients, self._noises[key], strict=True)
        return torch.stack([a[:, None] * noise for a, noise in rows]).sum(0)

    @classmethod
    def from_unit_cube(cls, vocab: Vocab, u: Sequence[float]) -> Self:
        """Mask (or, without one, uniform noise), uniform and rank-frequency noise in any shares."""
        rank = torch.arange(1, vocab.size + 1, dtype=torch.float64)
        zipf = uniform_noise(vocab) / rank
        main = uniform_noise(vocab) if vocab.mask_id is None else mask_noise(vocab)
        components = (
            Component(main, Ramp()),
            Component(uniform_noise(vocab), Bump(0.8 * u[0], 0.2 + 1.8 * u[1])),
            Component(zipf / zipf.sum(), FunctionAmount(lambda t: u[2] * t.square())),
        )
        return cls(vocab, components)


def _check_distribution(field: str, noise: Tensor, vocab: Vocab) -> None:
    if noise.shape != (vocab.size,):
        raise ScheduleError(
            f"{field} must have one entry for each of the {vocab.size} ids, got shape "
            f"{list(noise.shape)}. Append zeros for special tokens that this noise never makes."
        )
    total = noise.double().sum()
    if not (noise >= 0).all() or not abs(total - 1) < 1e-6:
        raise ScheduleError(
            f"{field} must be a probability distribution (entries >= 0, sum 1), got smallest entry "
            f"{noise.min():.6g} and sum {total:.6g}. Clip negative entries and divide by the sum."
        )
