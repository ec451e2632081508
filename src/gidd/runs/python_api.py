"""`gidd.train`: a run from Python, with components by name or as objects."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from gidd.common.config.codec import to_plain
from gidd.common.config.components import UNREGISTERED, Component, component_of
from gidd.common.config.registry import KINDS
from gidd.common.terminal import did_you_mean, shorten
from gidd.data.corpora import Corpus
from gidd.data.manifest import DATA_MANIFEST
from gidd.data.tokenizers import FastTokenizer, Tokenizer, as_tokenizer
from gidd.diffusion.schedule import MixingSchedule
from gidd.diffusion.weighting import Weighting
from gidd.errors import ConfigError
from gidd.models import Pretrained
from gidd.models.lora import LoraConfig, merge_lora
from gidd.models.networks import initialize
from gidd.pipeline.load import pipeline_of
from gidd.pipeline.pipeline import Pipeline
from gidd.pipeline.precision import copied
from gidd.runs.data import TokenStream, prepare_data, prepare_on_rank_zero
from gidd.runs.export import training_summary
from gidd.runs.fit import FitResult, Trackers, fit
from gidd.runs.presets import PRESETS
from gidd.training.build import GivenComponents, build_step
from gidd.training.config import DDP, FSDP, Parallel, RunConfig, default_weighting
from gidd.training.loop import OnTrainStep
from gidd.training.parallel import distribute, is_sharded
from gidd.training.recorded import changed_settings, require_read
from gidd.training.reporting.trackers import open_trackers
from gidd.training.world import World, open_world, rank_and_size

_NEVER = 1e9  # seconds
_ELSEWHERE = {"batch_size": "global_batch", "lr": "learning_rate", "epochs": "steps"}
"""Names of settings in other libraries."""

Batches = Iterable[Tensor | tuple[Tensor, Tensor]]
"""Batches of tokens, int64 [global batch, length], or pairs with the given tokens, bool."""


def train(
    out: str | Path,
    *,
    model: str | Component | nn.Module | Any = None,
    schedule: str | Component | MixingSchedule | None = None,
    weighting: str | Component | Weighting | None = None,
    objective: str | Component | Mapping[str, Any] | None = None,
    optimizer: str | Component | None = None,
    lora: int | Mapping[str, Any] | LoraConfig | None = None,
    parallel: Literal["ddp", "fsdp"] | Parallel | None = None,
    data: str | Path | Corpus | Sequence[str | Path] | Batches | None = None,
    tokenizer: int | str | Path | Tokenizer | FastTokenizer | None = None,
    steps: int | None = None,
    init_from: str | Path | None = None,
    preset: str | RunConfig = "nano",
    device: str | torch.device | None = None,
    trackers: Sequence[str] = (),
    callbacks: Sequence[OnTrainStep] = (),
    quiet: bool = False,
    **settings: Any,
) -> Pipeline:
    """Train a model, or resume the run in `out`, and return it ready to generate.

    The same call resumes an interrupted run. In a notebook, interrupting the kernel saves the run
    and returns the model as it is. The metrics are in `out`/metrics.jsonl: `gidd plot` draws them.

    Args:
        out: Folder of the run.
        model: Network: the name of a backbone, `gidd.component("backbone", NAME, ...)`, the
            configuration of one, or an `nn.Module` with `hidden(z, t)` and a linear `head`, a copy
            of which is trained: its weights are the initial ones.
        schedule: Noise: a name, a `gidd.component`, or a `MixingSchedule`.
        weighting: Weights of the loss: a name, a `gidd.component`, or a `Weighting`.
        objective: What is minimised: a name or a `gidd.component`; or settings of all objectives,
            such as `{"eps": 1e-3}`.
        optimizer: A name, e.g. "muon", or a `gidd.component`.
        lora: Rank of LoRA adapters, which alone are trained, or `{"rank": 16, "alpha": 8}`.
        parallel: "fsdp" shards the model, also `FSDP(shard_size=8)`; "ddp" replicates it.
        data: A folder written by `gidd data prepare`; corpora, files or URLs; a `Corpus`; or an
            iterable of batches of tokens, or of pairs (tokens, given), which needs a `tokenizer`.
        tokenizer: As for `gidd data prepare`, or an object; a number trains one of that size.
        steps: Number of steps; warmup, evaluations and checkpoints are scaled with it.
        init_from: Model whose weights are the initial ones: fine-tuning.
        preset: Everything else: the name of a preset (`gidd train --help`), or a configuration.
        device: "cpu", "cuda", "cuda:1" or "mps"; by default the fastest available.
        trackers: "tensorboard", "wandb", "trackio".
        callbacks: Functions on_step(state, metrics), called before the first step (metrics are {})
            and after each; see docs/extending.md.
        quiet: Print nothing.
        **settings: Fields of `DataConfig`, `OptimConfig`, `TrainConfig` and `Diffusion`, e.g.
            `length=64, learning_rate=1e-3, global_batch=32, seed=1`; with their group if two groups
            have the name: `optim={"eps": 1e-8}`.
    """
    if isinstance(preset, str) and preset not in PRESETS:
        hint = did_you_mean(preset, PRESETS, cutoff=0.3)
        raise ConfigError(f"there is no preset {preset!r}.{hint} `gidd train --help` lists all.")
    out, base = Path(out), PRESETS[preset] if isinstance(preset, str) else preset
    loss = objective if isinstance(objective, str | Component) else None
    noise = _component(schedule, base.objective.noise)
    diffusion = replace(
        base.objective,
        loss=_component(loss, base.objective.loss),
        noise=noise,
        weighting=_component(weighting, default_weighting(base.objective.weighting, noise.name)),
    )
    groups = {"objective": None if loss else objective, "lora": lora, "parallel": parallel}
    settings |= {name: value for name, value in groups.items() if value is not None}
    run = replace(
        _with_steps(base, steps),
        backbone=_component(model, base.backbone),
        objective=diffusion,
        optimizer=_component(optimizer, base.optimizer),
        init_from=None if init_from is None else str(init_from),
    )
    if rank_and_size()[1] == 1:
        # no other rank can hang, and a notebook must not end because its laptop has slept
        settings = {"timeout": _NEVER} | settings
    run = _with_settings(run, settings)
    if model is not None and init_from is not None:
        raise ConfigError(f"model must be left out: the network is that of init_from, {init_from}.")
    if isinstance(run.parallel, FSDP) and run.backbone.name == UNREGISTERED:
        raise ConfigError("parallel must be ddp for a network that is not registered.")
    components = GivenComponents(
        network=copied(model) if isinstance(model, nn.Module) else None,
        schedule=schedule if isinstance(schedule, MixingSchedule) else None,
        weighting=weighting if isinstance(weighting, Weighting) else None,
    )

    def open_all(start: int) -> Trackers:
        return open_trackers(trackers, out, start, to_plain(run)), ()

    with open_world(device) as world:
        run, stream = _with_data(run, base, data, tokenizer, out, world)
        options: Any = {"quiet": quiet, "trackers": open_all, "callbacks": callbacks}
        done = fit(run, out, world, components=components, stream=stream, **options)
        return _pipeline(done, out, world)


def _with_steps(run: RunConfig, steps: int | None) -> RunConfig:
    if steps is None:
        return run

    def scaled(interval: int) -> int:
        return max(1, round(interval * steps / run.train.steps))

    names = ("evaluate_every", "save_every")
    intervals = {name: scaled(getattr(run.train, name)) for name in names}
    optim = replace(run.optim, warmup=scaled(run.optim.warmup))
    return replace(run, optim=optim, train=replace(run.train, steps=steps, **intervals))


def _component(value: Any, before: Component) -> Component:
    if value is None or isinstance(value, Component):
        return value or before
    if isinstance(value, str):
        return before.renamed(value)
    kind = before.kind
    config = getattr(value, "config", value) if isinstance(value, nn.Module) else value
    options = {
        field.name: getattr(config, field.name)
        for field in (fields(config) if is_dataclass(config) else ())
        if field.init and field.name not in KINDS[kind].supplied
    }
    try:
        json.dumps(to_plain(tuple(options.values())))
    except TypeError:  # e.g. the distributions of a mixture
        return Component(kind, UNREGISTERED, {"class": type(config).__name__})
    return component_of(kind, config, options)


def _with_settings(run: RunConfig, settings: Mapping[str, Any]) -> RunConfig:
    groups = {name: getattr(run, name) for name in ("data", "optim", "train", "objective")}
    owners = {name: {field.name for field in fields(group)} for name, group in groups.items()}
    groups |= {"lora": run.lora, "parallel": run.parallel}
    for setting, value in settings.items():
        if setting in groups:
            groups[setting] = _changed_group(setting, groups[setting], value)
            continue
        tables = [name for name, names in owners.items() if setting in names]
        if len(tables) > 1:
            choices = " or ".join(f"{name}={{{setting!r}: {value!r}}}" for name in tables)
            raise ConfigError(f"{setting} is a setting of {' and '.join(tables)}. Use {choices}.")
        if not tables:
            raise _unknown("train()", setting, set[str]().union(*owners.values()))
        groups[tables[0]] = replace(groups[tables[0]], **{setting: value})
    return replace(run, **groups)


def _changed_group(name: str, group: Any, value: Any) -> Any:
    if name == "lora" and isinstance(value, int):
        value = {"rank": value}
    if name == "parallel" and isinstance(value, str):
        if value not in ("ddp", "fsdp"):
            raise ConfigError(f"parallel must be ddp or fsdp, got {value!r}.")
        return DDP() if value == "ddp" else FSDP()
    if not isinstance(value, Mapping):
        return value
    known = {field.name for field in fields(group)}
    for setting in cast("Mapping[str, Any]", value):
        if setting not in known:
            raise _unknown(name, setting, known)
    return replace(group, **value)


def _unknown(where: str, setting: str, known: Iterable[str]) -> ConfigError:
    hint = did_you_mean(_ELSEWHERE.get(setting, setting), known)
    return ConfigError(f"{where} has no setting {setting!r}.{hint} See `gidd train nano --help`.")


def _with_data(
    run: RunConfig, base: RunConfig, data: Any, tokenizer: Any, out: Path, world: World
) -> tuple[RunConfig, TokenStream | None]:
    """Return the run with its data and tokenizer, and the stream of batches if that is the data.

    All ranks enter; rank 0 writes. Settings that differ from those of `base` were given.
    """
    if data is not None:
        _require_unchanged(base, run, ("data.folder", "data.sources"), "data is given")
    encoder = None
    if isinstance(tokenizer, str | Path | int):
        choice = tokenizer if isinstance(tokenizer, int) else str(tokenizer)
        run = replace(run, data=replace(run.data, tokenizer=choice))
    elif tokenizer is not None:
        encoder = as_tokenizer(tokenizer)
        run = replace(run, data=replace(run.data, tokenizer=str(out / "tokenizer")))
    names: list[Any] = [data] if isinstance(data, str | Path) else []
    names = list(cast("Sequence[Any]", data)) if isinstance(data, list | tuple) else names
    is_named = bool(names) and all(isinstance(name, str | Path) for name in names)
    if is_named:
        path = Path(names[0])
        folder = path if data is names[0] and (path / DATA_MANIFEST).is_file() else None
        run = replace(run, data=replace(run.data, folder=folder))
    if data is None or is_named:
        require_read(base, run)
    if encoder is not None and world.is_rank_zero:
        encoder.save(out / "tokenizer")
    if data is None:
        return run, None
    if isinstance(data, Corpus):
        folder, settings = out / "data", run.data
        prepare_on_rank_zero(world, folder, lambda: prepare_data(settings, [data], folder, True))
        return replace(run, data=replace(run.data, folder=folder, sources=())), None
    if is_named:
        sources = () if run.data.folder else tuple(map(str, names))
        return replace(run, data=replace(run.data, sources=sources)), None
    if encoder is None:
        raise ConfigError("tokenizer must be the object that encoded the batches of `data`.")
    batches = iter(cast("Iterable[Any]", data))
    first = next(batches, None)
    tokens = first[0] if isinstance(first, tuple) else first
    if not isinstance(tokens, Tensor) or tokens.ndim != 2:
        required = "int64 tensors [global batch, length], or pairs of them and the given tokens"
        raise ConfigError(f"data must yield {required}, got {type(first).__name__}.")
    unused = ["data.packing", "data.shuffle", "data.validation", "data.workers"]
    unused += ["train.evaluate_samples"]
    unused += [] if run.data.length == tokens.shape[1] else ["data.length"]
    unused += [] if run.train.global_batch == len(tokens) else ["train.global_batch"]
    shape = list(tokens.shape)
    _require_unchanged(base, run, unused, f"batches of shape {shape} are used as they are")
    source = replace(run.data, folder=None, sources=("batches",), length=tokens.shape[1])
    run = replace(run, data=source, train=replace(run.train, global_batch=len(tokens)))
    return run, TokenStream(chain([first], batches), encoder)


def _require_unchanged(base: RunConfig, run: RunConfig, names: Iterable[str], why: str) -> None:
    changed = changed_settings(to_plain(base), to_plain(run))
    for name in names:
        if name in changed:
            raise ConfigError(f"{name} must be left out: {why}, got {shorten(changed[name][1])}.")


@torch.no_grad()
def _pipeline(done: FitResult, out: Path, world: World) -> Pipeline:
    """Return the model that `gidd export` would write: its EMA, if there is one."""
    run, state = done.run, done.state
    trained = state.model
    if is_sharded(trained):
        vocab = done.tokenizer.vocab
        trained = build_step(run, vocab).model
        distribute(DDP(), trained, (), world, torch.float32)
        initialize(trained.network, 0, lambda: run.network_config(vocab.size).build())
    weights = dict(state.model.named_parameters()) if state.ema is None else state.ema.values
    for name, parameter in trained.named_parameters():
        weight = weights[name]
        parameter.copy_(weight.full_tensor() if isinstance(weight, DTensor) else weight)
    if run.lora.rank:
        merge_lora(trained.network)
    notes = () if done.complete else (f"stopped at step {state.step}; the same call resumes it.",)
    model = Pretrained(
        denoiser=trained.denoiser,
        schedule=state.corrupt.schedule,
        summary=training_summary(run, state.step, state.source),
        sha256="",
        notes=notes,
    )
    return pipeline_of(
        model, done.tokenizer, name=str(out), device=world.device, context=run.data.length
    )
