"""What a loss weighting is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

from torch import Tensor

from gidd.diffusion.schedule import MixingSchedule
from gidd.errors import ConfigError

if TYPE_CHECKING:
    from jaxtyping import Float, Int


class Weighting(ABC):
    """The weight that training puts on a token's divergence, in place of the ELBO's w_t(z_t, x).

    For a given noisy text the minimiser of a weighted loss depends on the weights only through
    their ratios across x. The ELBO's are those of 1 / q_t(z | x), which cancel the evidence of the
    visible token: its minimiser is p(x_i | Z without z_i). A weighting with other ratios teaches
    another denoiser, one that trusts the visible token too much or too little.

    To add one: subclass this in a new file under `weighting/` and list it in
    `weighting/__init__.py`. All tests of weightings then cover it.
    """

    @classmethod
    @abstractmethod
    def of(cls, schedule: MixingSchedule) -> Self:
        """This weighting with its default options; `ScheduleError` where it is not defined."""

    @abstractmethod
    def __call__(
        self, t: Float[Tensor, " B"], x: Int[Tensor, "B L"], z: Int[Tensor, "B L"]
    ) -> Float[Tensor, "B L"]:
        """The weight of each token's `ElboTerms.divergence`."""


def require_positive(field: str, value: float) -> None:
    """Refuse weights that would switch the loss off or turn it round."""
    if not value > 0:
        raise ConfigError(f"{field} must be positive, got {value}. The paper uses 1.")
