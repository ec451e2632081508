"""Options that `gidd train` and `gidd plan` share: a preset, then options that change it."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro
from tyro.constructors import StructConstructorSpec, StructFieldSpec

from gidd.cli.parsing import (
    ComponentOptions,
    chosen_name,
    component_options,
    declared_fields,
    name_option,
    parse,
)
from gidd.common.config.components import Component
from gidd.common.config.options import attribute_docstrings
from gidd.common.files import YAML_BYTES, read_regular
from gidd.errors import ConfigError
from gidd.runs.presets import PRESETS
from gidd.training.config import DDP, FSDP, Diffusion, RunConfig, default_weighting
from gidd.training.recorded import require_read, run_from_yaml

_PRESET_NAMES = """\
presets (number of parameters without embeddings):
  nano and micro train on a laptop; 1b, 3b and 10b need a cluster; the others are rows of the paper,
  SIZE-METHOD-P_UNIFORM: gidd (ELBO), gidd-clip and gidd-dynamic (other loss weights), gidd-plus
  (dynamic weights and weight decay), mdm (masked diffusion)
"""

_HELP = {  # options that choose a component
    "objective": "What training minimises; --objective.OPTION sets its options below. None is the "
    "preset's.",
    "noise": "Noise schedule; --noise.OPTION sets its options below. None is the preset's.",
    "weighting": "Weights of the loss; --weighting.OPTION sets their options below. None is the "
    "preset's.",
    "optimizer": "Optimizer; --optimizer.OPTION sets its options below, --optim the settings of "
    "all. None is the preset's.",
    "backbone": "Network; --backbone.OPTION sets its options below. None is the preset's.",
}
_GROUPS = ("data", "optim", "train", "lora", "parallel")
_YAML = (".yaml", ".yml")

_INIT_FROM = (
    "Model whose weights are the initial ones: a folder, or a name on the Hugging Face hub. The "
    "network is that of the model. Default: random weights."
)

_T = TypeVar("_T", bound="RunCommand")


@dataclass(frozen=True, kw_only=True)
class RunCommand:
    """Options of `gidd train` and `gidd plan`."""

    parallel_kind: Annotated[Literal["ddp", "fsdp"] | None, tyro.conf.arg(name="parallel")] = None
    """Replicate the model on every rank (ddp) or shard it (fsdp, FSDP2); None is the preset's."""
    run: Annotated[RunConfig, tyro.conf.arg(name="")]


def parse_run(
    command: type[_T], words: Sequence[str], prog: str, description: str
) -> tuple[str, _T]:
    """Return the name of the run, and the options of the command with the run that they change.

    The first argument is a preset or the run.yaml of a run. --help lists presets or options.
    """
    if not words or words[0] in ("-h", "--help"):
        print(f"usage: {prog} PRESET|RUN.YAML [OPTIONS]\n\n{description}\n{_PRESET_NAMES}")
        for name, run in PRESETS.items():
            train, data = run.train, run.data
            size = _with_unit(run.network_config(2).num_block_parameters)
            tokens = _with_unit(train.steps * train.global_batch * data.length)
            of_data = f"{train.steps:,} steps, {tokens} tokens of {', '.join(data.sources)}"
            print(f"  {name:26} {size} parameters, {of_data}")
        print(f"\nRun `{prog} PRESET --help` for the options of a preset.")
        raise SystemExit(0)
    name, run = _named_run(words[0], prog)
    parallel = {"ddp": DDP, "fsdp": FSDP}.get(chosen_name("parallel", words) or "")
    if parallel not in (None, type(run.parallel)):  # so that its options can be given
        run = replace(run, parallel=parallel())
    objective = run.objective
    chosen = {
        "objective": objective.loss,
        "noise": objective.noise,
        "weighting": objective.weighting,
        "backbone": run.backbone,
        "optimizer": run.optimizer,
    }
    if chosen_name("weighting", words) is None:
        noise = chosen_name("noise", words) or objective.noise.name
        chosen["weighting"] = default_weighting(objective.weighting, noise)
    components = {
        flag: component_options(flag, now.kind, chosen_name(flag, words) or now.name, now.options)
        for flag, now in chosen.items()
    }
    loss = components.pop("objective")
    structures = {
        RunConfig: _run_structure(run, chosen, components),
        Diffusion: _objective_structure(objective, loss),
    }
    options = parse(
        command,
        words[1:],
        structures,
        prog=f"{prog} {words[0]}",
        description=description,
        config=(tyro.conf.AvoidSubcommands, tyro.conf.DisallowNone),
    )
    changed, warmup = options.run, options.run.optim.warmup
    if changed.train.steps < warmup == run.optim.warmup:  # warmup longer than the run: its fraction
        short = round(warmup * changed.train.steps / max(run.train.steps, 1))
        changed = replace(changed, optim=replace(changed.optim, warmup=short))
    require_read(run, changed)
    return name, replace(options, run=changed)


def _run_structure(
    run: RunConfig, chosen: Mapping[str, Component], components: Mapping[str, ComponentOptions]
) -> StructConstructorSpec:
    """Return the options of a run: names of components, their options, and all settings."""

    def build(**values: Any) -> RunConfig:
        noise = {flag: values.pop(flag) for flag in ("noise", "weighting")}
        names = {f"{flag}_kind" for flag in chosen}
        settings = {name: value for name, value in values.items() if name not in names}
        return replace(run, **settings | {"objective": replace(values["objective"], **noise)})

    options = [
        StructFieldSpec(f"{flag}_kind", name_option(now.kind, flag, _HELP[flag]), None)
        for flag, now in chosen.items()
    ]
    options.append(StructFieldSpec("objective", Diffusion, run.objective))
    options += [StructFieldSpec(k, ComponentOptions, of_one) for k, of_one in components.items()]
    groups = {name: getattr(run, name) for name in _GROUPS}
    options += [StructFieldSpec(name, type(group), group) for name, group in groups.items()]
    source: Any = str | None
    options.append(StructFieldSpec("init_from", source, run.init_from, _INIT_FROM))
    return StructConstructorSpec(build, tuple(options))


def _objective_structure(objective: Diffusion, loss: ComponentOptions) -> StructConstructorSpec:
    """Return the options of an objective, and those of all."""
    options, helps = loss.structure.fields, attribute_docstrings(Diffusion)
    shared = [option for option in declared_fields(Diffusion, objective) if option.name in helps]

    def build(**values: Any) -> Diffusion:
        of_loss = {option.name: values.pop(option.name) for option in options}
        return replace(objective, loss=loss.structure.instantiate(**of_loss), **values)

    return StructConstructorSpec(build, (*options, *shared))


def _named_run(name: str, prog: str) -> tuple[str, RunConfig]:
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
            f"the first argument must be a preset, got the path {name}. To resume a run: `gidd "
            f"train PRESET --out {name}`; your own files: --data.sources; weights of a model: "
            f"--init-from; to repeat a run, give its run.yaml. {see}"
        )
    if Path(name).suffix in _YAML:
        return f"{name} does not exist. Check the path. {see}"
    near = difflib.get_close_matches(name, PRESETS, 3, 0.3)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return f"there is no preset {name!r}.{hint} {see}"


def _with_unit(count: float) -> str:
    size, unit = next((p for p in ((1e12, "T"), (1e9, "B")) if count >= p[0]), (1e6, "M"))
    return f"{count / size:.3g}{unit}"
