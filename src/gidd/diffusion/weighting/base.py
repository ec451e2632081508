"""The interface of loss weightings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gidd.diffusion.schedule import MixingSchedule
from gidd.errors import ConfigError

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


@dataclass(frozen=True)
class Weighting(ABC):
    """The weight of a token's divergence in the training loss, replacing the ELBO's w_t(z_t, x).

    For a given noisy sequence the minimiser of a weighted loss depends on the weights only through
    their ratios across x. The ELBO's ratios are those of 1 / q_t(z | x), which cancel the evidence
    of the visible token: its minimiser is p(x_i | Z without z_i). A weighting with other ratios has
    another minimiser, which gives the visible token too much or too little probability.

    To add one, subclass this in a new file under `weighting/`, give it a name in `PARTS` of
    `weighting/__init__.py` and add it to `WEIGHTING_BUILDERS` in tests/support/strategies.py.
    """

    schedule: MixingSchedule

    @abstractmethod
    def __call__(
        self, t: Float[Tensor, " B"], x: Int[Tensor, "B L"], z: Int[Tensor, "B L"]
    ) -> Float[Tensor, "B L"]:
        """Return the weight of each token's `ElboTerms.divergence`."""


def positive_problems(field: str, value: float) -> Iterable[str]:
    """Yield a message for a value that is not positive."""
    if not value > 0:
        yield f"{field} must be positive, got {value}. The paper uses 1."


def require_positive(field: str, value: float) -> None:
    """Raise `ConfigError` for a value that is not positive."""
    for problem in positive_problems(field, value):
        raise ConfigError(problem)
