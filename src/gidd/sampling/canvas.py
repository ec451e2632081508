"""The state of a batch while it is sampled: tokens, protected positions, times and seeds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self, TypeAlias, final

import torch
from torch import Tensor

from gidd.diffusion.process import sample_prior
from gidd.diffusion.randomness import Stream, random_integers
from gidd.diffusion.schedule import MixingSchedule
from gidd.sampling.trace import EditLog

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

Times: TypeAlias = 'Float[Tensor, " B"]'
"""One time per sequence."""


class BestState(NamedTuple):
    """The highest-scoring state so far, for correctors that score their states."""

    tokens: Int[Tensor, "B L"]

    score: Float[Tensor, " B"]
    """Score of that state; -1 if no state has been scored."""

    age: Int[Tensor, " B"]
    """Corrector steps since it was found."""

    def rows(self, index: Int[Tensor, " K"] | slice) -> BestState:
        """Select sequences."""
        return BestState(*(value[index] for value in self))


class StepOutput(NamedTuple):
    """The result of a step or corrector. The canvas keeps protected positions unchanged."""

    tokens: Int[Tensor, "B L"]

    probability: Float[Tensor, "B L"] | None = None
    """x_theta of the new tokens, for the edit log; 0 where a token was not drawn from x_theta."""

    best: BestState | None = None
    """The best state so far; the canvas restores it when the phase ends."""

    finished: Bool[Tensor, " B"] | None = None
    """Sequences that have converged: the rest of the phase is skipped."""

    def first(self, num: int) -> StepOutput:
        """Select the first `num` sequences."""
        return StepOutput(
            self.tokens[:num],
            None if self.probability is None else self.probability[:num],
            None if self.best is None else self.best.rows(slice(num)),
            None if self.finished is None else self.finished[:num],
        )


@final
@dataclass
class Canvas:
    """A batch of sequences of one length, each with its own time, seed and progress.

    Random numbers are a function of (seed, stream, step, sample index, position). None of these
    depends on the batch, so a sequence is the same alone and in any batch.
    """

    tokens: Int[Tensor, "B L"]

    protected: Bool[Tensor, "B L"]
    """Positions that no step or corrector may change."""

    time: Times
    """Noise level of each sequence: 1 before the first step, 0 after the last."""

    seed: Int[Tensor, " B"]

    sample_index: Int[Tensor, " B"]
    """Index of each sequence among those of its seed."""

    step_index: Int[Tensor, " B"]
    """Steps of the plan done so far, skipped ones included."""

    calls: Int[Tensor, " B"]
    """Forward passes used so far."""

    best: BestState

    @classmethod
    def start(
        cls,
        schedule: MixingSchedule,
        tokens: Int[Tensor, "B L"],
        protected: Bool[Tensor, "B L"],
        blank: Bool[Tensor, "B L"],
        seed: Int[Tensor, " B"],
        sample_index: Int[Tensor, " B"],
    ) -> Self:
        """Make a canvas before its first step; blank positions are drawn from the prior."""
        dtype = torch.float32 if tokens.device.type == "mps" else torch.float64
        position = torch.arange(tokens.shape[1], device=tokens.device)
        u = random_integers(seed, Stream.PRIOR, 0, sample_index, position)
        time = torch.ones(len(tokens), dtype=dtype, device=tokens.device)
        return cls(
            tokens=torch.where(blank, sample_prior(schedule, u, dtype), tokens),
            protected=protected,
            time=time,
            seed=seed,
            sample_index=sample_index,
            step_index=torch.zeros_like(seed),
            calls=torch.zeros_like(seed),
            best=BestState(tokens.clone(), -torch.ones_like(time), torch.zeros_like(seed)),
        )

    @classmethod
    def blank(
        cls,
        schedule: MixingSchedule,
        num_sequences: int,
        length: int,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> Self:
        """Make a canvas without given tokens: samples 0 .. num_sequences - 1 of one seed."""
        tokens = torch.zeros(num_sequences, length, dtype=torch.int64, device=device)
        everywhere = torch.ones_like(tokens, dtype=torch.bool)
        sample_index = torch.arange(num_sequences, device=device)
        seeds = torch.full_like(sample_index, seed)
        return cls.start(schedule, tokens, ~everywhere, everywhere, seeds, sample_index)

    @property
    def free(self) -> Bool[Tensor, "B L"]:
        """Positions that may change."""
        return ~self.protected

    @property
    def position(self) -> Int[Tensor, " L"]:
        """0 .. L - 1."""
        return torch.arange(self.tokens.shape[1], device=self.tokens.device)

    def random(self, stream: Stream) -> Int[Tensor, "B L"]:
        """Draw this step's uniform random numbers, one per position, in fixed point."""
        # for a single seed the key is computed with Python integers: far fewer tensor operations
        seed = int(self.seed) if len(self.seed) == 1 else self.seed
        return random_integers(seed, stream, self.step_index, self.sample_index, self.position)

    def rows(self, index: Int[Tensor, " K"]) -> Canvas:
        """Copy some of the sequences to a new canvas."""
        tensors = {name: value for name, value in vars(self).items() if name != "best"}
        parts = {name: tensor[index] for name, tensor in tensors.items()}
        return Canvas(**parts, best=self.best.rows(index))

    def accept(
        self,
        index: Int[Tensor, " K"],
        output: StepOutput,
        time: Float[Tensor, " K"],
        log: EditLog | None = None,
    ) -> None:
        """Write the output of a step for the sequences `index`; protected positions stay."""
        new = torch.where(self.protected[index], self.tokens[index], output.tokens)
        self._write(index, new, output.probability, log)
        self.time[index] = time
        if output.best is not None:
            for stored, updated in zip(self.best, output.best, strict=True):
                stored[index] = updated

    def restore_best(self, index: Int[Tensor, " K"], log: EditLog | None = None) -> None:
        """Reset scored sequences to their best state, and clear the score."""
        index = index[self.best.score[index] >= 0]
        self._write(index, self.best.tokens[index], None, log)
        self.best.score[index] = -1
        self.best.age[index] = 0

    def _write(
        self, index: Tensor, new: Tensor, probability: Tensor | None, log: EditLog | None
    ) -> None:
        if log is not None:
            log.add(index, self.step_index[index], self.tokens[index], new, probability)
        self.tokens[index] = new
