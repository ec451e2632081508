"""Options that `gidd train` and `gidd plan` share: a preset, then options that change it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast

import tyro

from gidd.cli.parsing import parse
from gidd.cli.part_options import PartOptions, chosen_name, name_option, part_options
from gidd.common.files import read_regular
from gidd.common.limits import YAML_BYTES
from gidd.errors import ConfigError
from gidd.runs.presets import PRESETS
from gidd.training.config import Diffusion, RunConfig
from gidd.training.optim import OptimConfig
from gidd.training.parallel import DDP, FSDP
from gidd.training.recorded import run_from_yaml

_PRESET_NAMES = """\
presets (number of parameters without embeddings):
  nano and micro train on a laptop; 1b, 3b and 10b need a cluster; the others are rows of the paper,
  SIZE-METHOD-P_UNIFORM: gidd (ELBO), gidd-clip and gidd-dynamic (other loss weights), gidd-plus
  (dynamic weights and weight decay), mdm (masked diffusion), llama (autoregressive)
"""

_CHOICES = {
    "noise": ("schedule", "Noise schedule; --noise.OPTION sets its options below."),
    "weighting": ("weighting", "Weights of the loss; --weighting.OPTION sets their options below."),
    "backbone": ("backbone", "Network; --backbone.OPTION sets its options below."),
}
"""Options that choose a part: its kind, and help."""

_YAML = (".yaml", ".yml")

_INIT_FROM = (
    "Model whose weights are the initial ones: a folder, or a name on the Hugging Face hub. The "
    "network is that of the model. Default: random weights."
)

_T = TypeVar("_T", bound="RunCommand")


@dataclass(frozen=True, kw_only=True)
class RunCommand:
    """Options of `gidd train` and `gidd plan`: those of the run are added by `parse_run`."""

    parallel_kind: Annotated[Literal["ddp", "fsdp"] | None, tyro.conf.arg(name="parallel")] = None
    """Replicate the model on every rank (ddp) or shard it (fsdp, FSDP2); None is the preset's."""


@dataclass(frozen=True, kw_only=True)
class _ObjectiveOptions:
    eps: float
    """Training times are sampled from [eps, 1 - eps]; the paper uses 1e-4."""

    time_power: float
    """Density of training times: uniform numbers raised to this power. Above 1, more times have
    little noise, which is what correction of texts needs; the paper uses 1."""

    p_uniform_warmup: int
    """Steps in which p_uniform of hybrid noise grows from 0: for weights trained with masks."""


def parse_run(
    command: type[_T], words: Sequence[str], prog: str, description: str
) -> tuple[str, _T, RunConfig]:
    """Return the name of the run, the options of the command and the run as changed by options.

    The first argument is a preset or the run.yaml of a run. --help lists presets or options.
    """
    if not words or words[0] in ("-h", "--help"):
        print(f"usage: {prog} PRESET|RUN.YAML [OPTIONS]\n\n{description}\n{_PRESET_NAMES}")
        for name, run in PRESETS.items():
            print(f"  {name:26} {run_summary(run)}")
        print(f"\nRun `{prog} PRESET --help` for the options of a preset.")
        raise SystemExit(0)
    name, run = _named_run(words[0], prog)
    run = _with_parallel(run, words)
    parts = {
        flag: part_options(flag, part.kind, chosen_name(flag, words) or part.name, part.options)
        for flag, part in _parts_of(run).items()
    }
    settings = _settings(run, parts)
    typed = make_dataclass(
        command.__name__,
        [
            *(
                (f"{flag}_kind", name_option(*_name_help(flag)), field(default=None))
                for flag in parts
            ),
            ("run", Annotated[type(settings), tyro.conf.arg(name="")], field(default=settings)),
        ],
        bases=(command,),
        frozen=True,
        kw_only=True,
    )
    options = parse(
        cast(Callable[..., _T], typed),
        words[1:],
        prog=f"{prog} {words[0]}",
        description=description,
        config=(tyro.conf.AvoidSubcommands, tyro.conf.DisallowNone),
    )
    return name, options, _changed(run, parts, cast(Any, options).run)


def _name_help(flag: str) -> tuple[str, str, str]:
    kind, help = _CHOICES[flag]
    return kind, flag, f"{help} None is the preset's."


def _parts_of(run: RunConfig) -> dict[str, Any]:
    if not isinstance(run.objective, Diffusion):
        return {"backbone": run.backbone}
    objective = run.objective
    return {
        "noise": objective.noise,
        "weighting": objective.weighting,
        "backbone": run.backbone,
    }


def _settings(run: RunConfig, parts: dict[str, PartOptions]) -> Any:
    """Return the settings of a run as a dataclass that can be parsed."""
    values: dict[str, Any] = {flag: options.default for flag, options in parts.items()}
    if isinstance(run.objective, Diffusion):
        objective = run.objective
        values["objective"] = _ObjectiveOptions(
            eps=objective.eps,
            time_power=objective.time_power,
            p_uniform_warmup=objective.p_uniform_warmup,
        )
    values |= {name: getattr(run, name) for name in ("data", "optim", "train", "lora", "parallel")}
    types: list[Any] = [(name, type(value), field(default=value)) for name, value in values.items()]
    source = Annotated[str | None, tyro.conf.arg(help=_INIT_FROM)]
    types.append(("init_from", source, field(default=run.init_from)))
    return make_dataclass("Run", types, frozen=True, kw_only=True)()


def _changed(run: RunConfig, parts: dict[str, PartOptions], parsed: Any) -> RunConfig:
    """Return the run with the settings that were parsed."""
    chosen = {flag: options.part(getattr(parsed, flag)) for flag, options in parts.items()}
    objective = run.objective
    if isinstance(objective, Diffusion):
        objective = Diffusion(
            noise=chosen["noise"],
            weighting=chosen["weighting"],
            eps=parsed.objective.eps,
            time_power=parsed.objective.time_power,
            p_uniform_warmup=parsed.objective.p_uniform_warmup,
        )
    return RunConfig(
        backbone=chosen["backbone"],
        objective=objective,
        data=parsed.data,
        optim=_with_short_warmup(run, parsed),
        train=parsed.train,
        lora=parsed.lora,
        init_from=parsed.init_from,
        parallel=parsed.parallel,
    )


def _with_short_warmup(run: RunConfig, parsed: Any) -> OptimConfig:
    """Return the optimiser; a warmup longer than the run keeps its fraction of all steps."""
    steps, optim = parsed.train.steps, parsed.optim
    if steps >= optim.warmup or optim.warmup != run.optim.warmup:
        return optim
    return replace(optim, warmup=round(optim.warmup * steps / max(run.train.steps, 1)))


def _named_run(name: str, prog: str) -> tuple[str, RunConfig]:
    """Return the run of a preset or of a YAML file, and a name for its folder."""
    if name in PRESETS:
        return name, PRESETS[name]
    path = Path(name)
    if path.suffix not in _YAML or not path.is_file():
        raise ConfigError(_unknown_preset(name, prog))
    text = read_regular(path, ConfigError, YAML_BYTES)
    try:
        return path.stem, run_from_yaml(text.decode(errors="replace"))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _unknown_preset(name: str, prog: str) -> str:
    see = f"`{prog} --help` lists all {len(PRESETS)} presets."
    if name.startswith("-"):
        return f"the first argument must be a preset, got {name}: put options after it. {see}"
    if Path(name).exists():
        return (
            f"the first argument must be a preset, got the path {name}. To resume a run, give its "
            f"preset and its folder: `gidd train PRESET --out {name}`. To train on your own "
            "files, give them as --data.sources. To start from the weights of a model, give it as "
            f"--init-from. To repeat a run, give its run.yaml. {see}"
        )
    if Path(name).suffix in _YAML:
        return f"{name} does not exist. Check the path. {see}"
    near = difflib.get_close_matches(name, PRESETS, 3, 0.3)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return f"there is no preset {name!r}.{hint} {see}"


def _with_parallel(run: RunConfig, words: Sequence[str]) -> RunConfig:
    """Return the run with the class that `--parallel` names, so that its options can be given."""
    kinds: dict[str, type[DDP] | type[FSDP]] = {"ddp": DDP, "fsdp": FSDP}
    kind = kinds.get(chosen_name("parallel", words) or "")
    return run if kind in (None, type(run.parallel)) else replace(run, parallel=kind())


def run_summary(run: RunConfig) -> str:
    """Return one line: parameters, steps, tokens and data."""
    train, data = run.train, run.data
    tokens = train.steps * train.global_batch * data.length
    sizes = run.network_config(2)
    return (
        f"{_with_unit(sizes.num_block_parameters)} parameters, {train.steps:,} steps, "
        f"{_with_unit(tokens)} tokens of {', '.join(data.sources)}"
    )


def _with_unit(number: float) -> str:
    """Return a large number in three digits."""
    sizes = {"T": 1e12, "B": 1e9, "M": 1e6}
    unit = next((unit for unit, size in sizes.items() if number >= size), "M")
    return f"{number / sizes[unit]:.3g}{unit}"
