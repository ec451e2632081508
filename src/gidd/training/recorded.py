"""The recorded configuration of a run: read it, also from older layouts, and compare on resume."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from gidd.common.config.allowed import require_none
from gidd.common.config.codec import KIND, from_plain, plain_from_yaml, to_plain
from gidd.common.terminal import shorten
from gidd.errors import ComponentNotInstalled, ConfigError
from gidd.training.config import RunConfig

_TRAIN = """steps accumulate compile timeout report_every evaluate_every evaluate_samples
    generate_samples save_every max_steps_ahead_of_save keep keep_every"""
_OPTIM = "learning_rate warmup lr_schedule decay_ratio final_lr_ratio max_grad_norm"
"""To recover a run that has diverged."""

MAY_CHANGE_ON_RESUME = frozenset(
    {f"train.{name}" for name in _TRAIN.split()}
    | {f"optim.{name}" for name in _OPTIM.split()}
    | {"data.folder", "data.workers", "backbone.checkpoint_activations"}
)
"""Settings that may change on resume, besides the settings of `parallel`."""

OF_THE_RUN = ("dropout", "checkpoint_activations")
"""Options of a network that have no influence on its weights."""

_PREPARED = ("data.sources", "data.tokenizer", "data.validation")
_VALIDATION = "data.validation"
_NAMES = {
    "HybridNoise": "hybrid",
    "UniformNoise": "uniform",
    "ClampedWeights": "clamp",
    "DynamicWeights": "dynamic",
    "TightWeights": "tight",
}


def run_from_yaml(text: str) -> RunConfig:
    """Return the configuration in the text of a run.yaml, which is not trusted."""
    return run_from_plain(plain_from_yaml(text))


def run_from_plain(plain: Any, where: str = "run") -> RunConfig:
    """Return the configuration in plain data, which is not trusted."""
    if _fields(_fields(plain).get("objective")).get(KIND) == "Autoregressive":
        raise ConfigError(
            f"{where}.objective must be Diffusion, got Autoregressive, which is no longer trained. "
            "Export the run with the version that trained it."
        )
    return from_plain(RunConfig, _with_names(plain), where)


def newest_run(folder: Path) -> RunConfig | None:
    """Return the configuration in the newest readable checkpoint of a folder, None without one."""
    from gidd.training.checkpoints.folder import RECORD, folder_name, read_record, steps_in

    for step in reversed(steps_in(folder)):
        path = folder / folder_name(step)
        try:
            return run_from_plain(read_record(path).get("run"), f"{path / RECORD}: run")
        except ComponentNotInstalled:
            raise
        except (OSError, ValueError):
            continue  # damaged: reported when the run is restored
    return None


def require_read(preset: RunConfig, run: RunConfig) -> None:
    """Refuse settings that differ from a preset's although a folder or a model decides them."""
    changed = changed_settings(to_plain(preset), to_plain(run))
    unread: dict[str, str] = {}
    if run.init_from is not None:
        why = f"the network and the tokenizer are those of init_from ({run.init_from})"
        names = [name for name in changed if name.startswith("backbone.")]
        names = ["backbone.kind"] if "backbone.kind" in names else names
        names = [name for name in names if name.rpartition(".")[2] not in OF_THE_RUN]
        unread = dict.fromkeys([*names, "context", "data.tokenizer"], why)
    if folders := ", ".join(map(str, run.data.prepared)):
        names = _PREPARED if run.data.folder is not None else _PREPARED[1:]
        unread |= dict.fromkeys(names, f"the data ({folders}) are prepared already")
    require_none(
        f"{name.removesuffix('.kind')} must be left out, got {shorten(changed[name][1])}: {why}."
        for name, why in unread.items()
        if name in changed
    )


def require_same_training(before: RunConfig, now: RunConfig) -> list[str]:
    """Refuse to resume a run with other settings; return the permitted changes as lines."""
    new = to_plain(now)
    changed = changed_settings(to_plain(before), new)
    lines = {
        name: f"{name}: {old} -> {value}"
        for name, (old, value) in sorted(changed.items())
        if not name.startswith("parallel")
        and not (name == _VALIDATION and value is None)  # not given: as it was prepared
    }
    # with a prepared folder, these are not read
    allowed = MAY_CHANGE_ON_RESUME | set(_PREPARED if new["data"]["folder"] else ())
    allowed |= before.without_effect().keys()
    if now.data.folder is None and now.data.prepared == before.data.prepared != ():
        allowed |= {"data.sources"}  # of a mixture: only its weights differ
    if refused := "\n  ".join(line for name, line in lines.items() if name not in allowed):
        raise ConfigError(
            f"the checkpoint belongs to a run with other settings:\n  {refused}\n"
            "Use the same settings to resume it, or another --out to start a new run."
        )
    return list(lines.values())


def changed_settings(
    old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = ""
) -> dict[str, tuple[Any, Any]]:
    """Return the old and new values of nested plain settings that differ, by dotted name."""
    changed: dict[str, tuple[Any, Any]] = {}
    for name in dict.fromkeys([*old, *new]):
        a, b = old.get(name), new.get(name)
        if isinstance(a, Mapping) or isinstance(b, Mapping):
            nested = [cast("dict[str, Any]", x if isinstance(x, Mapping) else {}) for x in (a, b)]
            changed |= changed_settings(nested[0], nested[1], f"{prefix}{name}.")
        elif a != b:
            changed[prefix + name] = a, b
    return changed


def _with_names(plain: Any) -> Any:
    run = {**_fields(plain)}
    model = _fields(run.pop("model", None))
    if model.get(KIND) != "ModelConfig" or "backbone" in run:
        return plain
    run["backbone"] = {**model, KIND: "dit"}
    objective = {**_fields(run.get("objective"))}
    if objective.get(KIND) == "Diffusion":
        objective["noise"] = _renamed(objective.get("noise"))
        objective["weighting"] = _renamed(objective.pop("weights", None))
        run["objective"] = objective
    return run


def _renamed(component: Any) -> Any:
    kind = str(_fields(component).get(KIND))
    return {**component, KIND: _NAMES[kind]} if kind in _NAMES else component


def _fields(plain: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", plain) if isinstance(plain, dict) else {}
