"""Mixing rates alpha_t, and schedules whose mixing distribution is constant: masked and uniform."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, final

from gidd.common.config.allowed import problems_of, require_none, within
from gidd.diffusion.schedule import FlatNoise, MixingSchedule, Times, check
from gidd.errors import ScheduleError
from gidd.vocab import Vocab

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


class Curve(ABC):
    """A mixing rate alpha_t with its complement and its hazard rate.

    Each has its own formula: in float32, 1 - alpha of a rounded alpha has no correct digits near
    t = 0, and alpha' / alpha has none near t = 1.
    """

    @abstractmethod
    def alpha(self, t: Times) -> Times:
        """alpha_t."""

    @abstractmethod
    def beta(self, t: Times) -> Times:
        """1 - alpha_t."""

    @abstractmethod
    def hazard(self, t: Times) -> Times:
        """-alpha_t' / alpha_t: the rate at which clean tokens are noised."""


@final
@dataclass(frozen=True)
class Linear(Curve):
    """alpha_t = 1 - t, the paper's choice for masked diffusion."""

    def alpha(self, t: Tensor) -> Tensor:
        """1 - t."""
        return 1 - t

    def beta(self, t: Tensor) -> Tensor:
        """t."""
        return t

    def hazard(self, t: Tensor) -> Tensor:
        """1 / (1 - t)."""
        return 1 / (1 - t)


@final
@dataclass(frozen=True)
class Cosine(Curve):
    """alpha_t = cos(pi t / 2): less noise than `Linear` at every time."""

    def alpha(self, t: Tensor) -> Tensor:
        """cos(pi t / 2), as a sine of 1 - t for precision near t = 1."""
        return (math.pi / 2 * (1 - t)).sin()

    def beta(self, t: Tensor) -> Tensor:
        """1 - cos(pi t / 2), by the half-angle formula."""
        return 2 * (math.pi / 4 * t).sin().square()

    def hazard(self, t: Tensor) -> Tensor:
        """(pi / 2) tan(pi t / 2)."""
        return math.pi / 2 * (math.pi / 2 * t).sin() / self.alpha(t)


@final
@dataclass(frozen=True)
class Polynomial(Curve):
    """alpha_t = 1 - t^power; power = 1 is `Linear`."""

    power: Annotated[float, within(lambda p: p > 0, "positive", "2 is common.")] = 2.0
    """Above 1, noise is added later; below 1, earlier."""

    def __post_init__(self) -> None:
        require_none(problems_of(self, "curve."), ScheduleError)

    def alpha(self, t: Tensor) -> Tensor:
        """1 - t^power, accurate near t = 1."""
        return -(self.power * t.log()).expm1()

    def beta(self, t: Tensor) -> Tensor:
        """t^power."""
        return t**self.power

    def hazard(self, t: Tensor) -> Tensor:
        """power t^(power - 1) / (1 - t^power)."""
        return self.power * t ** (self.power - 1) / self.alpha(t)


@final
@dataclass(frozen=True)
class FunctionCurve(Curve):
    """Any differentiable alpha, as a Python function of t; its derivative is by autodiff."""

    function: Callable[[Tensor], Tensor]
    """t [B] -> alpha_t [B], elementwise, with torch operations."""

    def alpha(self, t: Tensor) -> Tensor:
        """The given function."""
        return self.function(t)

    def beta(self, t: Tensor) -> Tensor:
        """1 - alpha_t."""
        return 1 - self.function(t)

    def hazard(self, t: Tensor) -> Tensor:
        """-alpha'/alpha by forward-mode differentiation."""
        alpha, slope = value_and_slope(self.function, t)
        return -slope / alpha


@dataclass(frozen=True)
class ConstantMixing(MixingSchedule):
    """The same mixing distribution pi at all times, with any mixing rate alpha_t."""

    vocab: Vocab
    curve: Curve = field(default_factory=Linear)
    """Mixing rate alpha_t: `Linear`, `Cosine`, `Polynomial`, or any function by `FunctionCurve`."""

    def __post_init__(self) -> None:
        check(self)

    @abstractmethod
    def pi(self, like: Tensor) -> Float[Tensor, " V"]:
        """The mixing distribution, with the device and type of `like`."""

    def alpha(self, t: Tensor) -> Tensor:
        """The curve's alpha_t."""
        return self.curve.alpha(t)

    def beta_pi(self, t: Tensor) -> Tensor:
        """(1 - alpha_t) pi."""
        return self.curve.beta(t)[:, None] * self.pi(t)

    def inflow(self, t: Tensor) -> Tensor:
        """(-alpha'/alpha) pi: pi' = 0 in Eq. 11."""
        return self.curve.hazard(t)[:, None] * self.pi(t)


@final
class MaskedSchedule(ConstantMixing):
    """pi_t = m at all times, with any mixing rate alpha_t (Eq. 1)."""

    def pi(self, like: Tensor) -> Tensor:
        """All mass on the mask token."""
        return mask_noise(self.vocab, like)

    def flat_beta_pi(self, t: Tensor) -> FlatNoise:
        """1 - alpha_t on the mask."""
        return FlatNoise(self.vocab.mask_id, self.curve.beta(t), None)

    def flat_inflow(self, t: Tensor) -> FlatNoise:
        """-alpha'/alpha on the mask."""
        return FlatNoise(self.vocab.mask_id, self.curve.hazard(t), None)


@final
class UniformSchedule(ConstantMixing):
    """pi_t is uniform at all times, and so is the prior.

    If the vocabulary has a mask token, this noise never produces it.
    """

    def pi(self, like: Tensor) -> Tensor:
        """The same mass on every token but the mask."""
        return uniform_noise(self.vocab, like)

    def flat_beta_pi(self, t: Tensor) -> FlatNoise:
        """(1 - alpha_t) / N on each of the N tokens but the mask."""
        return self._flat(self.curve.beta(t))

    def flat_inflow(self, t: Tensor) -> FlatNoise:
        """-alpha'/alpha / N on each of the N tokens but the mask."""
        return self._flat(self.curve.hazard(t))

    def _flat(self, total: Tensor) -> FlatNoise:
        share = 1 / self.vocab.num_data_tokens
        return FlatNoise(self.vocab.mask_id, total * 0, total * share)


def mask_noise(vocab: Vocab, like: Tensor | None = None) -> Float[Tensor, " V"]:
    """Return the distribution with all mass on the mask token (m in the paper)."""
    require_mask(vocab)
    return _is_mask(vocab, like)


def require_mask(vocab: Vocab) -> None:
    """Raise `ScheduleError` for a vocabulary without a mask."""
    if vocab.mask_id is None:
        raise ScheduleError(
            "vocab.mask_id must be a token id for noise that masks, got None. "
            f"Use Vocab(size={vocab.size}, mask_id=...), or UniformSchedule, which needs no mask."
        )


def uniform_noise(vocab: Vocab, like: Tensor | None = None) -> Float[Tensor, " V"]:
    """Return the uniform distribution over all tokens but the mask (u in the paper)."""
    return (1 - _is_mask(vocab, like)) * (1 / vocab.num_data_tokens)


def _is_mask(vocab: Vocab, like: Tensor | None) -> Tensor:
    """1 at the mask, 0 elsewhere, with the device and type of `like` (float64 on CPU if None)."""
    import torch

    device, dtype = (None, torch.float64) if like is None else (like.device, like.dtype)
    ids = torch.arange(vocab.size, device=device)
    return (ids == (-1 if vocab.mask_id is None else vocab.mask_id)).to(dtype)


def value_and_slope(function: Callable[[Tensor], Tensor], t: Tensor) -> tuple[Tensor, Tensor]:
    """Return function(t) and its derivative, for an elementwise function of t."""
    import torch

    t = t.contiguous()  # an expanded tensor cannot carry a tangent
    value, slope, *_ = torch.func.jvp(function, (t,), (torch.ones_like(t),))
    return value, slope
