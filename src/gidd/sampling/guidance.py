"""Classifier-free guidance: predictions with and without a condition, combined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Self, final

import torch
import torch.nn.functional as F
from torch import Tensor

from gidd.common.config.allowed import number, require_arguments
from gidd.common.devices import upload
from gidd.diffusion.constants import MAX_GUIDANCE_SCALE
from gidd.diffusion.schedule import TINY

if TYPE_CHECKING:
    from jaxtyping import Float, Int

_SCALE = number(
    lambda w: 0 <= w <= MAX_GUIDANCE_SCALE,
    f"in [0, {MAX_GUIDANCE_SCALE}]",
    "1 is no guidance, 0 ignores the condition; 1.5 to 4 are common.",
)


@final
@dataclass(frozen=True)
class Guidance:
    """How strongly a request follows its condition, and its sequence without the condition."""

    scale: float
    """w of `guide`; 1 is no guidance."""

    tokens: tuple[int | None, ...]
    """One for each token of the request: what replaces a token of the condition, such as a mask;
    None where the sequence has its own token, as at blanks."""

    def __post_init__(self) -> None:
        require_arguments(guidance_scale=(self.scale, _SCALE))

    def first(self, num: int) -> Guidance:
        """Return the guidance of the first `num` tokens."""
        return replace(self, tokens=self.tokens[:num])


def guide(
    conditional: Float[Tensor, "K V"],
    unconditional: Float[Tensor, "K V"],
    scale: Float[Tensor, "K 1"],
) -> Float[Tensor, "K V"]:
    """Return p_c^w p_u^(1 - w), normalised, for x_theta with (c) and without (u) the condition.

    In logits it is u + w (c - u). A token that one of them excludes stays excluded, unless its
    exponent is 0, or negative: then p_u is at least `TINY`.
    """
    is_excluded = (conditional == 0) & (scale > 0) | (unconditional == 0) & (scale < 1)
    log_c, log_u = conditional.clamp_min(TINY).log(), unconditional.clamp_min(TINY).log()
    return (log_u + scale * (log_c - log_u)).masked_fill(is_excluded, -torch.inf).softmax(-1)


class BatchGuidance(NamedTuple):
    """The guidance of a batch."""

    tokens: Int[Tensor, "B L"]
    """`Guidance.tokens`, -1 for None and at padding."""

    scale: Float[Tensor, " B"]

    @classmethod
    def of(cls, guidances: Sequence[Guidance], length: int, device: torch.device) -> Self:
        """Take the guidance of each sequence of a batch with a padded length."""
        rows = [[-1 if v is None else v for v in guidance.tokens] for guidance in guidances]
        tokens = [row + [-1] * (length - len(row)) for row in rows]
        scales = [guidance.scale for guidance in guidances]
        return cls(upload(tokens, torch.int64, device), upload(scales, torch.float32, device))

    def rows(self, index: Int[Tensor, " K"]) -> BatchGuidance:
        """Select sequences."""
        return BatchGuidance(self.tokens[index], self.scale[index])

    def put(self, index: Int[Tensor, " K"], other: BatchGuidance) -> None:
        """Write the guidance of other sequences to the rows `index`."""
        self.tokens[index], self.scale[index] = other.tokens, other.scale

    def without_condition(self, z: Int[Tensor, "B L"]) -> Int[Tensor, "B L"]:
        """Return the sequences without their conditions."""
        return torch.where(self.tokens < 0, z, self.tokens)

    def combine(
        self,
        conditional: Float[Tensor, "T V"],
        unconditional: Float[Tensor, "T V"],
        sequence: Int[Tensor, " K"],
    ) -> Float[Tensor, "T V"]:
        """Guide rows of x_theta, given the sequence of each; those behind are padding."""
        scale = F.pad(self.scale[sequence], (0, len(conditional) - len(sequence)), value=1.0)
        return guide(conditional, unconditional, scale[:, None])
