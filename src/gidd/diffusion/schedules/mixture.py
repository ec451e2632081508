"""Any time-varying mixture of fixed noise distributions: mask, uniform, word frequencies, ..."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, final

from gidd.diffusion.schedule import MixingSchedule, check
from gidd.diffusion.schedules.amounts import Amount
from gidd.errors import ScheduleError
from gidd.vocab import Vocab

if TYPE_CHECKING:
    import torch
    from jaxtyping import Float
    from torch import Tensor


class Component(NamedTuple):
    """One noise distribution and its amount over time."""

    noise: Float[Tensor, " V"]
    """Distribution over all tokens, mask included, from which a noised token is drawn."""

    amount: Amount
    """Amount over time: `Ramp` (part of the prior), `Bump` (0 at both ends), or any function."""


class _NoiseCache(dict["tuple[torch.device, torch.dtype]", "list[Tensor]"]):
    """The distributions P_k for each device and type."""

    # a class, since get_type_hints of MixtureSchedule must resolve without importing torch


@final
@dataclass(frozen=True, eq=False)
class MixtureSchedule(MixingSchedule):
    """Fixed distributions P_k in amounts a_k(t), against 1 - t of signal (see `amounts.py`).

    Example: masking, with additional random tokens drawn by their frequency in the corpus::

        MixtureSchedule(vocab, (
            Component(mask_noise(vocab), Ramp()),
            Component(unigram_frequencies, Bump(peak=0.2)),
        ))
    """

    vocab: Vocab
    components: tuple[Component, ...]
    """Noise distributions and their amounts over time."""

    _noises: _NoiseCache = field(default_factory=_NoiseCache, init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.components:
            raise ScheduleError(
                "mixture.components must have at least one component, got none. "
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
        import torch

        return 1 - t + torch.stack([amount.value(t) for _, amount in self.components]).sum(0)

    def _combine(self, coefficients: list[Tensor]) -> Tensor:
        """sum_k coefficient_k P_k. Not a matrix product, since autocast would round it to bf16."""
        import torch

        first = coefficients[0]
        key = (first.device, first.dtype)
        if key not in self._noises:
            self._noises[key] = [noise.to(first) for noise, _ in self.components]
        rows = zip(coefficients, self._noises[key], strict=True)
        return torch.stack([a[:, None] * noise for a, noise in rows]).sum(0)


def _check_distribution(field: str, noise: Tensor, vocab: Vocab) -> None:
    if noise.shape != (vocab.size,):
        raise ScheduleError(
            f"{field} must have one entry for each of the {vocab.size} tokens, got shape "
            f"{list(noise.shape)}. Append zeros for special tokens that this noise never produces."
        )
    total = noise.double().sum()
    if not (noise >= 0).all() or not abs(total - 1) < 1e-6:
        raise ScheduleError(
            f"{field} must be a probability distribution (entries >= 0, sum 1), got smallest entry "
            f"{noise.min():.6g} and sum {total:.6g}. Clip negative entries and divide by the sum."
        )
