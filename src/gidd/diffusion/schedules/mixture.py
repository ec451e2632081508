"""Any time-varying mixture of fixed noise distributions: mask, uniform, word frequencies, ...

A mixture of noise distributions P_k in amounts a_k(t), relative to 1 - t of signal, has, with
C_t = 1 - t + sum_k a_k(t),

    alpha_t = (1 - t) / C_t,   beta_t pi_t = sum_k a_k(t) P_k / C_t,
    inflow  = sum_k g_k(t) P_k / ((1 - t) C_t),   g_k = a_k + (1 - t) a_k',

because inflow = alpha d/dt (beta pi / alpha) (App. H.8). The hybrid schedule of the paper is the
case a = t on the mask and a = c_t on the uniform distribution.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, NamedTuple, final

from gidd.common.config.allowed import at_least, problems_of, require_allowed, require_none, within
from gidd.diffusion.schedule import MixingSchedule, Times, check
from gidd.diffusion.schedules.curves import value_and_slope
from gidd.errors import ConfigError, GiddError, ScheduleError
from gidd.vocab import Vocab

if TYPE_CHECKING:
    import torch
    from jaxtyping import Float
    from torch import Tensor


class NoiseAmount(ABC):
    """The amount a(t) of one noise: 0 at t = 0, non-negative for t > 0."""

    @abstractmethod
    def value(self, t: Times) -> Times:
        """a(t)."""

    @abstractmethod
    def derivative_term(self, t: Times) -> Times:
        """a + (1 - t) a', for 0 < t < 1. If it is negative, no Markov chain has this noise."""


@final
@dataclass(frozen=True)
class LinearAmount(NoiseAmount):
    """a = weight * t: noise that increases until t = 1. Linear amounts determine the prior."""

    weight: Annotated[float, at_least(0, "Use 0 for none.")] = 1.0
    """Weight of this noise in the prior, relative to the other linear amounts."""

    def __post_init__(self) -> None:
        require_none(problems_of(self, "LinearAmount."), ScheduleError)

    def value(self, t: Tensor) -> Tensor:
        """weight * t."""
        return self.weight * t

    def derivative_term(self, t: Tensor) -> Tensor:
        """weight * (t + (1 - t)) = weight."""
        return t.new_full(t.shape, self.weight)


PEAK = within(
    lambda p: 0 <= p < 1,
    "in [0, 1)",
    "The paper uses 0.0, 0.1 and 0.2; for noise without a mask use UniformSchedule.",
)
GAMMA = within(
    lambda gamma: 0 < gamma <= 2,
    "in (0, 2]",
    "Above 2 no Markov chain has these marginals; at 0 the noise at t = 0 would not be zero. The "
    "paper uses 1.",
)


@final
@dataclass(frozen=True)
class PeakedAmount(NoiseAmount):
    """a = c_t = B (t (1 - t))^(gamma/2): noise that peaks at t = 1/2, 0 at both ends (Sec. 4).

    With B = 2^gamma p/(1 - p), `peak` p is the fraction of this noise at t = 1/2 (App. H.7).
    """

    peak: Annotated[float, PEAK]
    """Fraction of tokens with this noise at t = 1/2, if one linear amount has weight 1."""
    gamma: Annotated[float, GAMMA] = 1.0
    """Shape exponent; a smaller one is flatter, with more of this noise near t = 0 and t = 1."""

    def __post_init__(self) -> None:
        require_allowed(self, ScheduleError)

    @property
    def B(self) -> float:
        """The constant B of c_t."""
        return 2**self.gamma * self.peak / (1 - self.peak)

    def value(self, t: Tensor) -> Tensor:
        """c_t."""
        return self.B * (t * (1 - t)) ** (self.gamma / 2)

    def derivative_term(self, t: Tensor) -> Tensor:
        """c + (1 - t) c' = c ((gamma/2)(1 - t) + (1 - gamma/2) t) / t, without cancellation."""
        half = self.gamma / 2
        return self.value(t) * (half * (1 - t) + (1 - half) * t) / t


@final
@dataclass(frozen=True)
class FunctionAmount(NoiseAmount):
    """Any differentiable amount, as a Python function of t; its derivative is by autodiff."""

    function: Callable[[Tensor], Tensor]
    """t [B] -> a(t) [B], elementwise, with torch operations."""

    def value(self, t: Tensor) -> Tensor:
        """The given function."""
        return self.function(t)

    def derivative_term(self, t: Tensor) -> Tensor:
        """a + (1 - t) a' by forward-mode differentiation."""
        value, slope = value_and_slope(self.function, t)
        return value + (1 - t) * slope


class MixtureComponent(NamedTuple):
    """One noise distribution and its amount over time."""

    noise: Float[Tensor, " V"]
    """Distribution over all tokens, mask included, from which a noised token is drawn."""
    amount: NoiseAmount
    """`LinearAmount` (part of the prior), `PeakedAmount` (0 at both ends), or any function."""


class _NoiseCache(dict["tuple[torch.device, torch.dtype]", "list[Tensor]"]):
    """The distributions P_k for each device and type."""

    # a class, since get_type_hints of MixtureSchedule must resolve without importing torch


@final
@dataclass(frozen=True, eq=False)
class MixtureSchedule(MixingSchedule):
    """Fixed distributions P_k in amounts a_k(t), against 1 - t of signal (see above).

    Example: masking, with additional random tokens drawn by their frequency in the corpus::

        MixtureSchedule(vocab, (
            MixtureComponent(mask_noise(vocab), LinearAmount()),
            MixtureComponent(unigram_frequencies, PeakedAmount(peak=0.2)),
        ))
    """

    vocab: Vocab
    components: tuple[MixtureComponent, ...]
    """Noise distributions and their amounts over time."""
    _noises: _NoiseCache = field(default_factory=_NoiseCache, init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.components:
            raise ScheduleError("mixture.components must have at least one component. Add one.")
        for k, (noise, _) in enumerate(self.components):
            field, size = f"mixture.components[{k}].noise", self.vocab.size
            if noise.shape != (size,):
                raise ScheduleError(
                    f"{field} must have one entry for each of the {size} tokens, got shape "
                    f"{list(noise.shape)}. Append zeros for tokens that this noise never produces."
                )
            require_stochastic(field, noise, ScheduleError)
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
        return self._combine([amount.derivative_term(t) / scale for _, amount in self.components])

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


def require_stochastic(
    field: str, rows: Float[Tensor, "... V"], error: type[GiddError] = ConfigError
) -> None:
    """Raise an error for rows that are not probability distributions."""
    total = rows.double().sum(-1)
    if not (rows >= 0).all() or not ((total - 1).abs() < 1e-6).all():
        raise error(
            f"{field} must be a probability distribution (entries >= 0, rows sum to 1), got "
            f"entries from {rows.min():.6g} on and sums from {total.min():.6g} to "
            f"{total.max():.6g}. Divide by the sum."
        )


@final
@dataclass(frozen=True)
class FunctionalSchedule(MixingSchedule):
    """alpha_t and beta_t pi_t as given functions; inflow is computed by automatic differentiation.

    Both functions use torch operations, act on each time independently and are differentiable for
    0 < t < 1.
    """

    vocab: Vocab
    alpha_function: Callable[[Tensor], Tensor]
    """t [B] -> alpha_t [B]."""
    beta_pi_function: Callable[[Tensor], Tensor]
    """t [B] -> beta_t pi_t [B, V], rows summing to 1 - alpha_t."""

    def __post_init__(self) -> None:
        check(self)

    def alpha(self, t: Tensor) -> Tensor:
        """The given function."""
        return self.alpha_function(t)

    def beta_pi(self, t: Tensor) -> Tensor:
        """The given function."""
        return self.beta_pi_function(t)

    def inflow(self, t: Tensor) -> Tensor:
        """(beta pi)' - (alpha'/alpha) beta pi, which is beta pi' - (alpha'/alpha) pi (App. H.3)."""
        alpha, alpha_slope = value_and_slope(self.alpha_function, t)
        beta_pi, beta_pi_slope = value_and_slope(self.beta_pi_function, t)
        return beta_pi_slope - (alpha_slope / alpha)[:, None] * beta_pi
