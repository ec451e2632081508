"""Configuration of a training run as typed dataclasses; imports no torch.

A choice between kinds is a union of classes, each with a `build`. `RunConfig.check` reports all
problems of a run at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Self, final

from gidd import diffusion  # imports its names, and torch, on first use
from gidd.common.codec import RECORDED_AS
from gidd.common.urls import without_credentials
from gidd.diffusion.constants import PAPER_CEILING, TRAINING_EPS
from gidd.errors import ConfigError
from gidd.models.backbones.dit_config import SIZES, DiTConfig
from gidd.training.optim import OptimConfig
from gidd.training.parallel import DDP, Parallel
from gidd.vocab import Vocab


@final
@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes of the network. The vocabulary size is that of the tokenizer."""

    width: int
    """Hidden size (d_model)."""

    num_layers: int
    """Number of transformer blocks."""

    num_heads: int
    """Number of attention heads; the hidden size must be an even multiple of it."""

    time_width: int = 128
    """Width of the time embedding that conditions every block (adaLN)."""

    dropout: float = 0.0
    """Dropout rate in training; the paper uses 0."""

    checkpoint_activations: bool = False
    """Recompute activations in the backward pass: less memory, about a third more compute."""

    @classmethod
    def named(cls, size: str) -> Self:
        """Return one of `gidd.models.SIZES`."""
        sizes = SIZES[size](vocab_size=2)
        return cls(**{part.name: getattr(sizes, part.name) for part in fields(cls)})

    def build(self, vocab_size: int, max_length: int) -> DiTConfig:
        """Return the sizes of a network for this vocabulary and context."""
        return DiTConfig(vocab_size=vocab_size, max_length=max_length, **asdict(self))


@final
@dataclass(frozen=True, kw_only=True)
class HybridNoise:
    """Masking mixed with uniform noise (Sec. 4)."""

    p_uniform: float = 0.0
    """Fraction of uniformly random tokens at t = 1/2 (p_u); 0 is masked diffusion exactly."""

    gamma: float = 1.0
    """Shape exponent of the uniform noise; the paper uses 1."""

    def problems(self) -> Iterable[str]:
        """Yield one message per invalid setting."""
        if not 0 <= self.p_uniform < 1:
            yield (
                f"objective.noise.p_uniform must be in [0, 1), got {self.p_uniform}. "
                "The paper uses 0.0, 0.1 and 0.2."
            )
        if self.p_uniform and not 0 < self.gamma <= 2:
            yield f"objective.noise.gamma must be in (0, 2], got {self.gamma}. The paper uses 1."

    def build(self, vocab: Vocab) -> diffusion.MixingSchedule:
        """Return the schedule over a vocabulary."""
        if self.p_uniform == 0:
            return diffusion.MaskedSchedule(vocab)
        return diffusion.HybridSchedule(vocab, p_uniform=self.p_uniform, gamma=self.gamma)


@final
@dataclass(frozen=True, kw_only=True)
class UniformNoise:
    """Uniform noise without a mask token."""

    def build(self, vocab: Vocab) -> diffusion.MixingSchedule:
        """Return the schedule over a vocabulary."""
        return diffusion.UniformSchedule(vocab)


@final
@dataclass(frozen=True, kw_only=True)
class ClampedWeights:
    """The ELBO's weights, clamped (Eq. 19)."""

    w_max: float = 1.0
    """Maximum weight: 1 for the paper's "+ weight clipping", 1e4 for its plain ELBO."""

    def build(self, schedule: diffusion.MixingSchedule) -> diffusion.Weighting:
        """Return the weighting for a schedule."""
        return diffusion.ClampWeighting(schedule, w_max=self.w_max)


@final
@dataclass(frozen=True, kw_only=True)
class DynamicWeights:
    """The paper's dynamic weights (Eq. 20), for hybrid and masking noise."""

    w_max: float = 1.0
    """Factor on all weights."""

    def build(self, schedule: diffusion.MixingSchedule) -> diffusion.Weighting:
        """Return the weighting for a schedule."""
        return diffusion.DynamicWeighting(schedule, w_max=self.w_max)


@final
@dataclass(frozen=True, kw_only=True)
class TightWeights:
    """Bounded weights with the ELBO's minimiser, for any noise."""

    def build(self, schedule: diffusion.MixingSchedule) -> diffusion.Weighting:
        """Return the weighting for a schedule."""
        return diffusion.TightWeighting(schedule)


@final
@dataclass(frozen=True, kw_only=True)
class Diffusion:
    """Train a denoiser with the (reweighted) NELBO."""

    noise: HybridNoise | UniformNoise = field(default_factory=HybridNoise)
    weights: ClampedWeights | DynamicWeights | TightWeights = field(default_factory=DynamicWeights)
    eps: float = TRAINING_EPS
    """Training times are sampled from [eps, 1 - eps]; the paper uses 1e-4."""

    def problems(self) -> Iterable[str]:
        """Yield one message per invalid setting."""
        noise, weights = self.noise, self.weights
        if isinstance(noise, HybridNoise):
            yield from noise.problems()
        if isinstance(weights, ClampedWeights | DynamicWeights) and not weights.w_max > 0:
            yield f"objective.weights.w_max must be > 0, got {weights.w_max}. The paper uses 1."
        if not 0 <= self.eps < 0.5:
            yield f"objective.eps must be in [0, 0.5), got {self.eps}. The paper uses 1e-4."
        if isinstance(noise, UniformNoise) and isinstance(weights, DynamicWeights):
            yield (
                "objective.weights must not be DynamicWeights with UniformNoise: Eq. 20 is defined "
                "for hybrid and masking noise. Use TightWeights: bounded, and the ELBO's minimiser."
            )


@final
@dataclass(frozen=True, kw_only=True)
class Autoregressive:
    """Train a Llama of about the same size by next-token prediction: the baseline."""

    def problems(self) -> Iterable[str]:
        """Yield nothing: there is nothing to set."""
        return ()


def _without_credentials(sources: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(without_credentials, sources))


@final
@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Training data. Without a folder, the sources are first prepared into RUN/data."""

    folder: Path | None = None
    """Folder written by `gidd data prepare`; takes precedence over the sources."""

    sources: tuple[str, ...] = field(
        default=(), repr=False, metadata={RECORDED_AS: _without_credentials}
    )
    """Corpora, files or URLs to prepare, as for `gidd data prepare`."""

    tokenizer: int | str = "gpt2"
    """As for `gidd data prepare`; a number trains a BPE tokenizer of that vocabulary size."""

    validation: int | float = 0.05
    """Validation split: the last N documents, or a fraction of them."""

    length: int = 512
    """Context length in tokens."""

    workers: int = 0
    """Number of data loading processes, besides one thread."""

    def problems(self) -> Iterable[str]:
        """Yield one message per invalid setting."""
        if self.folder is None and not self.sources:
            yield "data needs a folder (--data.folder DIR) or sources (--data.sources NAME...)."
        for name, minimum in (("length", 2), ("workers", 0)):
            if getattr(self, name) < minimum:
                yield f"data.{name} must be at least {minimum}, got {getattr(self, name)}."


@final
@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Length, batch size, precision, evaluation and checkpoints."""

    steps: int
    """Number of optimiser steps."""

    global_batch: int = 512
    """Samples per optimiser step, over all ranks and micro-batches."""

    accumulate: int = 1
    """Gradient accumulation: micro-batches per step; more use less memory, with the same result."""

    seed: int = 0
    """Seed of the initial weights, data order, crops, times, noise and dropout."""

    autocast: bool = True
    """bfloat16 autocast, as in the paper; weights and optimiser state stay float32."""

    compile: bool = False
    """Compile the blocks and the loss with torch.compile; the first steps take a minute or two."""

    ema_decay: float | None = None
    """EMA decay of the weights, e.g. 0.9999; off by default."""

    report_every: int = 10
    """Steps between reports of the training metrics."""

    evaluate_every: int = 1000
    """Steps between evaluations on the validation split; the last step is always evaluated."""

    evaluate_samples: int = 512
    """Validation samples per evaluation, the same each time; at least one per rank."""

    generate_samples: int = 2
    """Samples to generate and report at each evaluation."""

    save_every: int = 1000
    """Steps between checkpoints; the last step is always saved."""

    max_steps_ahead_of_save: int = 0
    """Steps that training may advance while a checkpoint is written in the background."""

    keep: int = 2
    """Number of most recent checkpoints to keep."""

    keep_every: int | None = None
    """Also keep every checkpoint whose step is a multiple of this."""

    timeout: float = 600.0
    """Stop, and report the stuck rank, if no step finishes within this many seconds."""

    def problems(self) -> Iterable[str]:
        """Yield one message per invalid setting."""
        counts = ("steps", "global_batch", "accumulate", "report_every", "evaluate_every")
        counts += ("evaluate_samples", "save_every", "keep")
        for name, minimum in (*((name, 1) for name in counts), ("max_steps_ahead_of_save", 0)):
            if getattr(self, name) < minimum:
                yield f"train.{name} must be at least {minimum}, got {getattr(self, name)}."
        if not 0 <= self.seed < 2**31:
            yield f"train.seed must be in [0, 2**31), got {self.seed}."
        if self.keep_every is not None and self.keep_every < 1:
            yield f"train.keep_every must be at least 1, got {self.keep_every}, or omitted."
        if self.ema_decay is not None and not 0 < self.ema_decay < 1:
            yield f"train.ema_decay must be in (0, 1), got {self.ema_decay}. 0.9999 is common."
        if not self.timeout > 0:
            yield f"train.timeout must be positive, got {self.timeout}. The default is 600 seconds."


@final
@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that determines a run. Saved as run.yaml with every checkpoint."""

    model: ModelConfig
    objective: Diffusion | Autoregressive = field(default_factory=Diffusion)
    data: DataConfig = field(default_factory=DataConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    train: TrainConfig
    parallel: Parallel = field(default_factory=DDP)

    def check(self, num_ranks: int = 1) -> None:
        """Raise one `ConfigError` that lists all problems."""
        parts = (self.data, self.optim, self.train, self.objective)
        problems = [problem for part in parts for problem in part.problems()]
        try:
            self.model.build(3, self.data.length)  # checks the sizes; any vocabulary will do
        except ConfigError as error:
            problems.append(str(error))
        samples_per_rank = self.train.global_batch // num_ranks
        if samples_per_rank < self.train.accumulate:
            problems.append(
                f"train.global_batch = {self.train.global_batch} gives {samples_per_rank} samples "
                f"to each of {num_ranks} ranks, fewer than train.accumulate = "
                f"{self.train.accumulate}. Use a larger batch, fewer ranks or fewer micro-batches."
            )
        if self.train.evaluate_samples < num_ranks:
            problems.append(
                f"train.evaluate_samples = {self.train.evaluate_samples} leaves some of "
                f"{num_ranks} ranks without a sample. Use at least {num_ranks}, or fewer ranks."
            )
        if problems:
            raise ConfigError("\n".join(problems))


PAPER_ELBO = ClampedWeights(w_max=PAPER_CEILING)
"""The weights of the paper's plain GIDD: the ELBO's, clamped for stability."""
