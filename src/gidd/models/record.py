"""Vocabularies, model sizes and schedules as plain JSON and back.

A part is an object with its `kind` and its fields. Distributions over the vocabulary are too long
for JSON and go into a tensor file beside it. Anything unknown is refused, never skipped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeVar, cast

from torch import Tensor

from gidd.diffusion.schedule import MixingSchedule
from gidd.diffusion.schedules import (
    Bump,
    Component,
    Cosine,
    FirstReleaseSchedule,
    HybridSchedule,
    Linear,
    MaskedSchedule,
    MixtureSchedule,
    Polynomial,
    Ramp,
    UniformSchedule,
)
from gidd.errors import CheckpointError, ConfigError, ScheduleError
from gidd.models.backbones.dit import DiTConfig
from gidd.vocab import Vocab

Json = dict[str, Any]
T = TypeVar("T")

_PARTS: dict[str, type] = {
    "masked": MaskedSchedule,
    "uniform": UniformSchedule,
    "hybrid": HybridSchedule,
    "first_release": FirstReleaseSchedule,
    "mixture": MixtureSchedule,
    "linear": Linear,
    "cosine": Cosine,
    "polynomial": Polynomial,
    "ramp": Ramp,
    "bump": Bump,
}
"""Every part of a schedule that can be saved. A class of your own is added here."""

_KINDS = {part: kind for kind, part in _PARTS.items()}


class ScheduleRecord(NamedTuple):
    """A schedule as it is saved."""

    json: Json
    tensors: dict[str, Tensor]
    """Distributions of a mixture, by the names that the JSON uses; empty for other schedules."""


def record_plain(value: Vocab | DiTConfig) -> Json:
    """The fields of a dataclass of numbers."""
    return dataclasses.asdict(value)


def vocab_from(record: object, where: str) -> Vocab:
    """The vocabulary of a record."""
    return _build(Vocab, _fields(record, _names(Vocab), where), where)


def dit_config_from(record: object, where: str) -> DiTConfig:
    """The model sizes of a record."""
    return _build(DiTConfig, _fields(record, _names(DiTConfig), where), where)


def record_schedule(schedule: MixingSchedule) -> ScheduleRecord:
    """The schedule without its vocabulary, which is saved beside it."""
    if not isinstance(schedule, MixtureSchedule):
        return ScheduleRecord(_record(schedule), {})
    tensors = {f"noise.{k}": noise for k, (noise, _) in enumerate(schedule.components)}
    components = [
        {"noise": name, "amount": _record(amount)}
        for name, (_, amount) in zip(tensors, schedule.components, strict=True)
    ]
    return ScheduleRecord({"kind": _KINDS[MixtureSchedule], "components": components}, tensors)


def schedule_from(
    record: object, tensors: Mapping[str, Tensor], vocab: Vocab, where: str
) -> MixingSchedule:
    """The schedule of a record, checked as if it were new."""
    part = _part(record, where)
    if not issubclass(part, MixingSchedule):
        raise CheckpointError(f"{where}.kind must name a schedule, got {_KINDS[part]!r}. {_AGAIN}")
    if part is not MixtureSchedule:
        return _restore(record, where, vocab=vocab)
    listed = _fields(record, {"kind", "components"}, where)["components"]
    if not isinstance(listed, list):
        raise CheckpointError(f"{where}.components must be a list, got {listed!r}. {_AGAIN}")
    components: list[Component] = []
    for k, entry in enumerate(cast("list[object]", listed)):
        place = f"{where}.components[{k}]"
        fields = _fields(entry, {"noise", "amount"}, place)
        if fields["noise"] not in tensors:
            raise CheckpointError(
                f"{place}.noise: no tensor is named {fields['noise']!r}. {_AGAIN}"
            )
        amount = _restore(fields["amount"], f"{place}.amount")
        components.append(Component(tensors[fields["noise"]], amount))
    return _build(MixtureSchedule, {"vocab": vocab, "components": tuple(components)}, where)


_AGAIN = "The file is damaged or was written by a newer version; save or download it again."


def _record(part: object) -> Json:
    """A part whose fields are numbers or parts; a function in it has no JSON."""
    kind = _KINDS.get(type(part))
    if kind is None:
        raise ConfigError(
            f"a schedule with {type(part).__name__} in it cannot be saved: a Python function has "
            f"no form that another program could read. Use one of {', '.join(_PARTS)}, or write "
            "it as a class of numbers and list it in gidd/models/record.py."
        )
    fields = {
        name: value if isinstance(value, int | float) else _record(value)
        for name in sorted(_names(type(part)) - {"vocab"})
        for value in (getattr(part, name),)
    }
    return {"kind": kind, **fields}


def _restore(record: object, where: str, **given: Vocab) -> Any:
    part = _part(record, where)
    fields = _fields(record, (_names(part) - set(given)) | {"kind"}, where)
    values = {
        name: _restore(value, f"{where}.{name}") if isinstance(value, dict) else value
        for name, value in fields.items()
        if name != "kind"
    }
    return _build(part, given | values, where)


def _part(record: object, where: str) -> type:
    kind = cast(Json, record).get("kind") if isinstance(record, dict) else record
    if not isinstance(kind, str) or kind not in _PARTS:
        raise CheckpointError(
            f"{where}.kind must be one of {', '.join(_PARTS)}, got {kind!r}. {_AGAIN}"
        )
    return _PARTS[kind]


def _names(kind: type) -> set[str]:
    return {field.name for field in dataclasses.fields(kind) if field.init}


def _fields(record: object, names: Iterable[str], where: str) -> Json:
    """The record itself, if it has all of these keys and no other."""
    if not isinstance(record, dict):
        raise CheckpointError(f"{where} must be a JSON object, got {record!r}. {_AGAIN}")
    given, expected = set(cast(Json, record)), set(names)
    if given != expected:
        unknown, missing = sorted(given - expected), sorted(expected - given)
        raise CheckpointError(f"{where} has unknown keys {unknown} and lacks {missing}. {_AGAIN}")
    return cast(Json, record)


def _build(kind: type[T], values: Json, where: str) -> T:
    """An object from its fields; what its constructor refuses is the file's fault."""
    try:
        return kind(**values)
    except (ConfigError, ScheduleError, TypeError) as error:
        raise CheckpointError(f"{where}: {error} {_AGAIN}") from error
