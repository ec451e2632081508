"""Everything that determines a training run, as typed dataclasses.

A choice between kinds of things is a union of classes, each with a `build`. `check` reports all
problems of a run at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, final

from gidd.diffusion.schedule import MixingSchedule
from gidd.diffusion.schedules import HybridSchedule, MaskedSchedule, UniformSchedule
from gidd.diffusion.times import TRAINING_EPS
from gidd.diffusion.weighting import (
    PAPER_CEILING,
    ClampWeighting,
    DynamicWeighting,
    TightWeighting,
    Weighting,
)
from gidd.errors import ConfigError, ScheduleError
from gidd.models import SIZES, DiTConfig
from gidd.training.optim import OptimConfig
from gidd.training.parallel import DDP, Parallel
from gidd.vocab import Vocab


@final
@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes of the network. The vocabulary is the data's."""

    width: int
    """Features of a position."""

    num_layers: int
    """Number of blocks."""

    num_heads: int
    """Attention heads."""

    time_width: int = 128
    """Features of the time that all blocks are told."""

    dropout: float = 0.0
    """Share of features dropped in training; the paper drops none."""

    checkpoint_activations: bool = False
    """Compute every block's activations twice instead of keeping them: less memory, more time."""

    @classmethod
    def named(cls, size: str) -> Self:
        """One of `gidd.models.SIZES`."""
        sizes = SIZES[size](vocab_size=2)
        return cls(
            width=sizes.width,
            num_layers=sizes.num_layers,
            num_heads=sizes.num_heads,
            time_width=sizes.time_width,
        )

    def build(self, vocab_size: int, max_length: int) -> DiTConfig:
        """The sizes of a network for this vocabulary and context."""
        return DiTConfig(
            vocab_size=vocab_size,
            max_length=max_length,
            width=self.width,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            time_width=self.time_width,
            dropout=self.dropout,
            checkpoint_activations=self.checkpoint_activations,
        )


@final
@dataclass(frozen=True, kw_only=True)
class HybridNoise:
    """Masking, with uniform noise on the way (Sec. 4)."""

    p_uniform: float = 0.0
    """Share of uniformly random tokens at t = 1/2 (p_u); 0 is masked diffusion exactly."""

    gamma: float = 1.0
    """Shape exponent of the uniform noise; the paper uses 1."""

    def build(self, vocab: Vocab) -> MixingSchedule:
        """The schedule over a vocabulary."""
        if self.p_uniform == 0:
            return MaskedSchedule(vocab)
        return HybridSchedule(vocab, p_uniform=self.p_uniform, gamma=self.gamma)


@final
@dataclass(frozen=True, kw_only=True)
class UniformNoise:
    """Uniformly random tokens alone."""

    def build(self, vocab: Vocab) -> MixingSchedule:
        """The schedule over a vocabulary."""
        return UniformSchedule(vocab)


@final
@dataclass(frozen=True, kw_only=True)
class ClampedWeights:
    """The ELBO's weights, capped (Eq. 19)."""

    w_max: float = 1.0
    """The cap: 1 for the paper's "+ weight clipping", 1e4 for its plain ELBO."""

    def build(self, schedule: MixingSchedule) -> Weighting:
        """The weighting for a schedule."""
        return ClampWeighting(schedule, w_max=self.w_max)


@final
@dataclass(frozen=True, kw_only=True)
class DynamicWeights:
    """The paper's dynamic weights (Eq. 20)."""

    w_max: float = 1.0
    """A factor on all weights."""

    def build(self, schedule: MixingSchedule) -> Weighting:
        """The weighting for a schedule."""
        return DynamicWeighting(schedule, w_max=self.w_max)


@final
@dataclass(frozen=True, kw_only=True)
class TightWeights:
    """Bounded weights that keep the ELBO's minimiser, for any noise."""

    def build(self, schedule: MixingSchedule) -> Weighting:
        """The weighting for a schedule."""
        return TightWeighting.of(schedule)


@final
@dataclass(frozen=True, kw_only=True)
class Diffusion:
    """Train a denoiser by the (reweighted) NELBO."""

    noise: HybridNoise | UniformNoise = field(default_factory=HybridNoise)
    weights: ClampedWeights | DynamicWeights | TightWeights = field(default_factory=DynamicWeights)
    eps: float = TRAINING_EPS
    """Times lie in [eps, 1 - eps]."""

    def problems(self) -> Iterable[str]:
        """What is wrong with these settings."""
        if not 0 <= self.eps < 0.5:
            yield f"objective.eps must be in [0, 0.5), got {self.eps}. The paper uses 1e-4."
        try:  # any vocabulary: noise and weights are checked by building them
            self.weights.build(self.noise.build(Vocab(3, mask_id=2)))
        except (ConfigError, ScheduleError) as error:
            yield str(error)


@final
@dataclass(frozen=True, kw_only=True)
class Autoregressive:
    """Train a Llama of as many parameters by next-token prediction: the baseline."""

    def problems(self) -> Iterable[str]:
        """None: there is nothing to set."""
        return ()


@final
@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What is read. Without a folder, `sources` are prepared into `RUN/data` first."""

    folder: Path | None = None
    """A folder that `gidd data prepare` made."""

    sources: tuple[str, ...] = ()
    """Corpora or files to prepare, as in `gidd data prepare`."""

    tokenizer: int | str = "gpt2"
    """As in `gidd data prepare`; a number trains a BPE of so many ids on the sources."""

    validation: int | float = 0.05
    """The last so many documents, or that share of them, are held out."""

    length: int = 512
    """Tokens of a sample: the context of the model."""

    workers: int = 0
    """Processes that read ahead, besides one thread."""

    def problems(self) -> Iterable[str]:
        """What is wrong with these settings."""
        if self.folder is None and not self.sources:
            yield "data needs a folder (--data.folder DIR) or sources (--data.sources NAME...)."
        for name, least in (("length", 2), ("workers", 0)):
            if getattr(self, name) < least:
                yield f"data.{name} must be at least {least}, got {getattr(self, name)}."


@final
@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How long, how large, how often."""

    steps: int
    """Optimiser steps."""

    global_batch: int = 512
    """Samples of one step, on all ranks together."""

    accumulate: int = 1
    """Micro-batches that a rank's samples are divided into: less memory, the same numbers."""

    seed: int = 0
    """Of weights, order, windows, times, noise and dropout."""

    autocast: bool = True
    """Matrix products in bfloat16, as in the paper; sums and weights stay float32."""

    compile: bool = False
    """Compile blocks and loss with torch.compile: faster after a minute or two."""

    ema_decay: float | None = None
    """Keep an exponential moving average of the weights with this decay, e.g. 0.9999."""

    report_every: int = 10
    """Steps between reports."""

    evaluate_every: int = 1000
    """Steps between evaluations on the validation split; there is one at the end too."""

    evaluate_samples: int = 512
    """Samples that an evaluation looks at, at least one on every rank: always the same ones, with
    the same noise."""

    generate_samples: int = 2
    """Texts that the model writes at an evaluation, for people to read."""

    save_every: int = 1000
    """Steps between checkpoints; there is one at the end too."""

    max_steps_ahead_of_save: int = 0
    """Steps that may be finished while a checkpoint is still being written; with 0 only gradients
    are computed meanwhile. A kill costs at most save_every + max_steps_ahead_of_save steps."""

    keep: int = 2
    """Checkpoints to keep, the newest ones."""

    keep_every: int | None = None
    """Keep checkpoints whose step is a multiple of this for good."""

    timeout: float = 600.0
    """Seconds without a finished step after which a run ends and says which rank is stuck."""

    def problems(self) -> Iterable[str]:
        """What is wrong with these settings."""
        least_one = ("steps", "global_batch", "accumulate", "report_every", "evaluate_every")
        for name in (*least_one, "evaluate_samples", "save_every", "keep"):
            if getattr(self, name) < 1:
                yield f"train.{name} must be at least 1, got {getattr(self, name)}."
        if self.max_steps_ahead_of_save < 0:
            yield (
                "train.max_steps_ahead_of_save must be 0 or more, got "
                f"{self.max_steps_ahead_of_save}."
            )
        if not 0 <= self.seed < 2**31:
            yield f"train.seed must be in [0, 2**31), got {self.seed}."
        if self.keep_every is not None and self.keep_every < 1:
            yield f"train.keep_every must be at least 1, got {self.keep_every}. Leave it out."
        if self.ema_decay is not None and not 0 < self.ema_decay < 1:
            yield f"train.ema_decay must be in (0, 1), got {self.ema_decay}. 0.9999 is common."
        if not self.timeout > 0:
            yield f"train.timeout must be positive, got {self.timeout}. 600 seconds is usual."


@final
@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that determines a run. Saved as run.yaml beside every checkpoint."""

    model: ModelConfig
    objective: Diffusion | Autoregressive = field(default_factory=Diffusion)
    data: DataConfig = field(default_factory=DataConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    train: TrainConfig
    parallel: Parallel = field(default_factory=DDP)

    def check(self, num_ranks: int = 1) -> None:
        """Report everything that is wrong, in one message."""
        parts = (self.data, self.optim, self.train, self.objective)
        problems = [problem for part in parts for problem in part.problems()]
        try:
            self.model.build(3, self.data.length)  # any vocabulary: building checks the sizes
        except ConfigError as error:
            problems.append(str(error))
        smallest = self.train.global_batch // num_ranks
        if smallest < self.train.accumulate:
            problems.append(
                f"train.global_batch = {self.train.global_batch} leaves {smallest} samples for "
                f"each of {num_ranks} ranks, fewer than train.accumulate = "
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
"""The weights of the paper's plain GIDD: the ELBO's, with a ceiling for stability."""
