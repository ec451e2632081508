"""The state of a batch while it is sampled: all that a step may read or change."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gidd.common.devices import device_type, positions
from gidd.diffusion.process import sample_prior
from gidd.diffusion.randomness import Stream, random_integers
from gidd.diffusion.schedule import MixingSchedule, Times as Times
from gidd.errors import ConfigError

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


class State(NamedTuple):
    """A batch of sequences, padded to one length, each with its own seed and progress.

    A step returns `state._replace(tokens=...)`. Random numbers are a function of (seed, stream,
    step, sample index, position): none of these depends on the batch, so a sequence is the same
    alone and in any batch.
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
    offset: Int[Tensor, " B"]
    """Position of the first token: 0, or the number of tokens in finished blocks before it."""
    best: Int[Tensor, "B L"]
    """The tokens of the highest score so far, for correctors that score their states."""
    best_score: Float[Tensor, " B"]
    """Their score; -1 if none has been scored. At the end of the phase they are restored."""
    best_age: Int[Tensor, " B"]
    """Steps since they were found."""
    probability: Float[Tensor, "B L"]
    """x_theta of the tokens that this step drew, for the edit log; 0 elsewhere."""
    is_converged: Bool[Tensor, " B"]
    """Sequences for which the rest of the phase is skipped."""
    values: tuple[Tensor, ...] = ()
    """Results for `Sample.values`, each [B, L, ...]."""

    @property
    def free(self) -> Bool[Tensor, "B L"]:
        """Positions that may change."""
        return ~self.protected

    @property
    def position(self) -> Int[Tensor, "B L"]:
        """Position of each token in its text."""
        return self.offset[:, None] + positions(self.tokens.shape[1], self.tokens.device)

    def random(self, stream: Stream) -> Int[Tensor, "B L"]:
        """Draw this step's uniform random numbers, one per position, in fixed point."""
        # for a single seed the key is computed with Python integers: far fewer tensor operations
        is_single = len(self.seed) == 1 and device_type(self.seed) == "cpu"
        seed = int(self.seed) if is_single else self.seed
        return random_integers(seed, stream, self.step_index, self.sample_index, self.position)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The fields that every state has, by name."""
        return {name: value for name, value in self._asdict().items() if name != "values"}

    def rows(self, index: Int[Tensor, " K"]) -> State:
        """Copy some of the sequences."""
        return self._replace(values=(), **{k: v[index] for k, v in self.tensors.items()})

    def put(self, index: Int[Tensor, " K"], other: State) -> None:
        """Write the sequences of another state to the rows `index`."""
        others = other.tensors
        for name, tensor in self.tensors.items():
            tensor[index] = others[name]

    def check(self, before: State, step: str) -> None:
        """Raise `ConfigError` for a wrong shape or type, which torch might broadcast or cast."""
        names = ("tokens", "best", "best_score", "best_age", "is_converged")
        expected = [(name, getattr(before, name)) for name in names]
        fields = [(name, getattr(self, name), old.shape, old.dtype) for name, old in expected]
        shape = before.tokens.shape
        fields += [("probability", self.probability, shape, None)]
        fields += [("values", value, shape, None) for value in self.values]
        for field, tensor, shape, dtype in fields:
            actual = tensor.shape[: len(shape)] if field == "values" else tensor.shape
            if actual != shape or dtype not in (None, tensor.dtype):
                raise ConfigError(
                    f"the step {step} must return {field} of shape {list(shape)}"
                    f"{f' and type {dtype}' if dtype else ''}, got {list(tensor.shape)} and "
                    f"{tensor.dtype}. Correct the function of the step."
                )


def start(
    schedule: MixingSchedule,
    tokens: Int[Tensor, "B L"],
    protected: Bool[Tensor, "B L"],
    blank: Bool[Tensor, "B L"] | None,
    valid: Bool[Tensor, "B L"],
    seed: Int[Tensor, " B"],
    sample_index: Int[Tensor, " B"],
    offset: Int[Tensor, " B"] | None = None,
) -> State:
    """Return the state before the first step; blank positions are drawn from the prior."""
    dtype, offset = time_dtype(tokens.device), torch.zeros_like(seed) if offset is None else offset
    if blank is not None:
        position = offset[:, None] + positions(tokens.shape[1], tokens.device)
        u = random_integers(seed, Stream.PRIOR, 0, sample_index, position)
        tokens = torch.where(blank, sample_prior(schedule, u, dtype), tokens)
    return State(
        tokens=tokens,
        protected=protected | ~valid,
        valid=valid,
        seed=seed,
        sample_index=sample_index,
        step_index=torch.zeros_like(seed),
        offset=offset,
        best=tokens.clone(),
        best_score=torch.full(seed.shape, -1, dtype=dtype, device=tokens.device),
        best_age=torch.zeros_like(seed),
        probability=torch.zeros(tokens.shape, device=tokens.device),
        is_converged=torch.zeros_like(seed, dtype=torch.bool),
    )


def time_dtype(device: torch.device) -> torch.dtype:
    """Return the type of times and thresholds: float64 where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64
