"""What was asked for, in plain words and numbers, so that it can be asked for again."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import Any

from gidd.diffusion.schedule import MixingSchedule
from gidd.errors import ConfigError
from gidd.models.record import record_schedule
from gidd.sampling import Plan, PlannedStep, Processor, Require


def schedule_in_words(schedule: MixingSchedule) -> dict[str, Any]:
    """As a saved model records it; a schedule of your own by its name."""
    try:
        return record_schedule(schedule).json
    except ConfigError:
        return {"kind": type(schedule).__name__}


def plan_in_words(plan: Plan) -> list[dict[str, Any]]:
    """Its phases: step, options, how many moves, from when to when."""
    phases: list[dict[str, Any]] = []
    for _, group in groupby(plan.steps, key=lambda planned: planned.step):
        steps = list(group)
        ends = {"steps": len(steps), "from": steps[0].t, "to": steps[-1].s}
        phases.append({"step": steps[0].name, **_options(steps[0]), **ends})
    return phases


def processors_in_words(processors: Sequence[Processor]) -> list[str]:
    """Their names and settings; long lists of tokens by their length."""
    return [
        f"Require({len(p.tokens)} of {p.vocab.size} tokens)" if isinstance(p, Require) else repr(p)
        for p in processors
    ]


def _options(planned: PlannedStep) -> dict[str, Any]:
    """Keyword arguments of the step; functions by name."""
    if not isinstance(planned.step, partial):
        return {}
    keywords: dict[str, Any] = planned.step.keywords
    return {name: getattr(value, "__name__", value) for name, value in keywords.items()}
