"""What a sampler works on: tokens, which of them are protected, times, and where randomness is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self, final

import torch
from torch import Tensor

from gidd.diffusion.process import sample_prior
from gidd.diffusion.randomness import Stream, random_integers
from gidd.diffusion.schedule import MixingSchedule
from gidd.sampling.trace import EditLog

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


class BestState(NamedTuple):
    """The best state a corrector has seen, for correctors that keep score."""

    tokens: Int[Tensor, "B L"]

    score: Float[Tensor, " B"]
    """Its score; -1 if nothing has been scored."""

    age: Int[Tensor, " B"]
    """Network calls since it was found."""

    def rows(self, index: Int[Tensor, " K"]) -> BestState:
        """Those of some sequences."""
        return BestState(self.tokens[index], self.score[index], self.age[index])


class StepOutput(NamedTuple):
    """What a step or corrector asks for. Protected positions are put back by the canvas."""

    tokens: Int[Tensor, "B L"]

    probability: Float[Tensor, "B L"] | None = None
    """x_theta of the new tokens where it is known, for the log; 0 or None elsewhere."""

    best: BestState | None = None
    """The best state so far; sequences are left in it when the phase ends."""

    finished: Bool[Tensor, " B"] | None = None
    """Sequences that need no more calls of this kind."""

    def first(self, number: int) -> StepOutput:
        """The change of the first sequences alone."""
        return StepOutput(
            self.tokens[:number],
            None if self.probability is None else self.probability[:number],
            None if self.best is None else BestState(*(value[:number] for value in self.best)),
            None if self.finished is None else self.finished[:number],
        )


@final
@dataclass
class Canvas:
    """A batch of sequences of one length, each with its own time, seed and progress.

    A random number's address is (seed, stream, move, request, position): nothing in it depends on
    the batch, so a sequence comes out the same in any company.
    """

    tokens: Int[Tensor, "B L"]

    protected: Bool[Tensor, "B L"]
    """Positions that no step and no corrector may change."""

    time: Float[Tensor, " B"]
    """How noisy each sequence is: 1 before the first step, 0 after the last."""

    seed: Int[Tensor, " B"]

    request: Int[Tensor, " B"]
    """Which of the seed's sequences this is."""

    step_index: Int[Tensor, " B"]
    """Moves made so far, those that were skipped included."""

    calls: Int[Tensor, " B"]
    """Network calls that the sequence needed so far."""

    best: BestState

    @classmethod
    def start(
        cls,
        schedule: MixingSchedule,
        tokens: Int[Tensor, "B L"],
        protected: Bool[Tensor, "B L"],
        blank: Bool[Tensor, "B L"],
        seed: Int[Tensor, " B"],
        request: Int[Tensor, " B"],
    ) -> Self:
        """A canvas before its first move: blank positions are drawn from the prior."""
        dtype = torch.float32 if tokens.device.type == "mps" else torch.float64
        position = torch.arange(tokens.shape[1], device=tokens.device)
        u = random_integers(seed, Stream.PRIOR, 0, request, position)
        time = torch.ones(len(tokens), dtype=dtype, device=tokens.device)
        never = BestState(tokens.clone(), -torch.ones_like(time), torch.zeros_like(seed))
        return cls(
            tokens=torch.where(blank, sample_prior(schedule, u, dtype), tokens),
            protected=protected,
            time=time,
            seed=seed,
            request=request,
            step_index=torch.zeros_like(seed),
            calls=torch.zeros_like(seed),
            best=never,
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
        """Nothing given: requests 0 .. num_sequences - 1 of one seed, from the prior."""
        tokens = torch.zeros(num_sequences, length, dtype=torch.int64, device=device)
        everywhere = torch.ones_like(tokens, dtype=torch.bool)
        request = torch.arange(num_sequences, device=device)
        seeds = torch.full_like(request, seed)
        return cls.start(schedule, tokens, ~everywhere, everywhere, seeds, request)

    @property
    def free(self) -> Bool[Tensor, "B L"]:
        """Positions that may change."""
        return ~self.protected

    @property
    def position(self) -> Int[Tensor, " L"]:
        """0 .. L - 1."""
        return torch.arange(self.tokens.shape[1], device=self.tokens.device)

    def random(self, stream: Stream) -> Int[Tensor, "B L"]:
        """This move's fixed-point uniforms, one for each position."""
        # the stream's key is made of plain integers where there is one seed: far fewer operations
        seed = int(self.seed) if len(self.seed) == 1 else self.seed
        return random_integers(seed, stream, self.step_index, self.request, self.position)

    def rows(self, index: Int[Tensor, " K"]) -> Canvas:
        """A canvas of some of the sequences, with tensors of its own."""
        return Canvas(
            tokens=self.tokens[index],
            protected=self.protected[index],
            time=self.time[index],
            seed=self.seed[index],
            request=self.request[index],
            step_index=self.step_index[index],
            calls=self.calls[index],
            best=self.best.rows(index),
        )

    def accept(
        self,
        index: Int[Tensor, " K"],
        change: StepOutput,
        time: Float[Tensor, " K"],
        log: EditLog | None = None,
    ) -> None:
        """Write a change of the sequences `index`, all but what is protected, and log its edits."""
        new = torch.where(self.protected[index], self.tokens[index], change.tokens)
        self._write(index, new, change.probability, log)
        self.time[index] = time
        if change.best is not None:
            for mine, theirs in zip(self.best, change.best, strict=True):
                mine[index] = theirs

    def restore_best(self, index: Int[Tensor, " K"], log: EditLog | None = None) -> None:
        """Put sequences for which a score was kept into their best state, and forget the score."""
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
