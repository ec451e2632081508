"""Export the newest checkpoint of a run as a model that can be loaded without the run."""

from __future__ import annotations

from pathlib import Path

from gidd.common.codec import from_yaml
from gidd.data.tokenizers import Tokenizer
from gidd.errors import CheckpointError
from gidd.models import save
from gidd.models.init import Initializer
from gidd.training.build import build_objective
from gidd.training.checkpoints.checkpoints import Checkpoints, ValidCheckpoint
from gidd.training.config import RunConfig
from gidd.training.objective import AutoregressiveObjective, DiffusionObjective
from gidd.training.world import World


def export(run_folder: Path, out: Path, world: World) -> ValidCheckpoint:
    """Write the newest valid checkpoint as safetensors, a record and the tokenizer's files.

    Exports the EMA of the weights if the run has one. `gidd.from_pretrained` loads a diffusion
    model, `transformers` an autoregressive one (a Llama). The world must have one process: the
    model is not sharded.

    Returns:
        The checkpoint, and notes on newer checkpoints that were skipped because of damage.
    """
    checkpoints = Checkpoints(run_folder / "checkpoints", world, read_only=True)
    checkpoint = checkpoints.latest_valid()
    if checkpoint is None:
        raise CheckpointError(
            f"{checkpoints.folder} contains no checkpoint. Use the folder of a run (--out of "
            "`gidd train`) that has saved at least once."
        )
    folder = checkpoints.path(checkpoint.step)
    run = from_yaml(RunConfig, (folder / "run.yaml").read_text(encoding="utf-8"))
    tokenizer = Tokenizer.load(folder)
    objective = build_objective(run, tokenizer.vocab).to_empty(device="cpu")
    objective.network.reset_parameters(Initializer())  # for the rotary buffers of a Llama
    prefix = "model." if run.train.ema_decay is None else "ema."
    weights = {prefix + name: value.detach() for name, value in objective.named_parameters()}
    record = checkpoints.read(checkpoint.step, weights, partial=True)
    summary = {"steps": checkpoint.step, "run": record["run"]}
    if isinstance(objective, DiffusionObjective):
        save(out, objective.denoiser, objective.schedule, summary)
    else:
        assert isinstance(objective, AutoregressiveObjective)
        objective.model.save(out)
    tokenizer.save(out)
    return checkpoint
