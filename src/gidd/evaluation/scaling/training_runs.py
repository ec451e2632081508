"""Training runs as points: FLOPs so far and validation likelihood, read from their folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from gidd.common.codec import KIND, to_plain
from gidd.common.files import explain_damage, read_regular
from gidd.common.limits import YAML_BYTES
from gidd.common.terminal import printable, shorten
from gidd.data.tokenizers import Tokenizer
from gidd.errors import CheckpointError, ConfigError, DataError, GiddError
from gidd.evaluation.scaling.flops import run_flops
from gidd.runs.export import RUN_FILE
from gidd.training.checkpoints.folder import folder_name, steps_in
from gidd.training.config import RunConfig
from gidd.training.recorded import run_from_yaml
from gidd.viz.run_log import RunLog

_REMEDY = "Give the folder of a run (--out of `gidd train`) that has saved a checkpoint."
_LIKELIHOODS = ("nelbo", "nll")
"""Metrics of the log: the bound of a diffusion model, or the exact value of the baseline."""

_ALIASES = {
    "objective": f"objective.{KIND}",
    "noise": f"objective.noise.{KIND}",
    "weighting": f"objective.weighting.{KIND}",
    "p_uniform": "objective.noise.p_uniform",
}
"""Short names of settings in run.yaml."""


class ScalingPoint(NamedTuple):
    """One validation of a run."""

    run: str
    """Name of its folder."""

    flops: float
    """Training FLOPs up to this step."""

    nelbo: float
    """Nats per token; of the autoregressive baseline the exact negative log-likelihood."""

    standard_error: float | None
    tokens: int
    """Positions trained on up to this step, including padding."""

    parameters: int
    """Of the blocks, without embeddings and head."""


class TrainingRun(NamedTuple):
    """The configuration of a run and its validations."""

    folder: Path
    config: RunConfig
    tokenizer: str
    """Fingerprint of the tokenizer."""

    points: Sequence[ScalingPoint]
    """In the order of their steps."""

    def label(self, setting: str) -> str:
        """Return the value of a setting of run.yaml, e.g. "p_uniform" or "backbone.width"."""
        value: Any = to_plain(self.config)
        for key in _ALIASES.get(setting, setting).split("."):
            fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
            if key not in fields:
                if setting in _ALIASES:  # a noise without uniform part, or no noise at all
                    return self._noise()
                raise ConfigError(
                    f"group_by must be a setting in {RUN_FILE}, got {shorten(setting)}: the run "
                    f"{printable(self.folder.name)} has no {shorten(key)}. Use one of "
                    f"{', '.join(_ALIASES)}, or a path such as backbone.width."
                )
            value = fields[key]
        return printable(f"{setting.rpartition('.')[2]}={value}")

    def _noise(self) -> str:
        noise = getattr(self.config.objective, "noise", None)
        return type(self.config.objective).__name__ if noise is None else noise.name


def read_run_config(folder: Path) -> RunConfig:
    """Read the configuration in the newest checkpoint of a run, which is not trusted."""
    return _read_newest(folder)[1]


def read_training_run(folder: Path) -> TrainingRun:
    """Read the configuration, the tokenizer and the validations of a run."""
    checkpoint, run = _read_newest(folder)
    with explain_damage(str(checkpoint), _REMEDY, CheckpointError):
        tokenizer = Tokenizer.load(checkpoint)
    if run.init_from is not None:
        raise DataError(
            f"{folder}: init_from is {shorten(run.init_from)}, so the run continues training whose "
            "FLOPs are not known. Leave it out."
        )
    try:
        flops = run_flops(run, tokenizer.vocab.size)
        parameters = run.network_config(tokenizer.vocab.size).num_block_parameters
    except GiddError as error:
        raise DataError(f"{folder}: {error}") from error
    batch, log = run.train.global_batch, RunLog.read(folder)
    points = [
        ScalingPoint(
            run=log.name,
            flops=float(step * batch * flops.training),
            nelbo=value,
            standard_error=error,
            tokens=step * batch * run.data.length,
            parameters=parameters,
        )
        for step, (value, error) in _validations(log).items()
        if step > 0 and value > 0
    ]
    if not points:
        raise DataError(
            f"{folder}: the log has no validation, which has {' or '.join(_LIKELIHOODS)}. Train "
            "with validation data (--data.validation), and wait for the first evaluation "
            "(--train.evaluate-every)."
        )
    return TrainingRun(folder, run, tokenizer.fingerprint, points)


def _validations(log: RunLog) -> Mapping[int, tuple[float, float | None]]:
    """Return likelihood and, where logged, standard error by step."""
    for name in _LIKELIHOODS:
        curve, errors = log.curve("evaluation", name), log.curve("evaluation", f"{name}_se")
        if len(curve.values):
            by_step = dict(zip(errors.steps.tolist(), errors.values.tolist(), strict=True))
            pairs = zip(curve.steps.tolist(), curve.values.tolist(), strict=True)
            return {step: (value, by_step.get(step)) for step, value in pairs}
    return {}


def _read_newest(folder: Path) -> tuple[Path, RunConfig]:
    checkpoints = folder / "checkpoints"
    steps = steps_in(checkpoints)
    if not steps:
        raise CheckpointError(f"{checkpoints} contains no checkpoint. {_REMEDY}")
    checkpoint = checkpoints / folder_name(steps[-1])
    path = checkpoint / RUN_FILE
    try:
        with explain_damage(str(path), _REMEDY, CheckpointError):
            run = run_from_yaml(read_regular(path, CheckpointError, YAML_BYTES).decode())
            run.check()
    except CheckpointError:
        raise
    except GiddError as error:
        raise CheckpointError(f"{path}: {error} {_REMEDY}") from error
    return checkpoint, run
