"""Noise for the batches of training: `noisy = corrupt(batch, step, num_samples, scale)`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast, final

from torch import Tensor

from gidd.common.devices import positions
from gidd.data.batch import Batch
from gidd.diffusion.loss import noisy_tokens
from gidd.diffusion.randomness import Stream, random_integers
from gidd.diffusion.schedule import MixingSchedule
from gidd.diffusion.schedules import HybridSchedule
from gidd.diffusion.times import TRAINING_EPS, stratified_times
from gidd.diffusion.weighting import Weighting
from gidd.models.context import block_index_of

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

_WARMUP_LEVELS = 32  # values of p_uniform while it grows


@final
@dataclass(frozen=True, kw_only=True)
class NoisyBatch:
    """The input of an objective: a micro-batch with times and noise."""

    batch: Batch
    """Clean tokens, given tokens, segments and the index of each sample."""
    t: Float[Tensor, " B"]
    """Time of each sample."""
    z: Int[Tensor, "B L"]
    """Noisy tokens; `dataclasses.replace` makes a batch with others."""
    fixed: Bool[Tensor, "B L"] | None
    """Tokens that are neither noised nor scored: given ones, and padding if it is ignored."""
    valid: Bool[Tensor, "B L"] | None
    """False at padding that is hidden from the network; None if none is."""
    schedule: MixingSchedule
    weighting: Weighting
    scale: float | Tensor
    """Factor of the sum over targets."""
    step: int
    seed: int = 0
    eps: float = TRAINING_EPS
    time_power: float = 1.0
    """The density of times: uniform numbers in [eps, 1 - eps], raised to this power."""
    compiled: bool = False
    """As in `fused_loss`."""
    block_index: Int[Tensor, "B L"] | None = None
    """Block of each token, counted in its document; None: a document is one block."""

    @property
    def num_targets(self) -> int | Int[Tensor, ""]:
        """Number of tokens with a loss; on the device if some tokens are fixed."""
        return self.z.numel() if self.fixed is None else (~self.fixed).sum()

    def random(self, stream: Stream) -> Int[Tensor, "B L"]:
        """Return random integers in [0, 2**62), a function of (seed, stream, sample, position)."""
        position = positions(self.z.shape[1], self.z.device)
        return random_integers(self.seed, stream, 0, self.batch.sample_index, position)


@final
@dataclass(kw_only=True)
class Corruption:
    """Draws one random time and the noise of each sample, as functions of (seed, sample).

    A callback may change the fields from step to step, as functions of the step.
    """

    schedule: MixingSchedule
    weighting: Weighting
    seed: int = 0
    eps: float = TRAINING_EPS
    time_power: float = 1.0
    p_uniform_warmup: int = 0
    hides_padding: bool = False
    """Padding is neither part of the loss nor read by the network; else it is learned like text
    (App. E)."""
    compiled: bool = False
    block_lengths: tuple[int, ...] = ()
    """Lengths of blocks, of which each sample draws one; none: a sequence is one block."""
    _noise_by_level: dict[int, tuple[MixingSchedule, Weighting]] = field(
        default_factory=lambda: {}, repr=False
    )

    def __call__(
        self, batch: Batch, step: int, num_samples: int, scale: float | Tensor
    ) -> NoisyBatch:
        """Return some samples of batch number `step`, of `num_samples` over all ranks, with noise.

        The loss is to be a sum over targets times `scale`.
        """
        schedule, weighting = self._noise_at(step)
        slot = batch.sample_index % num_samples
        t = stratified_times(self.seed, step, slot, num_samples, self.eps, power=self.time_power)
        position = positions(batch.tokens.shape[1], batch.tokens.device)
        u = random_integers(self.seed, Stream.NOISE, 0, batch.sample_index, position)
        fixed = self.fixed(batch)
        return NoisyBatch(
            batch=batch,
            t=t,
            z=noisy_tokens(schedule, t, batch.tokens, u, fixed),
            fixed=fixed,
            valid=batch.valid if self.hides_padding else None,
            schedule=schedule,
            weighting=weighting,
            scale=scale,
            step=step,
            seed=self.seed,
            eps=self.eps,
            time_power=self.time_power,
            compiled=self.compiled,
            block_index=self.block_index(batch),
        )

    def block_index(self, batch: Batch) -> Int[Tensor, "B L"] | None:
        """Return the block of each token, or None without blocks."""
        if not self.block_lengths:
            return None
        sample = batch.sample_index
        u = random_integers(self.seed, Stream.BLOCK, 0, sample, sample.new_zeros(1)).squeeze(-1)
        lengths = sample.new_tensor(self.block_lengths)[u % len(self.block_lengths)]
        return block_index_of(lengths, batch.tokens.shape[1], batch.segments)

    def fixed(self, batch: Batch) -> Bool[Tensor, "B L"] | None:
        """Return the tokens that are neither noised nor scored, or None if there are none."""
        if not self.hides_padding:
            return batch.given
        return ~batch.valid if batch.given is None else batch.given | ~batch.valid

    def num_targets(self, batch: Batch) -> int | Int[Tensor, ""]:
        """Count the tokens with a loss; on the device if some tokens are given.

        Padding that is not hidden is in the loss, but not in the NELBO (App. E).
        """
        fixed = self.fixed(batch)
        return batch.tokens.numel() if fixed is None else (~fixed).sum()

    def _noise_at(self, step: int) -> tuple[MixingSchedule, Weighting]:
        """Return noise and weights of a training step, while p_uniform grows in few levels."""
        if step >= self.p_uniform_warmup:
            return self.schedule, self.weighting
        level = _WARMUP_LEVELS * step // self.p_uniform_warmup
        if level not in self._noise_by_level:  # checking a schedule takes time
            schedule = cast(HybridSchedule, self.schedule)
            schedule = replace(schedule, p_uniform=schedule.p_uniform * level / _WARMUP_LEVELS)
            self._noise_by_level[level] = schedule, replace(self.weighting, schedule=schedule)
        return self._noise_by_level[level]
