"""Options that `gidd sample`, `gidd infill` and `gidd correct` share, and loading of the model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, fields, make_dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypeVar

import tyro

from gidd.cli.messages import print_message
from gidd.cli.output import OutputOptions
from gidd.cli.parsing import parse
from gidd.cli.part_options import chosen_name, part_options
from gidd.cli.progress import show_progress
from gidd.common.allowed import SEED, field_problems, integer
from gidd.common.registry import part_names
from gidd.errors import ConfigError
from gidd.pipeline.options import SamplingOptions

if TYPE_CHECKING:
    from gidd.pipeline import Pipeline
    from gidd.sampling import OnStep

_F = TypeVar("_F")
Flat = Annotated[_F, tyro.conf.arg(name=""), tyro.conf.DisallowNone]
"""Options without a prefix; those that are off by default cannot be given the value None."""

ModelName = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
"""The first argument of the commands that run a model."""

_PARTS = {"sampler": "step", "corrector": "corrector"}
"""Options of `SamplingOptions` that name a part, and its kind."""


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Device, precision and tokenizer of a model."""

    device: Literal["cpu", "cuda", "mps"] | None = None
    """Device to run on; None is the fastest available."""

    precision: Literal["float32", "tf32", "bf16"] | None = None
    """Precision of the transformer; None is bf16 on CUDA, float32 elsewhere. The output layer and
    probabilities stay float32."""

    tokenizer: str | None = None
    """Tokenizer of a model saved without one: gpt2, a tokenizer.json, a folder, or a hub name."""

    def load(self, model: str) -> Pipeline:
        """Load a model; warnings go to stderr."""
        from gidd.pipeline import from_pretrained

        pipe = from_pretrained(
            model, device=self.device, precision=self.precision, tokenizer=self.tokenizer
        )
        for note in pipe.notes:
            print_message(note)
        return pipe


@dataclass(frozen=True, kw_only=True)
class TextCommandOptions:
    """Options of the commands that generate samples."""

    model: ModelName
    """Folder written by `gidd export`, or the name of a model on the Hugging Face hub."""

    num_samples: int = 1
    """Number of samples."""

    seed: int = 0
    """Random seed; the same seed gives the same samples."""

    start_index: int = 0
    """Index of the first sample: 5 gives the sixth sample of `--num-samples 6`."""

    sampling: Flat[SamplingOptions] = field(default_factory=SamplingOptions)
    output: Flat[OutputOptions] = field(default_factory=OutputOptions)
    runtime: Flat[ModelOptions] = field(default_factory=ModelOptions)

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments of `Pipeline.generate` and `Pipeline.infill`."""
        return {
            "num_samples": self.num_samples,
            "seed": self.seed,
            "start_index": self.start_index,
            "record_frames": self.output.record_frames,
            "options": self.sampling,
        }

    def progress(self, action: str, pipe: Pipeline) -> AbstractContextManager[OnStep | None]:
        """Return a context with a callback for each step; see `show_progress`."""
        return show_progress(action, pipe, self.num_samples, live=self.output.live)

    def problems(self) -> Iterable[str]:
        """Yield one message per invalid option, each starting with the name of its field."""
        yield from field_problems(self, num_samples=integer(1), seed=SEED, start_index=SEED)
        if self.start_index + self.num_samples > 2**63:
            yield "start_index plus --num-samples must be at most 2**63."
        if self.output.edits and not self.output.jsonl:
            yield "edits needs --jsonl: edits are part of the JSON output."
        yield from self.sampling.problems()


_T = TypeVar("_T", bound=TextCommandOptions)


def parse_options(kind: type[_T], prog: str, doc: str | None, arguments: Sequence[str]) -> _T:
    """Parse and check the options of a command that shows text."""
    options = parse_checked(kind, prog, doc, arguments)
    options.output.check()
    return options


class _Checked(Protocol):
    def problems(self) -> Iterable[str]: ...


_C = TypeVar("_C", bound=_Checked)


def parse_checked(
    kind: type[_C],
    prog: str,
    doc: str | None,
    arguments: Sequence[str],
    default: _C | None = None,
) -> _C:
    """Parse and check options; one `ConfigError` lists all invalid ones as they are typed.

    Options of a step or corrector are parsed if the command has a field `sampling`. `default` has
    the values of options that are not given.
    """
    names = [part.name for part in fields(kind)]  # pyright: ignore[reportArgumentType]
    has_sampling = "sampling" in names
    options = parse(
        _with_chosen_parts(kind, arguments) if has_sampling else kind,
        arguments,
        prog=prog,
        description=doc,
        config=(tyro.conf.FlagCreatePairsOff,),
        **({} if default is None else {"default": default}),
    )
    if has_sampling:
        values = {name: getattr(options, name) for name in names}
        options = kind(**values | {"sampling": _parsed_sampling(values["sampling"])})
    if found := [problem.partition(" ") for problem in options.problems()]:
        raise ConfigError("\n".join(f"--{key.replace('_', '-')} {rest}" for key, _, rest in found))
    return options


def _with_chosen_parts(command: type[_C], arguments: Sequence[str]) -> type[_C]:
    """Return the command with the options of the step and corrector that the arguments name.

    Modules of steps import torch, so options of a part that is not named are left out.
    """
    typed: list[Any] = []
    for flag, kind in _PARTS.items():
        names = Literal.__getitem__(tuple(part_names(kind)))  # pyright: ignore
        typed.append((flag, names, field(default=getattr(SamplingOptions, flag))))
        hint, default = tyro.conf.Suppress[tyro.conf.Fixed[Any]], None
        if name := chosen_name(flag, arguments):
            default = part_options(flag, kind, name, {}).default
            hint = Annotated[type(default), tyro.conf.arg(name=flag, help=f"Options of {name}.")]
        typed.append((f"{flag}_options", hint, field(default=default)))
    frozen: dict[str, Any] = {"frozen": True, "kw_only": True}
    sampling = make_dataclass(SamplingOptions.__name__, typed, bases=(SamplingOptions,), **frozen)
    changed = [("sampling", Flat[sampling], field(default_factory=sampling))]
    return make_dataclass(command.__name__, changed, bases=(command,), **frozen)


def _parsed_sampling(parsed: Any) -> SamplingOptions:
    values = {option.name: getattr(parsed, option.name) for option in fields(SamplingOptions)}
    for flag in _PARTS:
        chosen = values[f"{flag}_options"]
        values[f"{flag}_options"] = {} if chosen is None else asdict(chosen)
    return SamplingOptions(**values)
