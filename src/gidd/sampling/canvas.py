"""The state of a batch while it is sampled: tokens, protected positions, times and seeds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self

import torch
from torch import Tensor

from gidd.common.devices import kind_of, positions
from gidd.diffusion.process import sample_prior
from gidd.diffusion.randomness import Stream, random_integers
from gidd.diffusion.schedule import MixingSchedule, Times as Times
from gidd.errors import ConfigError
from gidd.sampling.network import BatchGuidance

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


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
    """The result of a step or corrector. Protected positions stay unchanged, whatever it says."""

    tokens: Int[Tensor, "B L"]
    probability: Float[Tensor, "B L"] | None = None
    """x_theta of the new tokens, for the edit log; 0 where a token was not drawn from x_theta."""
    best: BestState | None = None
    """The best state so far; it is restored when the phase ends."""
    finished: Bool[Tensor, " B"] | None = None
    """Sequences that have converged: the rest of the phase is skipped."""
    values: tuple[Tensor, ...] = ()
    """Results for `Sample.values`, each [B, L, ...]."""

    def check(self, canvas: Canvas, step: str) -> None:
        """Raise `ConfigError` for a wrong shape or type, which torch might broadcast or cast."""
        tokens = canvas.tokens
        expected = [("tokens", self.tokens, tokens.shape, tokens.dtype)]
        expected += [("values", value, tokens.shape, None) for value in self.values]
        if self.probability is not None:
            expected.append(("probability", self.probability, tokens.shape, None))
        if self.finished is not None:
            expected.append(("finished", self.finished, canvas.seed.shape, torch.bool))
        for new, old in zip(self.best or (), canvas.best, strict=self.best is not None):
            expected.append(("best", new, old.shape, old.dtype))
        for field, tensor, shape, dtype in expected:
            found = tensor.shape[: len(shape)] if field == "values" else tensor.shape
            if found != shape or dtype not in (None, tensor.dtype):
                raise ConfigError(
                    f"the step {step} must return {field} of shape {list(shape)}"
                    f"{f' and type {dtype}' if dtype else ''}, got {list(tensor.shape)} and "
                    f"{tensor.dtype}. Correct the function of the step."
                )

    def first(self, num: int) -> StepOutput:
        """Select the first `num` sequences."""
        return StepOutput(
            self.tokens[:num],
            None if self.probability is None else self.probability[:num],
            None if self.best is None else self.best.rows(slice(num)),
            None if self.finished is None else self.finished[:num],
            tuple(value[:num] for value in self.values),
        )


@dataclass
class Canvas:
    """A batch of sequences, padded to one length, each with its own seed and progress.

    Random numbers are a function of (seed, stream, step, sample index, position). None of these
    depends on the batch, so a sequence is the same alone and in any batch.
    """

    tokens: Int[Tensor, "B L"]
    protected: Bool[Tensor, "B L"]
    """Positions that no step or corrector may change; padding is among them."""
    valid: Bool[Tensor, "B L"]
    """False at the padding behind a sequence that is shorter than the others."""
    seed: Int[Tensor, " B"]
    sample_index: Int[Tensor, " B"]
    """Index of each sequence among the sequences of its seed."""
    step_index: Int[Tensor, " B"]
    """Steps of the plan done so far, skipped ones included."""
    best: BestState
    guidance: BatchGuidance | None = None
    """Of guided sequences, whose forward passes have twice as many rows."""

    @classmethod
    def start(
        cls,
        schedule: MixingSchedule,
        tokens: Int[Tensor, "B L"],
        protected: Bool[Tensor, "B L"],
        blank: Bool[Tensor, "B L"] | None,
        valid: Bool[Tensor, "B L"],
        seed: Int[Tensor, " B"],
        sample_index: Int[Tensor, " B"],
    ) -> Self:
        """Make a canvas before its first step; blank positions are drawn from the prior."""
        dtype = time_dtype(tokens.device)
        if blank is not None:
            position = torch.arange(tokens.shape[1], device=tokens.device)
            u = random_integers(seed, Stream.PRIOR, 0, sample_index, position)
            tokens = torch.where(blank, sample_prior(schedule, u, dtype), tokens)
        unscored = torch.full(seed.shape, -1, dtype=dtype, device=tokens.device)
        return cls(
            tokens=tokens,
            protected=protected | ~valid,
            valid=valid,
            seed=seed,
            sample_index=sample_index,
            step_index=torch.zeros_like(seed),
            best=BestState(tokens.clone(), unscored, torch.zeros_like(seed)),
        )

    @property
    def free(self) -> Bool[Tensor, "B L"]:
        """Positions that may change."""
        return ~self.protected

    @property
    def position(self) -> Int[Tensor, " L"]:
        """0 .. L - 1."""
        return positions(self.tokens.shape[1], self.tokens.device)

    def random(self, stream: Stream) -> Int[Tensor, "B L"]:
        """Draw this step's uniform random numbers, one per position, in fixed point."""
        # for a single seed the key is computed with Python integers: far fewer tensor operations
        is_single = len(self.seed) == 1 and kind_of(self.seed) == "cpu"
        seed = int(self.seed) if is_single else self.seed
        return random_integers(seed, stream, self.step_index, self.sample_index, self.position)

    def rows(self, index: Int[Tensor, " K"]) -> Canvas:
        """Copy some of the sequences to a new canvas."""
        tensors = {name: value for name, value in vars(self).items() if name not in _OTHER}
        parts = {name: tensor[index] for name, tensor in tensors.items()}
        guidance = self.guidance and self.guidance.rows(index)
        return Canvas(**parts, best=self.best.rows(index), guidance=guidance)

    def put(self, index: Int[Tensor, " K"], other: Canvas) -> None:
        """Write the sequences of another canvas to the rows `index`."""
        for name, value in vars(other).items():
            if name not in _OTHER:
                getattr(self, name)[index] = value
        for own, new in ((self.best, other.best), (self.guidance or (), other.guidance or ())):
            for stored, started in zip(own, new, strict=True):
                stored[index] = started


_OTHER = ("best", "guidance")
"""Fields of a canvas that are no tensors on its device."""


def time_dtype(device: torch.device) -> torch.dtype:
    """Return the type of times and thresholds: float64 where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64
