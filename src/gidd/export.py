"""From a run's newest checkpoint to a model that others can load."""

from __future__ import annotations

from pathlib import Path

from gidd.data.tokenizers import Tokenizer
from gidd.errors import CheckpointError
from gidd.models import save
from gidd.models.initial import Initial
from gidd.training.build import build_objective
from gidd.training.checkpoint import Checkpoints
from gidd.training.config import RunConfig
from gidd.training.objective import AutoregressiveObjective, DiffusionObjective
from gidd.training.record import from_yaml
from gidd.training.world import World


def export(run_folder: Path, out: Path, world: World) -> int:
    """Write the newest whole checkpoint as safetensors, a record and the tokenizer's files.

    A run that keeps an average of its weights exports the average. A diffusion model is what
    `gidd.models.from_pretrained` loads, an autoregressive one is a Llama for `transformers`. The
    world must be of one process: the model is written as a whole.

    Returns:
        The step of the checkpoint.
    """
    checkpoints = Checkpoints(run_folder / "checkpoints", world, read_only=True)
    steps = checkpoints.steps()
    if not steps:
        raise CheckpointError(
            f"{checkpoints.folder} holds no checkpoint. Give the folder of a run (--out of "
            "`gidd train`) that has saved at least once."
        )
    newest = checkpoints.path(steps[-1])
    run = from_yaml(RunConfig, (newest / "run.yaml").read_text(encoding="utf-8"))
    tokenizer = Tokenizer.load(newest)
    objective = build_objective(run, tokenizer.vocab).to_empty(device="cpu")
    objective.network.reset_parameters(Initial())  # a Llama's angles, too
    wanted = "model." if run.train.average is None else "average."
    weights = {
        wanted + name: parameter.detach() for name, parameter in objective.named_parameters()
    }
    restored = checkpoints.restore(weights, partial=True)
    assert restored is not None  # there are checkpoints: a damaged set has raised
    summary = {"steps": restored.step, "run": restored.record["run"]}
    if isinstance(objective, DiffusionObjective):
        save(out, objective.denoiser, objective.schedule, summary)
    else:
        assert isinstance(objective, AutoregressiveObjective)
        objective.model.save(out)
    tokenizer.save(out)
    return restored.step
