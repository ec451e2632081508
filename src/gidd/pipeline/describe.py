"""Schedules, requests, plans and processors as plain data for the manifests of results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from itertools import groupby
from typing import Any

from torch import Tensor

from gidd.diffusion.schedule import MixingSchedule
from gidd.errors import ConfigError
from gidd.models.record import record_schedule
from gidd.sampling import Ban, Plan, Processor, Request, Require, Step


def describe_schedule(schedule: MixingSchedule) -> dict[str, Any]:
    """Return the schedule as a saved model records it; a custom one by the name of its class."""
    try:
        return record_schedule(schedule).json
    except ConfigError:
        return {"kind": type(schedule).__name__}


def describe_request(request: Request) -> dict[str, Any]:
    """Return the settings of a request to generate or infill."""
    return {
        "task": "sample",
        "length": len(request.tokens),
        "given": sum(token is not None for token in request.tokens),
        "seed": request.seed,
        "sample_index": request.sample_index,
        "plan": describe_plan(request.plan),
        "processors": describe_processors(request.processors),
        "stop": list(request.stop),
    }


def describe_plan(plan: Plan) -> list[dict[str, Any]]:
    """Return the phases of a plan: step, its options, number of steps, first and last time."""
    phases: list[dict[str, Any]] = []
    for step, group in groupby(plan.steps, key=lambda planned: planned.step):
        steps = list(group)
        ends = {"steps": len(steps), "from": steps[0].t, "to": steps[-1].s}
        phases.append({"step": steps[0].name, **_options(step), **ends})
    return phases


def _options(step: Step) -> dict[str, Any]:
    """Return the options of a step: functions by name, tensors by their shape."""
    options: dict[str, Any] = {}
    if isinstance(step, partial):
        options = step.keywords
    elif is_dataclass(step):
        options = {option.name: getattr(step, option.name) for option in fields(step)}
    return {name: _plain(value) for name, value in options.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return f"tensor of shape {list(value.shape)}"
    return getattr(value, "__name__", value)


def describe_processors(processors: Sequence[Processor]) -> list[str]:
    """Return a short description of each processor: its name and settings, not its tokens."""
    return [
        f"{type(p).__name__}({len(p.tokens)} of {p.vocab.size} tokens)"
        if isinstance(p, Require | Ban)
        else repr(p)
        for p in processors
    ]
