"""What `gidd train` and `gidd plan` share: a preset's name, then options that change it."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Annotated, Any, Literal, Protocol, TypeVar, cast

import tyro

from gidd.errors import ConfigError
from gidd.runs.presets import PRESETS
from gidd.training.config import RunConfig
from gidd.training.parallel import DDP, FSDP

RunOption = Annotated[RunConfig, tyro.conf.arg(name="")]
"""RunCommandOptions of the run stand beside the command's own: `--train.steps`, not `--run.train.steps`."""

ParallelKind = Annotated[Literal["ddp", "fsdp"] | None, tyro.conf.arg(name="parallel")]


class RunCommandOptions(Protocol):
    """A dataclass of options that changes a run."""

    @property
    def run(self) -> RunConfig:
        """The preset, as changed by options."""
        ...


T = TypeVar("T", bound=RunCommandOptions)


def parse_run(command: type[T], words: Sequence[str], prog: str, description: str) -> tuple[str, T]:
    """The preset's name and the options after it. Help lists presets, or a preset's options."""
    if not words or words[0] in ("-h", "--help"):
        print(f"usage: {prog} PRESET [OPTIONS]\n\n{description}\n\npresets:")
        for name, run in PRESETS.items():
            print(f"  {name:26} {run_summary(run)}")
        print(f"\n`{prog} PRESET --help` lists what can be changed.")
        raise SystemExit(0)
    name = words[0]
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, 3, 0.3)
        raise ConfigError(
            f"there is no preset {name!r}. Near it: {', '.join(near) or 'none'}. "
            f"`{prog} --help` lists all {len(PRESETS)}."
        )
    make = cast(Any, command)
    options = cast(
        T,
        tyro.cli(
            make,
            prog=f"{prog} {name}",
            args=list(words[1:]),
            default=make(run=_with_parallel(PRESETS[name], words)),
            config=(tyro.conf.AvoidSubcommands,),
        ),
    )
    return name, options


def _with_parallel(run: RunConfig, words: Sequence[str]) -> RunConfig:
    """The preset with the class that `--parallel` names, so that its options can be given too."""
    kinds: dict[str, type[DDP] | type[FSDP]] = {"ddp": DDP, "fsdp": FSDP}
    given = [word.partition("=")[2] for word in words if word.startswith("--parallel=")]
    given += [after for word, after in pairwise(words) if word == "--parallel"]
    kind = kinds.get(given[-1]) if given else None
    return run if kind in (None, type(run.parallel)) else replace(run, parallel=kind())


def run_summary(run: RunConfig) -> str:
    """One line: how large, how long, on what."""
    train, data = run.train, run.data
    tokens = train.steps * train.global_batch * data.length
    sizes = run.model.build(2, data.length)
    return (
        f"{_amount(sizes.num_block_parameters)} in blocks, {train.steps:,} steps, "
        f"{_amount(tokens)} tokens of {', '.join(data.sources)}"
    )


def _amount(number: float) -> str:
    """A large number in three digits."""
    sizes = {"T": 1e12, "B": 1e9, "M": 1e6}
    unit = next((unit for unit, size in sizes.items() if number >= size), "M")
    return f"{number / sizes[unit]:.3g}{unit}"
