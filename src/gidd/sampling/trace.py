"""What happened to a sequence: every token that changed and, if asked for, every opinion."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, final

import torch
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


class Edit(NamedTuple):
    """One token replaced by another."""

    step_index: int
    """Which move of the plan did it."""

    step: str
    """The name of that move's step or corrector."""

    time: float
    """The time it led to."""

    position: int
    old: int
    new: int

    probability: float
    """x_theta of the new token when it was drawn; 0 if it was not drawn from x_theta."""


@final
@dataclass
class EditLog:
    """The edits of all sequences of a canvas, in the order in which they were made."""

    _parts: list[tuple[Tensor, ...]] = field(default_factory=list[tuple[Tensor, ...]])

    def add(
        self,
        rows: Int[Tensor, " K"],
        step_index: Int[Tensor, " K"],
        old: Int[Tensor, "K L"],
        new: Int[Tensor, "K L"],
        probability: Float[Tensor, "K L"] | None,
    ) -> None:
        """Note where `new` differs from `old`."""
        k, position = (old != new).nonzero(as_tuple=True)
        if probability is None:
            probability = torch.zeros_like(old, dtype=torch.float32)
        found = (old[k, position], new[k, position], probability[k, position].float())
        self._parts.append((rows[k], step_index[k], position, *found))

    def by_row(self, steps: list[list[tuple[str, float]]]) -> list[list[Edit]]:
        """The edits of each sequence; `steps` has the name and end time of its every move."""
        edits: list[list[Edit]] = [[] for _ in steps]
        columns = [torch.cat(column).tolist() for column in zip(*self._parts, strict=True)]
        for row, step_index, position, old, new, probability in zip(*columns, strict=True):
            name, time = steps[row][step_index]
            edits[row].append(Edit(step_index, name, time, position, old, new, probability))
        return edits


class Frame(NamedTuple):
    """A sequence as the network saw it, before one move, and what the network thought of it."""

    step_index: int
    step: str
    time: float
    tokens: Int[Tensor, " L"]

    probability: Float[Tensor, " L"]
    """x_theta of each token that stands there: how sure the network is of it."""

    entropy: Float[Tensor, " L"]
    """Entropy of x_theta at each position, in nats."""

    top: Int[Tensor, " L"]
    """The network's most likely token at each position."""

    top_probability: Float[Tensor, " L"]

    def self_accuracy(self, free: Bool[Tensor, " L"]) -> float:
        """Share of free tokens that the network finds most likely (Sec. 5.4); 1 if none is free."""
        agreed = (self.probability >= self.top_probability)[free]
        return float(agreed.cpu().double().mean()) if len(agreed) else 1.0

    def mean_entropy(self, free: Bool[Tensor, " L"]) -> float:
        """Mean entropy of x_theta at free positions, in nats; 0 if none is free."""
        entropy = self.entropy[free]
        return float(entropy.cpu().double().mean()) if len(entropy) else 0.0


@final
@dataclass
class Record:
    """What is kept of a run."""

    edits: EditLog = field(default_factory=EditLog)

    frames: dict[int, list[Frame]] | None = None
    """Row of the canvas -> its frames; None to keep none."""
