"""The parts of `gidd.json`: model sizes, vocabulary and schedule as plain data and back.

Noise distributions of a mixture have one entry per token: they go into a tensor file beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar, cast

from torch import Tensor

from gidd.common.codec import KIND, from_plain, to_plain
from gidd.common.terminal import shorten
from gidd.diffusion import schedules
from gidd.diffusion.schedule import MixingSchedule
from gidd.errors import CheckpointError, ConfigError, ScheduleError
from gidd.models.backbones.dit_config import DiTConfig, TimeMappedConfig
from gidd.vocab import Vocab

_T = TypeVar("_T")

PARTS: dict[str, type] = {
    "dit": DiTConfig,
    "time_mapped_dit": TimeMappedConfig,
    "vocabulary": Vocab,
    "masked": schedules.MaskedSchedule,
    "uniform": schedules.UniformSchedule,
    "hybrid": schedules.HybridSchedule,
    "first_release": schedules.FirstReleaseSchedule,
    "linear": schedules.Linear,
    "cosine": schedules.Cosine,
    "polynomial": schedules.Polynomial,
    "ramp": schedules.Ramp,
    "bump": schedules.Bump,
}
"""Everything that a model's record can hold, by its kind."""

_MIXTURE = "mixture"
_MAX_COMPONENTS = 16
"""Components of a saved mixture: each takes up to 32 MB while its schedule is checked."""

_AGAIN = "Save or download the file again."


class ScheduleRecord(NamedTuple):
    """A schedule as it is saved."""

    json: dict[str, Any]
    tensors: dict[str, Tensor]
    """Noise distributions of a mixture, by the names that the JSON uses."""


def part_from(kind: type[_T], record: object, where: str, **given: Any) -> _T:
    """Build a part from plain data; what is wrong with it is an error of the file."""
    try:
        return from_plain(kind, record, where, PARTS, **given)
    except (ConfigError, TypeError) as error:
        raise CheckpointError(f"{error} {_AGAIN}") from error


def record_schedule(schedule: MixingSchedule) -> ScheduleRecord:
    """Convert a schedule to plain data, without its vocabulary, which is saved beside it."""
    if not isinstance(schedule, schedules.MixtureSchedule):
        return ScheduleRecord(to_plain(schedule, PARTS, omit="vocab"), {})
    if len(schedule.components) > _MAX_COMPONENTS:
        raise ConfigError(
            f"a saved mixture can have at most {_MAX_COMPONENTS} components, got "
            f"{len(schedule.components)}. Add up the noise of components with equal amounts."
        )
    tensors = {f"noise.{k}": noise for k, (noise, _) in enumerate(schedule.components)}
    components = [
        {"noise": name, "amount": to_plain(amount, PARTS)}
        for name, (_, amount) in zip(tensors, schedule.components, strict=True)
    ]
    return ScheduleRecord({KIND: _MIXTURE, "components": components}, tensors)


def schedule_from(
    record: object, tensors: Mapping[str, Tensor], vocab: Vocab, where: str
) -> MixingSchedule:
    """Build a schedule from plain data and the tensors beside it; the constructor checks it."""
    if not isinstance(record, dict) or cast("dict[str, Any]", record).get(KIND) != _MIXTURE:
        return part_from(MixingSchedule, record, where, vocab=vocab)
    entries = _fields(record, {KIND, "components"}, where)["components"]
    if not isinstance(entries, list):
        raise CheckpointError(
            f"{where}.components must be a list, got {shorten(entries)}. {_AGAIN}"
        )
    components = cast("list[object]", entries)
    if len(components) > _MAX_COMPONENTS:
        raise CheckpointError(
            f"{where}.components must have at most {_MAX_COMPONENTS} entries, got "
            f"{len(components)}. {_AGAIN}"
        )
    parts = tuple(
        _component(entry, tensors, f"{where}.components[{k}]") for k, entry in enumerate(components)
    )
    try:
        return schedules.MixtureSchedule(vocab, parts)
    except (ConfigError, ScheduleError) as error:
        raise CheckpointError(f"{where}: {error} {_AGAIN}") from error


def _component(record: object, tensors: Mapping[str, Tensor], where: str) -> schedules.Component:
    fields = _fields(record, {"noise", "amount"}, where)
    name = fields["noise"]
    if not isinstance(name, str) or name not in tensors:
        raise CheckpointError(
            f"{where}.noise must name a tensor of {shorten(sorted(tensors))}, got {shorten(name)}. "
            f"{_AGAIN}"
        )
    amount = part_from(schedules.Amount, fields["amount"], f"{where}.amount")
    return schedules.Component(tensors[name], amount)


def _fields(record: object, names: set[str], where: str) -> dict[str, Any]:
    """Return the record if it is an object with exactly these keys."""
    if not isinstance(record, dict) or set(cast("dict[str, Any]", record)) != names:
        raise CheckpointError(
            f"{where} must be an object with {', '.join(sorted(names))}, got {shorten(record)}. "
            f"{_AGAIN}"
        )
    return cast("dict[str, Any]", record)
