"""Read the configuration of a run, also one written before parts had names."""

from __future__ import annotations

from typing import Any, cast

from gidd.common.codec import KIND, from_plain, plain_from_yaml, to_plain
from gidd.models.lora import LoraConfig
from gidd.training.config import RunConfig

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
    return from_plain(RunConfig, _with_time_power(_with_names(plain)), where)


def _with_time_power(plain: Any) -> Any:
    """Return the configuration with uniform training times if it is older than that setting."""
    run = _fields(plain)
    objective = _fields(run.get("objective"))
    if objective.get(KIND) != "Diffusion" or "time_power" in objective:
        return plain
    return {**run, "objective": {**objective, "time_power": 1.0}}


def _with_names(plain: Any) -> Any:
    """Return the configuration with the names of its parts in place of their classes."""
    run = {**_fields(plain)}
    model = _fields(run.pop("model", None))
    if model.get(KIND) != "ModelConfig" or "backbone" in run:
        return plain
    run |= {"lora": to_plain(LoraConfig()), "init_from": None}
    run["backbone"] = {**model, KIND: "dit"}
    objective = {**_fields(run.get("objective"))}
    if objective.get(KIND) == "Diffusion":
        objective["noise"] = _renamed(objective.get("noise"))
        objective["weighting"] = _renamed(objective.pop("weights", None))
        objective["p_uniform_warmup"] = 0
        run["objective"] = objective
    return run


def _renamed(part: Any) -> Any:
    kind = _fields(part).get(KIND)
    return {**part, KIND: _NAMES[kind]} if isinstance(kind, str) and kind in _NAMES else part


def _fields(plain: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", plain) if isinstance(plain, dict) else {}
