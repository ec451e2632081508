"""`gidd.train`: a run from Python, with parts by name or as objects."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from gidd.common.codec import to_plain
from gidd.common.parts import UNREGISTERED, Part, part_of
from gidd.common.registry import KINDS
from gidd.data.corpora import Corpus, texts
from gidd.data.manifest import DATA_MANIFEST
from gidd.data.preparation.prepare import prepare
from gidd.data.tokenizer_objects import FastTokenizer
from gidd.data.tokenizers import Tokenizer, as_tokenizer, tokenizer_for
from gidd.diffusion.schedule import MixingSchedule
from gidd.diffusion.weighting import Weighting
from gidd.errors import ConfigError
from gidd.models.lora import merge_lora
from gidd.pipeline.pipeline import Pipeline
from gidd.runs.data import TokenStream
from gidd.runs.fit import FitResult, Trackers, fit
from gidd.runs.presets import PRESETS
from gidd.training.build import GivenParts
from gidd.training.config import Diffusion, RunConfig
from gidd.training.objective import DiffusionObjective
from gidd.training.parallel import FSDP
from gidd.training.reporting.trackers import open_trackers
from gidd.training.world import World, open_world

_NEVER = 1e9
"""Seconds."""

Batches = Iterable[Tensor]
"""Batches of tokens, int64 [global batch, length]."""


def train(
    out: str | Path,
    *,
    model: str | Part | nn.Module | Any = None,
    schedule: str | Part | MixingSchedule | None = None,
    weighting: str | Part | Weighting | None = None,
    data: str | Path | Corpus | Sequence[str | Path] | Batches | None = None,
    tokenizer: int | str | Path | Tokenizer | FastTokenizer | None = None,
    steps: int | None = None,
    init_from: str | Path | None = None,
    preset: str | RunConfig = "nano",
    device: str | None = None,
    trackers: Sequence[str] = (),
    quiet: bool = False,
    **settings: Any,
) -> Pipeline:
    """Train a model, or resume the run in `out`, and return it ready to generate.

    The same call resumes an interrupted run. In a notebook, interrupting the kernel saves the run
    and returns the model as it is. The metrics are in `out`/metrics.jsonl: `gidd plot` draws them.

    Args:
        out: Folder of the run.
        model: Network: the name of a registered backbone, `gidd.part("backbone", NAME, ...)`, the
            configuration of one, or an `nn.Module` with `hidden(z, t)` and a linear `head`. Its
            weights are then the initial ones.
        schedule: Noise: a name, a `gidd.part`, or a `MixingSchedule`.
        weighting: Weights of the loss: a name, a `gidd.part`, or a `Weighting`.
        data: A folder written by `gidd data prepare`; corpora, files or URLs; a `Corpus`; or an
            iterable of batches of tokens, which needs a `tokenizer`.
        tokenizer: As for `gidd data prepare`, or an object; a number trains one of that size.
        steps: Number of steps; warmup, evaluations and checkpoints are scaled with it.
        init_from: Model whose weights are the initial ones: fine-tuning.
        preset: Everything else: the name of a preset (`gidd train --help`), or a configuration.
        device: "cpu", "cuda" or "mps"; by default the fastest available.
        trackers: "tensorboard", "wandb", "trackio".
        quiet: Print nothing.
        **settings: Fields of `DataConfig`, `OptimConfig`, `TrainConfig` and `Diffusion`, e.g.
            `length=64, learning_rate=1e-3, global_batch=32, seed=1`.
    """
    out, base = Path(out), _preset(preset)
    if not isinstance(base.objective, Diffusion) or isinstance(base.parallel, FSDP):
        raise ConfigError(
            "preset must be a diffusion model that is not sharded. Use `gidd train` for others."
        )
    run = _with_steps(base, steps)
    network = model if isinstance(model, nn.Module) else None
    objective = replace(
        base.objective,
        noise=_part(schedule, base.objective.noise),
        weighting=_part(weighting, base.objective.weighting),
    )
    source = None if init_from is None else str(init_from)
    backbone = _part(model, run.backbone)
    run = replace(run, backbone=backbone, objective=objective, init_from=source)
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        # no other rank can hang, and a notebook must not end because its laptop has slept
        settings = {"timeout": _NEVER} | settings
    run, stream = _with_data(_with_settings(run, settings), data, tokenizer, out)
    given = GivenParts(
        network=network,
        schedule=schedule if isinstance(schedule, MixingSchedule) else None,
        weighting=weighting if isinstance(weighting, Weighting) else None,
    )

    def open_all(start: int) -> Trackers:
        return open_trackers(trackers, out, start, to_plain(run)), ()

    with open_world(device) as world:
        done = fit(run, out, world, quiet=quiet, trackers=open_all, given=given, stream=stream)
        return _pipeline(done, out, world)


def _with_steps(run: RunConfig, steps: int | None) -> RunConfig:
    """Return the run with another number of steps; intervals keep their share of it."""
    if steps is None:
        return run

    def scaled(interval: int) -> int:
        return max(1, round(interval * steps / run.train.steps))

    train, optim = run.train, run.optim
    return replace(
        run,
        optim=replace(optim, warmup=scaled(optim.warmup)),
        train=replace(
            train,
            steps=steps,
            evaluate_every=scaled(train.evaluate_every),
            save_every=scaled(train.save_every),
        ),
    )


def _preset(preset: str | RunConfig) -> RunConfig:
    if not isinstance(preset, str):
        return preset
    if preset not in PRESETS:
        near = get_close_matches(preset, PRESETS, 1, 0.3)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ConfigError(f"there is no preset {preset!r}.{hint} `gidd train --help` lists all.")
    return PRESETS[preset]


def _part(value: Any, before: Part) -> Part:
    """Return the part that a name, a part, a configuration or an object stands for."""
    if value is None or isinstance(value, Part):
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
        return Part(kind, UNREGISTERED, {"class": type(config).__name__})
    return part_of(kind, config, options)


def _with_settings(run: RunConfig, settings: Mapping[str, Any]) -> RunConfig:
    """Return the run with other values of fields of its groups."""
    groups = {name: getattr(run, name) for name in ("data", "optim", "train", "objective")}
    owner = {field.name: name for name, group in groups.items() for field in fields(group)}
    for setting, value in settings.items():
        if setting not in owner:
            near = get_close_matches(setting, owner, 1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise ConfigError(
                f"train() has no setting {setting!r}.{hint} See `gidd train nano --help`."
            )
        name = owner[setting]
        groups[name] = replace(groups[name], **{setting: value})
    return replace(run, **groups)


def _with_data(
    run: RunConfig, data: Any, tokenizer: Any, out: Path
) -> tuple[RunConfig, TokenStream | None]:
    """Return the run with its data and tokenizer, and the stream of batches if that is the data."""
    if isinstance(tokenizer, str | Path | int):
        run = replace(run, data=replace(run.data, tokenizer=_plain(tokenizer)))
        tokenizer = None
    elif tokenizer is not None:
        tokenizer = as_tokenizer(tokenizer)
        tokenizer.save(out / "tokenizer")
        run = replace(run, data=replace(run.data, tokenizer=str(out / "tokenizer")))
    if data is None:
        return run, None
    if isinstance(data, str | Path) and (Path(data) / DATA_MANIFEST).is_file():
        return replace(run, data=replace(run.data, folder=Path(data), sources=())), None
    if isinstance(data, Corpus):
        folder = out / "data"
        prepare(data, _tokenizer(run.data.tokenizer, data), folder, quiet=True)
        return replace(run, data=replace(run.data, folder=folder, sources=())), None
    if _is_sources(data):
        names = [data] if isinstance(data, str | Path) else data
        sources = tuple(map(str, names))
        return replace(run, data=replace(run.data, folder=None, sources=sources)), None
    if tokenizer is None:
        raise ConfigError(
            "tokenizer must be an object if data is an iterable of batches: the tokenizer that "
            "encoded them."
        )
    first, batches = _first(cast(Batches, data))
    sizes = {"global_batch": len(first)}
    shape = replace(run.data, folder=None, sources=("batches",), length=first.shape[1])
    run = replace(run, data=shape, train=replace(run.train, **sizes))
    return run, TokenStream(batches, tokenizer)


def _plain(tokenizer: int | str | Path) -> int | str:
    return tokenizer if isinstance(tokenizer, int) else str(tokenizer)


def _is_sources(data: Any) -> bool:
    """Whether data are names of sources rather than batches of tokens."""
    return isinstance(data, str | Path) or (
        isinstance(data, Sequence)
        and all(isinstance(name, str | Path) for name in cast("Sequence[object]", data))
    )


def _tokenizer(choice: int | str, corpus: Corpus) -> Tokenizer:
    if (own := corpus.tokenizer()) is not None:
        return own
    return tokenizer_for(texts(corpus), choice)


def _first(batches: Batches) -> tuple[Tensor, Iterator[Tensor]]:
    """Return the first batch, and an iterator over all."""
    iterator = iter(batches)
    first = next(iterator, None)
    if not isinstance(first, Tensor) or first.ndim != 2:
        raise ConfigError(
            "data must yield batches of tokens, int64 tensors of shape [global batch, length], got "
            f"{type(first).__name__}."
        )
    return first, chain([first], iterator)


@torch.no_grad()
def _pipeline(done: FitResult, out: Path, world: World) -> Pipeline:
    """Return a pipeline with the weights that training ended with: their EMA, if there is one."""
    objective, state = done.state.objective, done.state
    assert isinstance(objective, DiffusionObjective)
    if state.ema is not None:
        for name, parameter in objective.named_parameters():
            parameter.copy_(state.ema.values[name])
    if done.run.lora.rank:
        merge_lora(objective.network)
    notes = () if done.complete else (f"stopped at step {state.step}; the same call resumes it.",)
    return Pipeline(
        objective.denoiser,
        objective.schedule,
        done.tokenizer,
        context=done.run.data.length,
        device=world.device,
        source={"name": str(out), "sha256": None, "steps": state.step},
        notes=notes,
    )
