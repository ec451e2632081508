"""From a run's newest checkpoint to a model that others can load."""

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
    """Write the newest whole checkpoint as safetensors, a record and the tokenizer's files.

    A run that keeps an average of its weights exports the average. A diffusion model is what
    `gidd.models.load_pretrained` loads, an autoregressive one is a Llama for `transformers`. The
    world must be of one process: the model is written as a whole.

    Returns:
        The checkpoint, and why newer ones were passed over.
    """
    checkpoints = Checkpoints(run_folder / "checkpoints", world, read_only=True)
    whole = checkpoints.latest_valid()
    if whole is None:
        raise CheckpointError(
            f"{checkpoints.folder} holds no checkpoint. Give the folder of a run (--out of "
            "`gidd train`) that has saved at least once."
        )
    folder = checkpoints.path(whole.step)
    run = from_yaml(RunConfig, (folder / "run.yaml").read_text(encoding="utf-8"))
    tokenizer = Tokenizer.load(folder)
    objective = build_objective(run, tokenizer.vocab).to_empty(device="cpu")
    objective.network.reset_parameters(Initializer())  # a Llama's angles, too
    wanted = "model." if run.train.ema_decay is None else "ema."
    weights = {
        wanted + name: parameter.detach() for name, parameter in objective.named_parameters()
    }
    record = checkpoints.read(whole.step, weights, partial=True)
    summary = {"steps": whole.step, "run": record["run"]}
    if isinstance(objective, DiffusionObjective):
        save(out, objective.denoiser, objective.schedule, summary)
    else:
        assert isinstance(objective, AutoregressiveObjective)
        objective.model.save(out)
    tokenizer.save(out)
    return whole
