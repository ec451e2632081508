"""The parts of `gidd.json`: model sizes, vocabulary and schedule as plain data and back.

Noise distributions of a mixture have one entry per token: they go into a tensor file beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from torch import Tensor

from gidd.common.config.codec import KIND, cannot_be_saved, from_plain, object_from_plain, to_plain
from gidd.common.config.registry import name_of
from gidd.common.terminal import shorten
from gidd.diffusion import schedules
from gidd.diffusion.schedule import MixingSchedule
from gidd.errors import CheckpointError, ComponentNotInstalled, ConfigError
from gidd.models.weights import blame_file
from gidd.vocab import Vocab

_T = TypeVar("_T")
_VOCABULARY = "vocabulary"
"""The kind of a vocabulary in a record."""
_MIXTURE = "mixture"
_MAX_COMPONENTS = 16
"""Components of a saved mixture: each takes up to 32 MB while its schedule is checked."""
_AGAIN = "The file is damaged or was edited; save or download it again."


def record_network(config: object) -> dict[str, Any]:
    """Convert the configuration of a network to plain data; it must be registered."""
    return to_plain(_registered(config, "backbone"))


def network_config_from(record: object, where: str) -> Any:
    """Build the configuration of a network from plain data."""
    require_valid(isinstance(record, dict), f"{where} must be an object", record)
    fields = {**cast("dict[str, Any]", record)}
    sizes = {name: fields.pop(name, None) for name in ("vocab_size", "max_length")}
    for name, value in sizes.items():
        require_valid(type(value) is int, f"{where}.{name} must be int", value)
    return _from_file(object_from_plain, "backbone", fields, where, **sizes)


def record_vocab(vocab: Vocab) -> dict[str, Any]:
    """Convert a vocabulary to plain data."""
    return to_plain(vocab) | {KIND: _VOCABULARY}


def vocab_from(record: object, where: str) -> Vocab:
    """Build a vocabulary from plain data."""
    fields = cast("dict[str, Any]", record) if isinstance(record, dict) else {}
    if fields.get(KIND) == _VOCABULARY:
        record = fields | {KIND: Vocab.__name__}
    return _from_file(from_plain, Vocab, record, where)


def _from_file(read: Callable[..., _T], *arguments: Any, **supplied: Any) -> _T:
    """Call a function; what is wrong with the data is an error of the file."""
    try:
        return read(*arguments, **supplied)
    except ComponentNotInstalled as error:
        raise CheckpointError(str(error)) from error
    except (ConfigError, TypeError) as error:
        raise CheckpointError(f"{error} {_AGAIN}") from error


def _registered(value: object, kind: str) -> object:
    registered = name_of(type(value))
    if registered is None or registered[0] != kind:
        raise cannot_be_saved(value, kind)
    return value


def record_schedule(schedule: MixingSchedule) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Convert a schedule to plain data, without its vocabulary, and tensors that the data names."""
    if not isinstance(schedule, schedules.MixtureSchedule):
        return to_plain(_registered(schedule, "schedule")), {}
    if (count := len(schedule.components)) > _MAX_COMPONENTS:
        most = f"at most {_MAX_COMPONENTS} components"
        raise ConfigError(f"a saved mixture can have {most}, got {count}.")
    tensors = {f"noise.{k}": noise for k, (noise, _) in enumerate(schedule.components)}
    components = [
        {"noise": name, "amount": to_plain(_registered(amount, "amount"))}
        for name, (_, amount) in zip(tensors, schedule.components, strict=True)
    ]
    return {KIND: _MIXTURE, "components": components}, tensors


def schedule_from(
    record: object, tensors: Mapping[str, Tensor], vocab: Vocab, where: str
) -> MixingSchedule:
    """Build a schedule from plain data and the tensors beside it; the constructor checks it."""
    if not isinstance(record, dict) or cast("dict[str, Any]", record).get(KIND) != _MIXTURE:
        return _from_file(object_from_plain, "schedule", record, where, vocab=vocab)
    entries = _fields(record, {KIND, "components"}, where)["components"]
    require_valid(isinstance(entries, list), f"{where}.components must be a list", entries)
    components = cast("list[object]", entries)
    most = f"{where}.components must have at most {_MAX_COMPONENTS} entries"
    require_valid(len(components) <= _MAX_COMPONENTS, most, len(components))
    with blame_file(where, _AGAIN):
        places = ((f"{where}.components[{k}]", entry) for k, entry in enumerate(components))
        parts = tuple(_component(entry, tensors, place) for place, entry in places)
        return schedules.MixtureSchedule(vocab, parts)


def _component(
    record: object, tensors: Mapping[str, Tensor], where: str
) -> schedules.MixtureComponent:
    fields = _fields(record, {"noise", "amount"}, where)
    name = fields["noise"]
    is_name = isinstance(name, str) and name in tensors
    require_valid(is_name, f"{where}.noise must name a tensor of {shorten(sorted(tensors))}", name)
    amount = _from_file(object_from_plain, "amount", fields["amount"], f"{where}.amount")
    return schedules.MixtureComponent(tensors[name], amount)


def _fields(record: object, names: set[str], where: str) -> dict[str, Any]:
    fields = cast("dict[str, Any]", record) if isinstance(record, dict) else {}
    required = f"{where} must be an object with {', '.join(sorted(names))}"
    require_valid(set(fields) == names, required, record)
    return fields


def require_valid(is_valid: bool, required: str, got: object) -> None:
    """Raise `CheckpointError` for a value of a file, unless it is valid."""
    if not is_valid:
        raise CheckpointError(f"{required}, got {shorten(got)}. {_AGAIN}")
