"""How the evaluations print and save their results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import tyro

from gidd.cli.console import CliConsole, plain
from gidd.cli.messages import print_message
from gidd.cli.output import require_writable
from gidd.cli.parsing import parse
from gidd.errors import ConfigError

if TYPE_CHECKING:
    from gidd.evaluation.results import EvaluationResult


@dataclass(frozen=True, kw_only=True)
class ResultOptions:
    """Where a result goes."""

    out: Path | None = None
    """Save the result with its manifest as JSON."""

    json: bool = False
    """Print the result with its manifest as JSON instead of a table."""

    def check(self) -> None:
        """Raise `ConfigError` if the file could not be written, before any work is done."""
        if self.out is not None:
            require_writable(self.out, "--out")


class EvaluationOptions(Protocol):
    """Options of an evaluation."""

    @property
    def result(self) -> ResultOptions:
        """Where the result goes."""
        ...

    def problems(self) -> Iterable[str]:
        """Yield one message per invalid option, each starting with the name of its field."""
        ...


_T = TypeVar("_T", bound=EvaluationOptions)


def parse_evaluation(kind: type[_T], prog: str, doc: str | None, arguments: Sequence[str]) -> _T:
    """Parse and check options; one `ConfigError` lists all invalid ones as they are typed."""
    flags = (tyro.conf.FlagCreatePairsOff,)
    options = parse(kind, arguments, prog=prog, description=doc, config=flags)
    if found := [problem.partition(" ") for problem in options.problems()]:
        raise ConfigError("\n".join(f"--{key.replace('_', '-')} {rest}" for key, _, rest in found))
    options.result.check()
    return options


def report(
    result: EvaluationResult,
    options: ResultOptions,
    show: Callable[[EvaluationResult], None] | None = None,
) -> None:
    """Save the result; print it as JSON, by `show`, or as a list of measurements."""
    if options.out is not None:
        result.save(options.out)
    if options.json:
        print(json.dumps(result.to_dict(), allow_nan=False), flush=True)
    else:
        (show or _show_measurements)(result)
    if options.out is not None:
        print_message(f"wrote {options.out}.")


def _show_measurements(result: EvaluationResult) -> None:
    console = CliConsole(highlight=False)
    width = max(map(len, result.measurements), default=0)
    for name, value in result.measurements.items():
        console.print(plain(f"{name:{width}}  {value}"))
