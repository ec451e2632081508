"""Classifier-free guidance: x_theta with and without a condition, in one forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import torch
from torch import Tensor

from gidd.common.config.allowed import problems_of, require_none
from gidd.diffusion.schedule import TINY, Times
from gidd.sampling.predict import Predict, Rows
from gidd.sampling.ranges import GUIDANCE_SCALE
from gidd.sampling.state import State

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class Guidance:
    """Classifier-free guidance of a request: its scale, and the tokens without the condition."""

    scale: Annotated[float, GUIDANCE_SCALE]
    """w of `guide`; 1 is no guidance."""
    tokens: tuple[int | None, ...]
    """One for each token of the request: what replaces a token of the condition, such as a mask;
    None where the sequence has its own token, as at blanks."""

    def __post_init__(self) -> None:
        require_none(problems_of(self, "Guidance."))

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


def guided(predict: Predict, guidances: Sequence[Guidance]) -> Predict:
    """Wrap x_theta so that each sequence gets its guidance; two rows per guided sequence."""
    doubled: list[tuple[State, State, Times]] = []  # the last one: its forward pass is kept

    def double(state: State, t: Times) -> tuple[State, Times]:
        for known, both, times in doubled:
            if known.tokens is state.tokens:
                return both, times
        length, device = state.tokens.shape[1], state.tokens.device
        rows = [[-1 if v is None else v for v in guidance.tokens] for guidance in guidances]
        padded = [row + [-1] * (length - len(row)) for row in rows]
        tokens = torch.tensor(padded, dtype=torch.int64, device=device)
        without = state._replace(tokens=torch.where(tokens < 0, state.tokens, tokens)).tensors
        pairs = {name: (conditional, without[name]) for name, conditional in state.tensors.items()}
        both = state._replace(**{name: torch.cat(pair) for name, pair in pairs.items()})
        doubled[:] = [(state, both, t.repeat(2))]
        return doubled[0][1:]

    def predict_guided(state: State, t: Times, where: Tensor) -> Rows:
        rows, length = predict(*double(state, t), where.repeat(2, 1)), state.tokens.shape[1]
        scales = torch.tensor([guidance.scale for guidance in guidances], device=t.device)

        def compute(index: Tensor) -> Tensor:
            p, without = rows.compute(index), rows.compute(index + state.tokens.numel())
            scale = torch.ones(len(p), 1, device=p.device)
            scale[: len(index), 0] = scales[index // length]
            return guide(p, without, scale)

        chosen = rows.index[: len(rows.index) // 2]
        return Rows(state.tokens, chosen, rows.vocab_size, rows.tile, compute)

    return predict_guided
