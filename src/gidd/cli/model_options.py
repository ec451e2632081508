"""Options that commands share, how commands parse and check theirs, and loading of the model."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, is_dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_origin, get_type_hints

import tyro
from rich.console import Console
from tyro.constructors import StructConstructorSpec, StructFieldSpec

from gidd.cli.output import OutputOptions
from gidd.cli.parsing import (
    ComponentOptions,
    chosen_name,
    component_options,
    declared_fields,
    parse,
)
from gidd.common.config.allowed import SEED, Allowed, integer, optional, problems_of
from gidd.common.config.components import Component
from gidd.common.config.registry import component_names
from gidd.common.local_models import require_model_name
from gidd.common.messages import print_message, show_counts
from gidd.errors import ConfigError
from gidd.pipeline.defaults import recommended_sampling
from gidd.pipeline.options import SamplingOptions

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from gidd.pipeline import Pipeline
    from gidd.sampling import OnStep

_F = TypeVar("_F")
_DEVICES = tuple(f"{kind}{suffix}" for kind in ("cuda", "mps", "xpu") for suffix in ("", ":"))


def _is_device(name: object) -> bool:
    kind = str(name).rstrip("0123456789")
    return name == "cpu" or (kind in _DEVICES and (name == kind) != kind.endswith(":"))


DEVICE = Allowed(_is_device, "cpu, cuda, cuda:N, mps or xpu")
Flat = Annotated[_F, tyro.conf.arg(name="")]  # options without a prefix
MODEL_HELP = "Folder written by `gidd export`, or the name of a model on the Hugging Face hub."
DeviceName = Annotated[str | None, optional(DEVICE), tyro.conf.arg(metavar="{cpu,cuda,cuda:N,mps}")]
ModelName = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL", help=MODEL_HELP)]
"""The first argument of the commands that run a model."""

# fields that name a component, and its kind
_COMPONENTS = {"sampler": "step", "final_corrector": "corrector", "metric": "metric"}


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Device, precision and tokenizer of a model."""

    device: DeviceName = None
    """Device to run on, a GPU by its number; None is the fastest available."""
    precision: Literal["float32", "tf32", "bf16"] | None = None
    """Precision of the transformer; None is bf16 on CUDA, float32 elsewhere. The output layer and
    probabilities stay float32."""
    tokenizer: str | None = None
    """Tokenizer of a model saved without one: gpt2, a tokenizer.json, a folder, or a hub name."""

    def load(self, model: str, batch_size: int | None = None) -> Pipeline:
        """Load a model; warnings go to stderr."""
        require_model_name(model)
        from gidd.pipeline import from_pretrained

        pipe = from_pretrained(model, **vars(self), batch_size=batch_size)
        for note in pipe.notes:
            if note not in pipe.tokenizer.notes:  # which it has logged
                print_message(note)
        return pipe


@dataclass(frozen=True, kw_only=True)
class TextCommandOptions:
    """Options of the commands that generate samples."""

    model: ModelName
    num_samples: Annotated[int, integer(1)] = 1
    """Number of samples."""
    seed: Annotated[int, SEED] = 0
    """Random seed; the same seed gives the same samples."""
    start_index: Annotated[int, SEED] = 0
    """Index of the first sample: 5 gives the sixth sample of `--num-samples 6`."""
    sampling: Flat[SamplingOptions] = field(default_factory=SamplingOptions)
    output: Flat[OutputOptions] = field(default_factory=OutputOptions)
    runtime: Flat[ModelOptions] = field(default_factory=ModelOptions)

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments of `Pipeline.generate` and `Pipeline.infill`."""
        output = self.output
        values = {"n": self.num_samples, "seed": self.seed, "start_index": self.start_index}
        return (
            values
            | {"options": self.sampling}
            | {"record_frames": output.record_frames, "confidence": output.confidence}
        )

    def problems(self) -> Iterable[str]:
        """Yield a message if the indices of samples are too large."""
        if self.start_index + self.num_samples > 2**63:
            yield "start_index plus --num-samples must be at most 2**63."


@contextmanager
def show_steps(
    action: str, pipe: Pipeline, num_samples: int, *, live: bool
) -> Generator[OnStep | None]:
    """Yield a callback that draws each step, or None if stderr is not a terminal.

    It draws a bar after `action` (such as "sampling") or, if `live`, the text itself.
    """
    console = Console(stderr=True)
    if live:
        from gidd.viz.terminal import CanvasView

        mask_id = pipe.schedule.vocab.mask_id
        with CanvasView(console, pipe.decoder, mask_id, num_samples) as view:
            yield view
    elif console.is_terminal:
        from gidd.evaluation.samples import count_steps

        with show_counts(f"{action} step") as report:
            yield count_steps(report, num_samples)
    else:
        yield None


_C = TypeVar("_C", bound="DataclassInstance")


def parse_checked(
    kind: type[_C],
    prog: str,
    doc: str | None,
    arguments: Sequence[str],
    default: _C | None = None,
    lists: Sequence[str] = (),
    sampling: SamplingOptions | None = None,
) -> _C:
    """Parse and check options; one `ConfigError` lists all invalid ones as they are typed.

    A command with a field `sampling` has the options of a step and a corrector, and with `metric`
    those of a metric. `default` has the values of options that are not given, `sampling` those of
    sampling: what the model recommends, once its name has been parsed. `lists` are flags whose
    values may be separated by commas.
    """
    arguments = _split_commas(arguments, lists)
    structures: dict[Any, StructConstructorSpec] = {
        kind: _with_components(kind, default, arguments),
        SamplingOptions: _with_components(SamplingOptions, sampling, arguments),
    }
    options = parse(
        kind,
        arguments,
        structures,
        prog=prog,
        description=doc,
        config=(tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone),
        **({} if default is None else {"default": default}),
    )
    if parts := [problem.partition(" ") for problem in _problems(options)]:
        raise ConfigError("\n".join(f"--{key.replace('_', '-')} {rest}" for key, _, rest in parts))
    name = getattr(options, "sampled_model", getattr(options, "model", None))
    if sampling is None and name is not None and hasattr(options, "sampling"):
        recommended = recommended_sampling(name)
        if recommended != SamplingOptions():
            return parse_checked(kind, prog, doc, arguments, default, lists, recommended)
    return options


def _problems(command: DataclassInstance) -> Iterable[str]:
    """Yield one message per invalid option of a command and of its parts."""
    yield from problems_of(command)
    for name, hint in get_type_hints(type(command), include_extras=True).items():
        if is_dataclass(part := getattr(command, name)):
            yield from problems_of(part, "" if get_origin(hint) is Annotated else f"{name}.")


def _split_commas(arguments: Sequence[str], flags: Sequence[str]) -> list[str]:
    """Return the arguments with the values of these flags split at commas."""
    words: list[str] = []
    is_list = False
    for argument in arguments:
        flag, _, value = argument.partition("=")
        if flag.replace("_", "-") in flags:
            words, is_list, argument = [*words, flag], True, value
        else:
            is_list = is_list and not argument.startswith("--")
        words += filter(None, argument.split(",")) if is_list else [argument]
    return words


def _with_components(
    declared: type, default: Any, arguments: Sequence[str]
) -> StructConstructorSpec:
    """Return the options of a dataclass with fields that name components.

    Such a field may have the registered names, and the field beside it the options of the
    component. Modules of steps import torch, so options are read only of a component that is
    named in the arguments.
    """

    def build(**values: Any) -> Any:
        parsed = {k: v.options if isinstance(v, Component) else v for k, v in values.items()}
        return declared(**parsed)

    options = declared_fields(declared, default)
    return StructConstructorSpec(
        build, tuple(_with_component(option, arguments) for option in options)
    )


def _with_component(option: StructFieldSpec, arguments: Sequence[str]) -> StructFieldSpec:
    flag = option.name.removesuffix("_options")
    if (kind := _COMPONENTS.get(flag)) is None:
        return option
    if flag == option.name:
        names: Any = Literal.__getitem__(tuple(component_names(kind)))  # pyright: ignore
        return replace(option, type=names if option.default else names | None)
    if (name := chosen_name(flag, arguments)) is None:
        return replace(option, type=tyro.conf.Suppress[tyro.conf.Fixed[Any]])
    hint: Any = Annotated[ComponentOptions, tyro.conf.arg(name=flag, help=f"Options of {name}.")]
    return replace(option, type=hint, default=component_options(flag, kind, name, {}))
