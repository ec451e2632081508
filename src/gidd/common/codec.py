"""A run's configuration as plain values and YAML, and back."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from gidd.common.optional import optional_package
from gidd.errors import ConfigError

T = TypeVar("T")
KIND = "kind"
MAY_CHANGE_ON_RESUME = frozenset(
    {
        "train.steps",
        "train.accumulate",
        "train.compile",
        "train.report_every",
        "train.evaluate_every",
        "train.evaluate_samples",
        "train.generate_samples",
        "train.save_every",
        "train.max_steps_ahead_of_save",
        "train.keep",
        "train.keep_every",
        "train.timeout",
        "data.folder",
        "data.workers",
        "model.checkpoint_activations",
        # what helps a run that has diverged
        "optim.learning_rate",
        "optim.warmup",
        "optim.final_lr_ratio",
        "optim.max_grad_norm",
    }
)
"""What may change when a run is continued, besides `parallel`: it is still the same training."""


def to_plain(value: Any) -> Any:
    """A dataclass as dictionaries, lists, strings and numbers; each says which class it is."""
    if dataclasses.is_dataclass(value):
        fields = {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {KIND: type(value).__name__} | fields
    if isinstance(value, tuple):
        return [to_plain(part) for part in cast("tuple[Any, ...]", value)]
    return str(value) if isinstance(value, Path) else value


def from_plain(kind: type[T], plain: Any, where: str = "run") -> T:
    """A dataclass from plain values; anything unknown or of another type is refused.

    A setting with a default may be missing: it is younger than the record. So a new setting's
    default must mean what was done before there was one. Whole parts may not be missing.
    """
    if not isinstance(plain, dict) or cast("dict[str, Any]", plain).get(KIND) != kind.__name__:
        raise ConfigError(f"{where} must be a {kind.__name__} with a `{KIND}`, got {plain!r}.")
    given = {name: value for name, value in cast("dict[str, Any]", plain).items() if name != KIND}
    hints = get_type_hints(kind)
    fields = dataclasses.fields(cast("Any", kind))
    needed = {field.name for field in fields if field.default is dataclasses.MISSING}
    unknown, missing = sorted(given.keys() - hints.keys()), sorted(needed - given.keys())
    if unknown or missing:
        raise ConfigError(
            f"{where} has unknown fields {unknown} and lacks {missing}. "
            "It was written by another version of gidd; use that one."
        )
    return kind(**{n: _value(hints[n], value, f"{where}.{n}") for n, value in given.items()})


def _value(hint: Any, plain: Any, where: str) -> Any:
    choices = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    for choice in choices:
        if dataclasses.is_dataclass(choice):
            kind = cast("type[Any]", choice)
            if isinstance(plain, dict) and plain.get(KIND) == kind.__name__:
                return from_plain(kind, plain, where)
        elif get_origin(choice) is tuple:
            if isinstance(plain, list):
                item = get_args(choice)[0]
                return tuple(_value(item, part, where) for part in cast("list[Any]", plain))
        elif choice is Path:
            if isinstance(plain, str):
                return Path(plain)
        elif type(plain) is choice or (choice is float and type(plain) is int):
            return plain
    raise ConfigError(f"{where} must be {hint}, got {plain!r}.")


def to_yaml(value: Any) -> str:
    """For people: the configuration beside every checkpoint."""
    return optional_package("yaml", "train").safe_dump(to_plain(value), sort_keys=False)


def from_yaml(kind: type[T], text: str) -> T:
    """What `to_yaml` wrote, perhaps edited since."""
    yaml = optional_package("yaml", "train")
    try:
        plain = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"this is not YAML: {error}") from error
    return from_plain(kind, plain)


def require_same_training(before: Any, now: Any) -> list[str]:
    """Refuse to continue a run as another one; return what changed that may change."""
    old, new = _leaves(to_plain(before)), _leaves(to_plain(now))
    names = sorted(name for name in old | new if old.get(name) != new.get(name))
    names = [name for name in names if not name.startswith("parallel")]
    lines = {name: f"{name}: {old.get(name)} -> {new.get(name)}" for name in names}
    # sources are not read if there is a folder
    free = (
        MAY_CHANGE_ON_RESUME | {"data.sources"} if new.get("data.folder") else MAY_CHANGE_ON_RESUME
    )
    wrong = [lines[name] for name in names if name not in free]
    if wrong:
        raise ConfigError(
            "the checkpoint is of a run with other settings:\n  "
            + "\n  ".join(wrong)
            + "\nGive the same settings to continue it, or another --out to begin a new run."
        )
    return list(lines.values())


def _leaves(plain: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for name, value in plain.items():
        if isinstance(value, Mapping):
            leaves |= _leaves(cast("Mapping[str, Any]", value), f"{prefix}{name}.")
        else:
            leaves[prefix + name] = value
    return leaves
