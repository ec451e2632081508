"""Options that `gidd train` and `gidd plan` share: a preset, then options that change it."""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast, get_type_hints

import tyro

from gidd.cli.parsing import ComponentOptions, chosen_name, component_options, name_option, parse
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
    """Options of `gidd train` and `gidd plan`: those of the run are added by `parse_run`."""

    parallel_kind: Annotated[Literal["ddp", "fsdp"] | None, tyro.conf.arg(name="parallel")] = None
    """Replicate the model on every rank (ddp) or shard it (fsdp, FSDP2); None is the preset's."""


def parse_run(
    command: type[_T], words: Sequence[str], prog: str, description: str
) -> tuple[str, _T, RunConfig]:
    """Return the name of the run, the options of the command and the run as changed by options.

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
    components, names = dict[str, ComponentOptions](), list[Any]()
    for flag, each in chosen.items():
        name_now = chosen_name(flag, words) or each.name
        components[flag] = component_options(flag, each.kind, name_now, each.options)
        hint = name_option(each.kind, flag, _HELP[flag])
        names.append((f"{flag}_kind", hint, field(default=None)))
    settings = _settings(run, components)
    all_settings = Annotated[type(settings), tyro.conf.arg(name="")]
    names.append(("run", all_settings, field(default=settings)))
    frozen: Any = {"frozen": True, "kw_only": True}
    typed = make_dataclass(command.__name__, names, bases=(command,), **frozen)
    options = parse(
        cast(Callable[..., _T], typed),
        words[1:],
        prog=f"{prog} {words[0]}",
        description=description,
        config=(tyro.conf.AvoidSubcommands, tyro.conf.DisallowNone),
    )
    parsed = cast(Any, options).run
    built = {flag: each.component(getattr(parsed, flag)) for flag, each in components.items()}
    networks = {name: built.pop(name) for name in ("backbone", "optimizer")}
    own = {name: getattr(parsed.objective, name) for name in attribute_docstrings(Diffusion)}
    objective = replace(objective, loss=built.pop("objective"), **built, **own)
    values = {name: getattr(parsed, name) for name in (*_GROUPS, "init_from")}
    steps, warmup = parsed.train.steps, parsed.optim.warmup
    if steps < warmup == run.optim.warmup:  # a warmup longer than the run keeps its fraction
        short = round(warmup * steps / max(run.train.steps, 1))
        values["optim"] = replace(parsed.optim, warmup=short)
    changed = replace(run, objective=objective, **networks, **values)
    require_read(run, changed)
    return name, options, changed


def _settings(run: RunConfig, components: dict[str, ComponentOptions]) -> Any:
    values: dict[str, Any] = {flag: options.default for flag, options in components.items()}
    hints, helps = get_type_hints(Diffusion), attribute_docstrings(Diffusion)
    own = [
        (name, Annotated[hints[name], tyro.conf.arg(help=text)], getattr(run.objective, name))
        for name, text in helps.items()
    ]
    chosen = values["objective"]  # its own options, and those of all objectives
    typed = make_dataclass("Objective", own, bases=(type(chosen),), frozen=True, kw_only=True)
    values["objective"] = typed(**vars(chosen))
    values |= {name: getattr(run, name) for name in _GROUPS}
    types: list[Any] = [(name, type(value), field(default=value)) for name, value in values.items()]
    source = Annotated[str | None, tyro.conf.arg(help=_INIT_FROM)]
    types.append(("init_from", source, field(default=run.init_from)))
    return make_dataclass("Run", types, frozen=True, kw_only=True)()


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


def _with_unit(number: float) -> str:
    size, unit = next((p for p in ((1e12, "T"), (1e9, "B")) if number >= p[0]), (1e6, "M"))
    return f"{number / size:.3g}{unit}"
