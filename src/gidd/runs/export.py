"""Export the newest checkpoint of a run as a model that can be loaded without the run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from gidd.common.config.codec import to_plain
from gidd.common.files import CONTEXT_TOKENS, YAML_BYTES, explain_damage, read_regular
from gidd.common.terminal import shorten
from gidd.data.tokenizers import Tokenizer
from gidd.errors import CheckpointError, ComponentNotInstalled, ConfigError, GiddError
from gidd.models import save
from gidd.models.lora import merge_lora
from gidd.models.networks import initialize
from gidd.models.weights import keep_tied
from gidd.training.build import build_step
from gidd.training.checkpoints.folder import (
    folder_name,
    read_manifest,
    read_record,
    steps_in,
)
from gidd.training.checkpoints.manager import Checkpoints, ValidCheckpoint
from gidd.training.config import RunConfig
from gidd.training.objective import TrainedModel
from gidd.training.recorded import run_from_yaml
from gidd.training.state import TrainStep
from gidd.training.world import World

RUN_FILE = "run.yaml"  # file of a checkpoint with the configuration of its run
_REMEDY = "Copy the checkpoint from a backup, or delete it to export an older one."


_RUN_REMEDY = "Give the folder of a run (--out of `gidd train`) that has saved a checkpoint."


def export(run_folder: Path, out: Path, world: World, *, bf16: bool = False) -> ValidCheckpoint:
    """Write the newest valid checkpoint as safetensors, a record and the tokenizer's files.

    Exports the EMA of the weights if the run has one; with `bf16`, rounded to bfloat16.
    The world must have one process. The run may be training: if it deletes the checkpoint that is
    being read, the newest one is read instead. Returns the checkpoint, with notes on damage.
    """
    checkpoints = Checkpoints(run_folder / "checkpoints", world, read_only=True)
    newest = checkpoints.read_latest(lambda step: _read(checkpoints, step))
    if newest is None:
        problem = f"{checkpoints.folder} contains no checkpoint"
        raise CheckpointError(f"{problem}. Use --out of a `gidd train` that has saved.")
    checkpoint, (run, tokenizer, step, source) = newest
    summary = training_summary(run, checkpoint.step, source)
    model = step.model.bfloat16() if bf16 else step.model
    save(out, model.denoiser, step.corrupt.schedule, summary)
    tokenizer.save(out)
    return checkpoint


def training_summary(run: RunConfig, step: int, source: Any) -> dict[str, Any]:
    """Return what a model records of its training; `source` is that of the initial weights."""
    summary = {"steps": step, "run": to_plain(run)}
    return summary if source is None else summary | {"init_from": source}


def _read(checkpoints: Checkpoints, step: int) -> tuple[RunConfig, Tokenizer, TrainStep, Any]:
    """Read a checkpoint; it is not trusted, and its run may delete it meanwhile.

    Returns configuration, tokenizer, model, and the source of the initial weights, if any.
    """
    folder = checkpoints.path(step)
    try:
        with explain_damage(str(folder), _REMEDY, CheckpointError):
            text = read_regular(folder / RUN_FILE, CheckpointError, YAML_BYTES)
            run = run_from_yaml(text.decode())
            source = read_record(folder).get("init_from")
            run.check(is_record=True)
            tokenizer = Tokenizer.load(folder)
            run.network_config(tokenizer.vocab.size)  # raises if it is not registered
            _require_sizes(run, folder, step)
            built = build_step(run, tokenizer.vocab)
            # compared on the meta device first: nothing larger than the files is allocated
            checkpoints.require_same_model(step, _weights(run, built.model), partial=True)
            with keep_tied(built.model):
                built.model.to_empty(device="cpu")
            vocab_size = tokenizer.vocab.size
            initialize(built.model.network, 0, lambda: run.network_config(vocab_size).build())
            checkpoints.read(step, _weights(run, built.model), partial=True)
            if run.lora.rank:
                merge_lora(built.model.network)
    except CheckpointError:
        raise
    except ComponentNotInstalled as error:
        raise CheckpointError(f"{folder / RUN_FILE}: {error}") from error
    except GiddError as error:  # of run.yaml or of the tokenizer
        raise CheckpointError(f"{folder}: {error} {_REMEDY}") from error
    return run, tokenizer, built, source


def _weights(run: RunConfig, model: TrainedModel) -> Mapping[str, Tensor]:
    """Return the parameters by their names in the checkpoint: of the EMA if the run has one."""
    prefix = "model." if run.train.ema_decay is None else "ema."
    return {prefix + name: value.detach() for name, value in model.named_parameters()}


def _require_sizes(run: RunConfig, folder: Path, step: int) -> None:
    """Refuse more layers than tensors, before a module per layer is built, and a long context."""
    most = len(read_manifest(folder, step).tensors)
    num_layers: object = run.backbone.options.get("num_layers")
    if isinstance(num_layers, int) and num_layers > most:
        required = f"backbone.num_layers must be at most {most}, the number of tensors"
        got = shorten(num_layers)
        raise CheckpointError(f"{folder / RUN_FILE}: {required}, got {got}. {_REMEDY}")
    CONTEXT_TOKENS.require(run.max_length, f"{folder / RUN_FILE}: data.length", CheckpointError)


def read_run_config(folder: Path) -> tuple[Path, RunConfig]:
    """Return the newest checkpoint of a run and its configuration, which is not trusted."""
    checkpoints = folder / "checkpoints"
    if not (steps := steps_in(checkpoints)):
        raise CheckpointError(f"{checkpoints} contains no checkpoint. {_RUN_REMEDY}")
    checkpoint = checkpoints / folder_name(steps[-1])
    path = checkpoint / RUN_FILE
    try:
        with explain_damage(str(path), _RUN_REMEDY, CheckpointError):
            run = run_from_yaml(read_regular(path, CheckpointError, YAML_BYTES).decode())
            run.check(is_record=True)
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error} {_RUN_REMEDY}") from error
    return checkpoint, run
