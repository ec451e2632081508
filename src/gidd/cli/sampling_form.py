"""`SamplingOptions` on the command line: `--sampler NAME`, `--sampler.OPTION VALUE`, and so on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, field, fields, make_dataclass
from typing import Annotated, Any, Literal, TypeVar, final

import tyro

from gidd.cli.part_options import PartOptions, chosen_name, part_options
from gidd.common.registry import part_names
from gidd.pipeline.options import SamplingOptions

_T = TypeVar("_T")
_CHOICES = {"sampler": "step", "corrector": "corrector"}
"""Options of `SamplingOptions` that name a part, and its kind."""


@final
class SamplingForm:
    """The options that `arguments` choose: those of a step or corrector only if it is named.

    Modules of steps import torch: those that are not named are not imported.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self._chosen: dict[str, PartOptions] = {}
        for flag, kind in _CHOICES.items():
            if name := chosen_name(flag, arguments):
                self._chosen[flag] = part_options(flag, kind, name, {})

    def added_to(self, command: type[_T]) -> type[_T]:
        """Return a dataclass of options whose field `sampling` has these options."""
        typed: list[Any] = []
        for flag, kind in _CHOICES.items():
            names = Literal.__getitem__(tuple(part_names(kind)))  # pyright: ignore
            typed.append((flag, names, field(default=getattr(SamplingOptions, flag))))
            hint, default = tyro.conf.Suppress[tyro.conf.Fixed[Any]], None
            if flag in self._chosen:
                default, name = self._chosen[flag].default, self._chosen[flag].name
                of_part = tyro.conf.arg(name=flag, help=f"Options of {name}.")
                hint = Annotated[type(default), of_part]
            typed.append((f"{flag}_options", hint, field(default=default)))
        sampling = make_dataclass(
            SamplingOptions.__name__, typed, bases=(SamplingOptions,), frozen=True, kw_only=True
        )
        flat = Annotated[sampling, tyro.conf.arg(name=""), tyro.conf.DisallowNone]
        return make_dataclass(
            command.__name__,
            [("sampling", flat, field(default_factory=sampling))],
            bases=(command,),
            frozen=True,
            kw_only=True,
        )

    def sampling(self, parsed: Any) -> SamplingOptions:
        """Return the options that were parsed."""
        values = {option.name: getattr(parsed, option.name) for option in fields(SamplingOptions)}
        for flag in _CHOICES:
            chosen = values[f"{flag}_options"]
            values[f"{flag}_options"] = {} if chosen is None else asdict(chosen)
        return SamplingOptions(**values)
