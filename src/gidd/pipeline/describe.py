"""Schedules, requests, plans and processors as plain data for the manifests of results."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import Any

from gidd.diffusion.schedule import MixingSchedule
from gidd.errors import ConfigError
from gidd.models.record import record_schedule
from gidd.sampling import Plan, Processor, Request, Require


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
        keywords: dict[str, Any] = step.keywords if isinstance(step, partial) else {}
        options = {name: getattr(value, "__name__", value) for name, value in keywords.items()}
        ends = {"steps": len(steps), "from": steps[0].t, "to": steps[-1].s}
        phases.append({"step": steps[0].name, **options, **ends})
    return phases


def describe_processors(processors: Sequence[Processor]) -> list[str]:
    """Return their names and settings; long lists of tokens are given by their length."""
    return [
        f"Require({len(p.tokens)} of {p.vocab.size} tokens)" if isinstance(p, Require) else repr(p)
        for p in processors
    ]
