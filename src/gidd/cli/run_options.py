"""Options that `gidd train` and `gidd plan` share: a preset, then options that change it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, TypeVar, cast

import tyro

from gidd.cli.parsing import parse
from gidd.errors import ConfigError
from gidd.runs.presets import PRESETS
from gidd.training.config import RunConfig
from gidd.training.parallel import DDP, FSDP

RunOption = Annotated[RunConfig, tyro.conf.arg(name="")]
"""The run's options have no prefix: `--train.steps`, not `--run.train.steps`."""

_PRESET_NAMES = """\
presets (number of parameters without embeddings):
  nano and micro train on a laptop; 1b, 3b and 10b need a cluster; the others are rows of the paper,
  SIZE-METHOD-P_UNIFORM: gidd (ELBO), gidd-clip and gidd-dynamic (other loss weights), gidd-plus
  (dynamic weights and weight decay), mdm (masked diffusion), llama (autoregressive)
"""

ParallelKind = Annotated[Literal["ddp", "fsdp"] | None, tyro.conf.arg(name="parallel")]


_T = TypeVar("_T")


def parse_run(
    command: type[_T], words: Sequence[str], prog: str, description: str
) -> tuple[str, _T]:
    """Return the preset's name and the options after it; --help lists presets or options.

    `command` is a dataclass of options with a field `run`, the preset as changed by options.
    """
    if not words or words[0] in ("-h", "--help"):
        print(f"usage: {prog} PRESET [OPTIONS]\n\n{description}\n{_PRESET_NAMES}")
        for name, run in PRESETS.items():
            print(f"  {name:26} {run_summary(run)}")
        print(f"\nRun `{prog} PRESET --help` for the options of a preset.")
        raise SystemExit(0)
    name = words[0]
    if name not in PRESETS:
        raise ConfigError(_unknown_preset(name, prog))
    options = parse(
        command,
        words[1:],
        prog=f"{prog} {name}",
        description=description,
        default=cast(Callable[..., _T], command)(run=_with_parallel(PRESETS[name], words)),
        config=(tyro.conf.AvoidSubcommands, tyro.conf.DisallowNone),
    )
    return name, options


def _unknown_preset(name: str, prog: str) -> str:
    see = f"`{prog} --help` lists all {len(PRESETS)} presets."
    if name.startswith("-"):
        return f"the first argument must be a preset, got {name}: put options after it. {see}"
    if Path(name).exists():
        return (
            f"the first argument must be a preset, got the path {name}. To resume a run, give its "
            f"preset and its folder: `gidd train PRESET --out {name}`. To train on your own "
            "files, give them as --data.sources. Training from the weights of an exported model "
            f"is not supported. {see}"
        )
    near = difflib.get_close_matches(name, PRESETS, 3, 0.3)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return f"there is no preset {name!r}.{hint} {see}"


def _with_parallel(run: RunConfig, words: Sequence[str]) -> RunConfig:
    """Return the run with the class that `--parallel` names, so that its options can be given."""
    kinds: dict[str, type[DDP] | type[FSDP]] = {"ddp": DDP, "fsdp": FSDP}
    given = [word.partition("=")[2] for word in words if word.startswith("--parallel=")]
    given += [after for word, after in pairwise(words) if word == "--parallel"]
    kind = kinds.get(given[-1]) if given else None
    return run if kind in (None, type(run.parallel)) else replace(run, parallel=kind())


def run_summary(run: RunConfig) -> str:
    """Return one line: parameters, steps, tokens and data."""
    train, data = run.train, run.data
    tokens = train.steps * train.global_batch * data.length
    sizes = run.model.build(2, data.length)
    return (
        f"{_with_unit(sizes.num_block_parameters)} parameters, {train.steps:,} steps, "
        f"{_with_unit(tokens)} tokens of {', '.join(data.sources)}"
    )


def _with_unit(number: float) -> str:
    """Return a large number in three digits."""
    sizes = {"T": 1e12, "B": 1e9, "M": 1e6}
    unit = next((unit for unit, size in sizes.items() if number >= size), "M")
    return f"{number / sizes[unit]:.3g}{unit}"
