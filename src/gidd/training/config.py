"""Configuration of a training run as typed dataclasses; imports no torch.

Noise, weighting and network are components of the registry, by name. `RunConfig.check` reports all
problems of a run at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, Literal, cast, final

from gidd.common.config.allowed import Allowed, integer, problems_of, require_none, within
from gidd.common.config.codec import ADDED_LATER, RECORDED_AS
from gidd.common.config.components import COMPONENT_KIND, Component, component
from gidd.common.config.options import options_of
from gidd.common.config.registry import UNREGISTERED
from gidd.common.urls import is_url, without_credentials
from gidd.data.mixture import folders_of, samples_per_step
from gidd.diffusion.constants import TRAINING_EPS
from gidd.errors import ConfigError
from gidd.models.lora import LoraConfig
from gidd.training.optim import OptimConfig

_EPS = within(lambda eps: 0 <= eps < 0.5, "in [0, 0.5)", "The paper uses 1e-4.")
_POWER = within(lambda power: 1 <= power <= 10, "in [1, 10]", "1 is uniform.")
_SEED = integer(0, 2**31 - 1)._replace(text="an integer in [0, 2**31)")
_DECAY = within(lambda decay: 0 < decay < 1, "in (0, 1)", "0.9999 is common.")


def _are_lengths(value: object) -> bool:
    is_length = integer(1).contains
    return isinstance(value, tuple) and all(map(is_length, cast("tuple[object, ...]", value)))


_BLOCKS = Allowed(
    _are_lengths,
    "integers of at least 1",
    "Omit them for one block of all tokens.",
)
_SECONDS = within(lambda seconds: seconds > 0, "positive", "The default is 600 seconds.")


@final
@dataclass(frozen=True, kw_only=True)
class Diffusion:
    """Train a denoiser with the (reweighted) NELBO, or another registered objective."""

    loss: Component = field(  # chosen by --objective
        default_factory=lambda: component("objective", "nelbo"),
        metadata={COMPONENT_KIND: "objective", ADDED_LATER: True},
    )
    noise: Component = field(
        default_factory=lambda: component("schedule", "hybrid", p_uniform=0.0),
        metadata={COMPONENT_KIND: "schedule"},
    )
    weighting: Component = field(
        default_factory=lambda: component("weighting", "dynamic"),
        metadata={COMPONENT_KIND: "weighting"},
    )
    eps: Annotated[float, _EPS] = TRAINING_EPS
    """Training times are sampled from [eps, 1 - eps]; the paper uses 1e-4."""
    time_power: Annotated[float, _POWER] = field(default=1.0, metadata={ADDED_LATER: True})
    """Density of training times: uniform numbers raised to this power. Above 1, more times have
    little noise, which is what correction of texts needs; the paper uses 1."""
    p_uniform_warmup: Annotated[int, integer(0)] = field(default=0, metadata={ADDED_LATER: True})
    """Steps in which p_uniform of hybrid noise grows from 0: for weights trained with masks."""
    attention_warmup: Annotated[int, integer(0)] = field(default=0, metadata={ADDED_LATER: True})
    """Steps in which the attention of a causal model opens: from the tokens before a position
    alone to the whole row. Evaluations read the whole row."""
    block_lengths: Annotated[tuple[int, ...], _BLOCKS] = field(
        default=(), metadata={ADDED_LATER: True}
    )
    """Lengths of the blocks that a network learns to write one after the other, e.g. 16 4 64; each
    sample draws one. Evaluations use the first. A block reads the clean blocks before it, which
    takes twice the forward pass; a length of data.length is a block of all tokens."""

    def problems(self) -> Iterable[str]:
        """Yield one message per invalid option of a component."""
        chosen = {"objective": self.loss, "noise": self.noise, "weighting": self.weighting}
        for name, option in chosen.items():
            yield from (f"{name}.{problem}" for problem in option.problems())
        if taken := [name for name in self.loss.options if hasattr(self, name)]:
            names = ", ".join(taken)
            yield f"objective {self.loss.name} must not have options {names}. Rename them."


def default_weighting(weighting: Component, noise: str) -> Component:
    """Return the weighting of a preset; `tight` if that is not defined for a kind of noise."""
    is_defined = weighting.name != "dynamic" or noise in ("hybrid", "masked")
    return weighting if is_defined else weighting.renamed("tight")


def _without_credentials(sources: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(without_credentials, sources))


@final
@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Training data. Without a folder, the sources are first prepared into RUN/data."""

    folder: str | Path | None = None
    """Folder written by `gidd data prepare`, or its URL in object storage, such as s3://BUCKET/NAME;
    takes precedence over the sources."""
    sources: tuple[str, ...] = field(
        default=(), repr=False, metadata={RECORDED_AS: _without_credentials}
    )
    """Corpora, files or URLs to prepare, as for `gidd data prepare`; or prepared folders to mix,
    with weights: data/wiki*3 data/code*1. From step 1000 on: data/wiki*3,1000:1 data/code*1."""
    format: Literal["text", "chat"] = field(default="text", metadata={ADDED_LATER: True})
    """text, or chat: JSON lines with "messages", or with "prompt" and "response". Answers are
    learned, and all else is given."""
    tokenizer: int | str = "gpt2"
    """gpt2, bytes, chars, or another as for `gidd data prepare`; a number trains a BPE of that
    vocabulary size."""
    validation: int | float | None = None
    """Validation split: the last N documents, or a fraction of them. By default as the corpus
    defines, otherwise a tenth of the documents, spaced evenly."""
    length: Annotated[int, integer(2)] = 512
    """Context length in tokens."""
    padding: Literal["learned", "ignored"] = field(default="learned", metadata={ADDED_LATER: True})
    """After the end of a text: learned (part of the loss, so that a model learns to end texts that
    are shorter than its context), or ignored (not part of the loss, hidden from the network)."""
    packing: bool = field(default=False, metadata={ADDED_LATER: True})
    """Pack short documents into one row; attention stays inside each document. Padding must be
    ignored, and the network must accept segments."""
    shuffle: Literal["full", "blocks"] = field(default="full", metadata={ADDED_LATER: True})
    """full: all documents, for data that fit into memory, or blocks: blocks of 2 MiB, and samples
    inside windows of blocks, for storage that is slow at random reads."""
    workers: Annotated[int, integer(0)] = 0
    """Number of data loading processes, besides one thread."""

    @property
    def prepared(self) -> tuple[str | Path, ...]:
        """The folders of shards that are read, unless the sources are to be prepared."""
        if self.folder is not None:
            return (self.folder,)
        return folders_of(self.sources)

    def problems(self) -> Iterable[str]:
        """Yield a message without data, and if padding and packing exclude each other."""
        if not self.prepared and any(folders_of([source]) for source in self.sources):
            yield (
                "data.sources must have weights, such as data/wiki*3 data/code*1, all or none, got "
                f"{' '.join(_without_credentials(self.sources))}."
            )
        if self.folder is None and not self.sources:
            yield "data needs a folder (--data.folder DIR) or sources (--data.sources NAME...)."
        for url in filter(is_url, map(str, self.prepared)):
            if url != without_credentials(url):
                yield (
                    f"data.{'folder' if self.folder else 'sources'} must be URLs without user, "
                    f"password and query, got {without_credentials(url)} with them: "
                    "credentials are those of the environment, such as AWS_ACCESS_KEY_ID."
                )
            if self.shuffle != "blocks":
                yield (
                    f"data.shuffle must be blocks for {without_credentials(url)}, got "
                    f"{self.shuffle}: it would be one request for each document."
                )
        if self.packing and self.padding != "ignored":
            yield (
                f"data.padding must be ignored with data.packing, got {self.padding}: other "
                "documents follow the end of a text."
            )


@final
@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Length, batch size, precision, evaluation and checkpoints."""

    steps: Annotated[int, integer(1)]
    """Number of optimiser steps."""
    global_batch: Annotated[int, integer(1)] = 512
    """Samples per optimiser step, over all ranks and micro-batches."""
    accumulate: Annotated[int, integer(1)] = 1
    """Gradient accumulation: micro-batches per step; more use less memory, with the same result."""
    seed: Annotated[int, _SEED] = 0
    """Seed of the initial weights, data order, crops, times, noise and dropout."""
    autocast: bool | None = None
    """bfloat16 autocast, as in the paper; weights and optimiser state stay float32. On by default
    on CUDA and on CPUs with bfloat16 instructions, off elsewhere; a resumed run keeps it."""
    compile: bool | None = None
    """Compile the blocks and the loss with torch.compile; the first steps take a minute or two. On
    by default on CUDA with Triton, off elsewhere."""
    ema_decay: Annotated[float, _DECAY] | None = None
    """EMA decay of the weights, e.g. 0.9999; off by default."""
    report_every: Annotated[int, integer(1)] = 10
    """Steps between reports of the training metrics."""
    evaluate_every: Annotated[int, integer(1)] = 1000
    """Steps between evaluations on the validation split; the last step is always evaluated."""
    evaluate_samples: Annotated[int, integer(1)] = 512
    """Validation samples per evaluation, the same each time; at least one per rank."""
    generate_samples: Annotated[int, integer(0)] = 2
    """Samples to generate and report at each evaluation."""
    save_every: Annotated[int, integer(1)] = 1000
    """Steps between checkpoints; the last step is always saved."""
    max_steps_ahead_of_save: Annotated[int, integer(0)] = 0
    """Steps that training may advance while a checkpoint is written in the background."""
    keep: Annotated[int, integer(1)] = 2
    """Number of most recent checkpoints to keep."""
    keep_every: Annotated[int, integer(1, fix="Or omit it.")] | None = None
    """Also keep every checkpoint whose step is a multiple of this."""
    timeout: Annotated[float, _SECONDS] = 600.0
    """Stop, and report the stuck rank, if no step finishes within this many seconds."""


@final
@dataclass(frozen=True, kw_only=True)
class DDP:
    """Model and optimiser state replicated on every rank: for models that fit one device."""


@final
@dataclass(frozen=True, kw_only=True)
class FSDP:
    """Parameters, gradients and optimiser state sharded over ranks (FSDP2)."""

    shard_size: Annotated[int, integer(1)] | None = None
    """Consecutive ranks that share one copy of the model, e.g. those of a machine; default: all.
    Fewer ranks need less traffic between machines and more memory."""
    reshard_after_forward: bool = True
    """Free the parameters of a block after its forward pass; gather them again for the backward."""


Parallel = DDP | FSDP


@final
@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that determines a run. Saved as run.yaml with every checkpoint."""

    backbone: Component = field(metadata={COMPONENT_KIND: "backbone"})
    objective: Diffusion = field(default_factory=Diffusion)
    data: DataConfig = field(default_factory=DataConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    optimizer: Component = field(
        default_factory=lambda: component("optimizer", "adamw"),
        metadata={COMPONENT_KIND: "optimizer", ADDED_LATER: True},
    )
    train: TrainConfig
    lora: LoraConfig = field(default_factory=LoraConfig, metadata={ADDED_LATER: True})
    init_from: str | None = field(default=None, metadata={ADDED_LATER: True})
    """Model whose weights are the initial ones: a folder, or a name on the Hugging Face hub."""
    context: int | None = field(default=None, metadata={ADDED_LATER: True})
    """Context of the denoiser that `init_from` names, which the network keeps if it is longer than
    data.length; set by the run."""
    parallel: Parallel = field(default_factory=DDP)

    def check(self, num_ranks: int = 1, *, is_record: bool = False) -> None:
        """Raise one `ConfigError` that lists all problems.

        The record of an older run may have settings without effect.
        """
        groups = ("data", "optim", "train", "objective", "lora", "parallel")
        problems = [p for name in groups for p in problems_of(getattr(self, name), f"{name}.")]
        problems += [f"optimizer.{problem}" for problem in self.optimizer.problems()]
        problems += self._backbone_problems()
        problems += () if is_record else self.without_effect().values()
        train, per_rank = self.train, self.train.global_batch // num_ranks
        problems += [
            f"objective.{name} must be at most train.steps = {train.steps}, got {steps}: the model "
            "would be evaluated and sampled as it was never trained."
            for name in ("p_uniform_warmup", "attention_warmup")
            if (steps := getattr(self.objective, name)) > train.steps
        ]
        if per_rank < train.accumulate:
            problems.append(
                f"train.global_batch = {train.global_batch} gives {per_rank} samples to each of "
                f"{num_ranks} ranks, fewer than train.accumulate = {train.accumulate}."
            )
        if self.data.folder is None and self.data.prepared:
            samples_per_step(self.data.sources, train.global_batch)  # raises for too few
        if train.evaluate_samples < num_ranks:
            problems.append(
                f"train.evaluate_samples = {train.evaluate_samples} must be at least one for each "
                f"of {num_ranks} ranks."
            )
        require_none(problems)

    def network_config(self, vocab_size: int) -> Any:
        """Return the configuration of the network over a vocabulary; it has a `build`."""
        return self.backbone.build(vocab_size=vocab_size, max_length=self.max_length)

    @property
    def max_length(self) -> int:
        """Longest sequence of the network."""
        return max(self.data.length, self.context or 0)

    def without_effect(self) -> dict[str, str]:
        """Return a message for each setting that was given although another makes it void."""
        messages: dict[str, str] = {}
        for names, is_void, why in _VOID:
            for name in names.split() if is_void(self) else ():
                *groups, last = name.split(".")
                owner: Any = reduce(getattr, groups, self)
                if isinstance(owner, Component):
                    if last not in owner.options or owner.name == UNREGISTERED:
                        continue
                    default = options_of(owner.kind, owner.name)[last].default
                    value = owner.options[last]
                else:
                    default = next(f.default for f in fields(owner) if f.name == last)
                    value = getattr(owner, last)
                if value != default:
                    rest = f"{default} {why}, got {value}: it would have no effect."
                    messages[name] = f"{name} must be {rest}"
        return messages

    def _backbone_problems(self) -> Iterable[str]:
        if self.backbone.name == UNREGISTERED:
            return
        try:
            self.network_config(3)  # checks the sizes; any vocabulary will do
        except ConfigError as error:
            yield from (f"backbone.{line}" for line in str(error).splitlines())


def _only_masks(run: RunConfig) -> bool:
    noise = run.objective.noise
    return noise.name != "hybrid" or noise.options["p_uniform"] == 0


_VOID: tuple[tuple[str, Callable[[RunConfig], bool], str], ...] = (
    (
        "lora.alpha lora.dropout lora.targets lora.embeddings",
        lambda run: run.lora.rank == 0,
        "without lora.rank",
    ),
    ("optim.decay_ratio", lambda run: run.optim.lr_schedule != "wsd", "unless lr_schedule is wsd"),
    (
        "optim.final_lr_ratio",
        lambda run: run.optim.lr_schedule == "constant",
        "if lr_schedule is constant",
    ),
    (
        "optim.beta1 optim.beta2 optim.eps",
        lambda run: (
            run.optimizer.name == "muon"
            and bool(run.lora.rank)
            and not (run.lora.embeddings or run.backbone.options.get("time_embedding"))
        ),
        "with LoRA and muon, which trains all of its matrices",
    ),
    ("objective.p_uniform_warmup", _only_masks, "without hybrid noise of p_uniform above 0"),
    (
        "objective.noise.gamma",
        lambda run: _only_masks(run) and run.objective.noise.name == "hybrid",
        "at p_uniform 0",
    ),
)
"""Settings without effect: their names, when, and why. Others than their defaults are refused."""
