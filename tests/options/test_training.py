"""Every setting of a run and argument of `gidd.train` has an effect or is refused by its name."""

import io
import json
from contextlib import redirect_stderr
from dataclasses import fields, is_dataclass, replace
from functools import cache, partial
from inspect import signature
from itertools import product
from typing import Any

import pytest
import torch
from support.cases import once
from support.options import check_option, is_equal
from torch import nn
from torch.distributed.tensor import DTensor

import gidd
from gidd.common.config.components import Component
from gidd.common.config.registry import builtin_components
from gidd.data import prepare
from gidd.data.corpora import Corpus
from gidd.data.corpora.formats import find_documents
from gidd.data.loading.loader import Loader
from gidd.data.tokenizers import byte_level
from gidd.diffusion.loss import fused
from gidd.runs import data as run_data, fit as run_fit, python_api
from gidd.runs.fit import fit
from gidd.training.checkpoints import Checkpoints
from gidd.training.config import FSDP, DataConfig, Diffusion, RunConfig, TrainConfig
from gidd.training.loop import Evaluation
from gidd.training.optim import OptimConfig
from gidd.training.recorded import require_read
from gidd.training.watchdog import Watchdog
from gidd.training.world import open_world

pytest.importorskip("peft", reason="needs the extra `hf`")

component = gidd.component
TINY = component("backbone", "dit", width=16, num_layers=1, num_heads=2, time_width=8)
HYBRID = component("schedule", "hybrid", p_uniform=0.2)
QUICK = {"warmup": 0, "learning_rate": 0.01, "global_batch": 4, "evaluate_samples": 2}
QUICK |= {"length": 16, "generate_samples": 0, "autocast": False}
BASE = RunConfig(
    backbone=TINY,
    objective=Diffusion(noise=HYBRID),
    data=DataConfig(length=16),
    optim=OptimConfig(warmup=0, learning_rate=0.01),
    train=TrainConfig(
        steps=2, global_batch=4, evaluate_samples=2, generate_samples=0, autocast=False
    ),
)
MODEL: dict[str, Any] = {"init_from": lambda at: str(at / "model")}
FILES: dict[str, Any] = {"data.folder": None, "data.tokenizer": "bytes"}
FILES |= {"data.sources": lambda at: (str(at / "text.jsonl"),)}
MIXTURE = FILES | {"data.tokenizer": "gpt2"}
MIXTURE |= {"data.sources": lambda at: (f"{at / 'text'}*3", f"{at / 'other'}*1")}
LORA = MODEL | {"lora.rank": 2}
MUON = {"optimizer": component("optimizer", "muon")}
TIGHT = {"objective.weighting": component("weighting", "tight")}
SIZES = {"width": 16, "num_layers": 1, "num_heads": 2}
LAYERS = {"rotary_base": 1e4, "norm_eps": 1e-6, "mlp_width": 16, "num_kv_heads": 2}
FAMILY = {"family": "qwen2", "hf": '{"intermediate_size": 16}'}
BERT = {"family": "bert", "hf": '{"intermediate_size": 16}'}
BACKBONES: dict[str, dict[str, Any]] = {
    "time_mapped_dit": SIZES | {"time_width": 8, "time": "sigma"},
    "bidirectional": SIZES | LAYERS,
    "scaled": SIZES,
    "llama-bidirectional": SIZES | FAMILY,
    "masked-lm": SIZES | BERT,
}
NOISES: dict[str, dict[str, Any]] = {
    "masked": {},
    "uniform": {},
    "first_release": {"p_uniform": 0.0},
}
"""Without `mixture`, whose distributions are tensors, which no configuration has."""


def surfaces() -> dict[str, tuple[str, str, dict[str, Any]]]:
    """Runs by name: the format of the data, the settings to test, and those that are changed."""
    found: dict[str, tuple[str, str, dict[str, Any]]] = {}
    for name in builtin_components("objective"):
        change = {"objective.loss": component("objective", name)}
        found[f"{name}, text"] = ("text", "", change)
        found[f"{name}, LoRA, chat"] = ("chat", "", change | LORA)
    found["nelbo, chat"], found["nelbo, LoRA, text"] = ("chat", "", {}), ("text", "", LORA)
    found["files"] = ("text", "data.", FILES)
    found["mixture"] = ("text", "data.", MIXTURE)
    found["init_from"] = ("text", "backbone", MODEL)
    found["init_from, files"] = ("text", "data.", FILES | {"data.tokenizer": "gpt2"} | MODEL)
    found["FSDP"] = ("text", "parallel.", {"parallel": FSDP()})
    found["muon"] = ("text", "optim", MUON)
    found["muon, LoRA"] = ("text", "optim", MUON | LORA)
    found["wsd"] = ("text", "optim.", {"optim.lr_schedule": "wsd"})
    found["constant"] = ("text", "optim.", {"optim.lr_schedule": "constant"})
    for name in sorted(builtin_components("schedule").keys() - {"hybrid", "mixture"}):
        noise = {"objective.noise": component("schedule", name, **NOISES[name])}
        found[name] = ("text", "objective.", TIGHT | noise)
    for name in builtin_components("weighting"):
        weighting = {"objective.weighting": component("weighting", name)}
        found[name] = ("text", "objective.weighting.", weighting)
    for name in sorted(builtin_components("backbone").keys() - {"dit"}):
        found[name] = (
            "text",
            "backbone.",
            {"backbone": component("backbone", name, **BACKBONES[name])},
        )
    found["attention"] = ("text", "objective.attention", found["llama-bidirectional"][2])
    return found


SURFACES = surfaces()
SAVED = {"train.save_every": 1}
AWAY: dict[str, Any] = {
    "backbone": component("backbone", "scaled", **SIZES),
    "backbone.width": 32,
    "backbone.num_layers": 2,
    "backbone.num_heads": 1,
    "backbone.time_width": 64,
    "backbone.dropout": 0.5,
    "backbone.mixing_width": 3,
    "backbone.checkpoint_activations": True,
    "backbone.time": "zero",
    "backbone.mlp_width": 32,
    "backbone.num_kv_heads": 1,
    "backbone.rotary_base": 10.0,
    "backbone.norm_eps": 0.1,
    "backbone.qkv_bias": True,
    "backbone.tied_head": True,
    "backbone.shifted_mask_id": ({"backbone.predicts_first": True}, 256),
    "backbone.residual_scale": 2.0,
    "backbone.head_scale": 2.0,
    "backbone.soft_cap": 1.0,
    "backbone.family": "mistral",
    "backbone.start_id": 1,
    "backbone.hf": '{"intermediate_size": 32}',
    "backbone.time_embedding": True,
    "objective": Diffusion(noise=HYBRID, eps=0.01),
    "objective.loss": component("objective", "drafts"),
    "objective.loss.fraction": 1.0,
    "objective.noise": (TIGHT, component("schedule", "uniform")),
    "objective.noise.p_uniform": 0.5,
    "objective.noise.gamma": 2.0,
    "objective.noise.curve": gidd.diffusion.Cosine(),
    "objective.weighting": component("weighting", "tight"),
    "objective.weighting.w_max": 1e-3,
    "objective.eps": 0.1,
    "objective.time_power": 3.0,
    "objective.p_uniform_warmup": 2,
    "objective.attention_warmup": 2,
    "objective.block_lengths": (4, 8),
    "data.folder": lambda at: at / "other",
    "data.sources": lambda at: (str(at / "other.jsonl"),),
    "data.format": "chat",
    "data.tokenizer": "chars",
    "data.validation": 3,
    "data.length": 12,
    "data.padding": ({"data.length": 96}, "ignored"),
    "data.packing": ({"data.padding": "ignored", "data.length": 96}, True),
    "data.shuffle": "blocks",
    "data.workers": 1,
    "optim.learning_rate": 0.02,
    "optim.warmup": 2,
    "optim.lr_schedule": "constant",
    "optim.decay_ratio": 1.0,
    "optim.final_lr_ratio": 0.5,
    "optim.beta1": 0.5,
    "optim.beta2": 0.5,
    "optim.eps": 0.1,
    "optim.weight_decay": 0.5,
    "optim.max_grad_norm": 0.01,
    "optimizer": MUON["optimizer"],
    "optimizer.momentum": 0.5,
    "optimizer.ns_steps": 2,
    "train.steps": 3,
    "train.global_batch": 6,
    "train.accumulate": 2,
    "train.seed": 1,
    "train.autocast": True,
    "train.compile": True,
    "train.ema_decay": 0.5,
    "train.report_every": 1,
    "train.evaluate_every": 1,
    "train.evaluate_samples": 3,
    "train.generate_samples": 1,
    "train.save_every": 1,
    "train.max_steps_ahead_of_save": (SAVED, 1),
    "train.keep": (SAVED, 1),
    "train.keep_every": (SAVED | {"train.keep": 1}, 1),
    "train.timeout": 500.0,
    "lora.rank": 3,
    "lora.alpha": 4.0,
    "lora.dropout": 0.5,
    "lora.targets": "out",
    "lora.embeddings": True,
    "init_from": lambda at: str(at / "second"),
    "context": 64,
    "parallel": FSDP(),
    "parallel.shard_size": 2,
    "parallel.reshard_after_forward": False,
}
"""A value other than the default, perhaps with what must be set for it to matter.

How a batch is computed leaves no trace in the weights: `recorded` counts the calls of modules
(accumulate, checkpoint_activations), and notes what is compiled, the processes of the loader, the
phases of the loop and the seconds after which the watchdog ends the run.
"""

OWN: dict[tuple[str, str], Any] = {
    ("drafts", "objective.loss"): component("objective", "nelbo"),
    ("muon", "optimizer"): component("optimizer", "adamw"),
    ("constant", "optim.lr_schedule"): "cosine",
    ("first_release", "objective.noise.p_uniform"): 0.01,
    ("uniform", "objective.noise"): component("schedule", "masked"),
    ("masked-lm", "backbone.family"): "modernbert",
    ("chat", "data.format"): (FILES, "chat"),
    ("mixture", "data.sources"): lambda at: (f"{at / 'text'}*1", f"{at / 'other'}*1"),
    ("batches", "data.padding"): "ignored",
    ("batches", "data.packing"): True,
    ("wsd", "optim.lr_schedule"): "cosine",
    ("wsd", "optim.final_lr_ratio"): ({"optim.decay_ratio": 1.0}, 0.5),
    **{
        (name, "objective.weighting"): component("weighting", "elbo") for name in (*NOISES, "tight")
    },
}
OWN |= {
    (name, "objective.weighting"): component("weighting", "elbo") for name in (*NOISES, "tight")
}
"""Values where a surface needs another one."""


def changed(value: Any, name: str, to: Any) -> Any:
    """A configuration with another value of a setting, by its dotted name."""
    first, _, rest = name.partition(".")
    if rest:
        old = value.options[first] if isinstance(value, Component) else getattr(value, first)
        to = changed(old, rest, to)
    is_component = isinstance(value, Component)
    return value.changed(**{first: to}) if is_component else replace(value, **{first: to})


def names_of(value: Any, prefix: str = "") -> list[str]:
    """The dotted names of all settings of a configuration, and of the options of components."""
    found: list[str] = []
    names = value.options if isinstance(value, Component) else [each.name for each in fields(value)]
    for name in names:
        inner = value.options[name] if isinstance(value, Component) else getattr(value, name)
        is_group = is_dataclass(inner) and name != "curve"
        if not is_group or isinstance(inner, Component) or name in ("objective", "parallel"):
            found.append(prefix + name)
        found += names_of(inner, f"{prefix}{name}.") if is_group else []
    return found


def configured(surface: str, at: Any, more: dict[str, Any]) -> RunConfig:
    form, _, changes = SURFACES[surface]
    run = changed(BASE, "data.folder", at and at / form)
    for name, value in {**changes, **more}.items():
        run = changed(run, name, value(at) if at and callable(value) else value)
    return run


CASES = [
    (surface, name)
    for surface, (_, prefix, _) in SURFACES.items()
    for name in names_of(configured(surface, None, {}))
    if name.startswith(prefix) and name != "backbone.predicts_first"
]
"""Without `predicts_first`: training sets it, as a shifted network is refused without it."""


@pytest.fixture(scope="module")
def at(tmp_path_factory):
    """Data as text and as chats, other data, a model, and files to prepare."""
    folder = tmp_path_factory.mktemp("data")
    torch.set_num_threads(1)
    words = [f"{k} peace and plenty for all. "[: 6 + 5 * (k % 5)] for k in range(12)]
    rows = [{"text": text, "prompt": text[:4], "response": text[4:]} for text in words]
    others = [row | {"text": row["text"][::-1]} for row in rows]
    for name, lines in (("text", rows), ("chat", rows), ("other", others)):
        file = folder / f"{name}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in lines))
        form = {"format": "chat"} if name == "chat" else {}
        prepare([file], byte_level(), folder / name, validation=4, quiet=True, **form)
    run = changed(BASE, "data.folder", folder / "text")
    settings = {"preset": run, "quiet": True, "device": "cpu"}
    for name, seed in (("model", 0), ("second", 1)):
        gidd.train(folder / f"run-{name}", seed=seed, **settings).save(folder / name)
    return folder


@pytest.fixture(scope="module")
def noted():
    """What runs do that is in no file, in order; cleared by each."""
    calls: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        phase, start = Watchdog.phase, Watchdog.__init__

        def note(name: str, function: Any) -> Any:
            def call(*arguments: Any, **options: Any) -> Any:
                calls.append(name)
                return function(*arguments, **options)

            return call

        def load(*arguments: Any, num_workers: int, **options: Any) -> Loader:
            calls.append(num_workers)
            return Loader(*arguments, **options)

        def watch(self: Watchdog, world: Any, timeout: float) -> None:
            calls.append(timeout)
            start(self, world, timeout)

        patch.setattr(run_data, "Loader", load)
        patch.setattr(Watchdog, "__init__", watch)
        patch.setattr(Watchdog, "phase", lambda *which: calls.append(which[1:]) or phase(*which))
        patch.setattr(nn.Module, "compile", note("compile", lambda *_, **__: None))
        patch.setattr(fused, "_compiled_token_terms", note("compile", lambda: fused.token_terms))
        hook = nn.modules.module.register_module_forward_pre_hook(
            lambda module, _: calls.append(type(module).__name__)
        )
        yield calls
        hook.remove()


def recorded(done: Any, out: Any, calls: list[Any]) -> dict[str, Any]:
    """All that a run leaves: weights, state of the optimizer, names of files, metrics, calls."""
    log = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    tensors = done.state.tensors()
    groups = [getattr(m, "_get_fsdp_state", lambda: None)() for m in done.state.module.modules()]
    return {
        "tensors": {k: v.to_local() if isinstance(v, DTensor) else v for k, v in tensors.items()},
        "sharded": [k for k, v in tensors.items() if isinstance(v, DTensor)],
        "resharded": [
            group._fsdp_param_group.post_forward_mesh_info is not None for group in groups if group
        ],
        "context": getattr(getattr(done.state.model.network, "config", None), "max_length", 0),
        "files": sorted(str(path.relative_to(out)) for path in out.rglob("*")),
        "log": [{k: v for k, v in line.items() if k != "wall"} for line in log],
        "calls": list(calls),
    }


@pytest.fixture(scope="module")
def run(at, noted, tmp_path_factory):
    def run(surface: str, more: dict[str, Any], whole: bool, before: Any = None) -> Any:
        """Train as a command does whose options change a preset, `before`.

        Two thirds of the time go into checkpoints and evaluations; only the `whole` run has them.
        """
        out = tmp_path_factory.mktemp("run")
        config = configured(surface, at, more)
        if before:
            require_read(before, config)
        noted.clear()
        with open_world("cpu") as world, pytest.MonkeyPatch.context() as patch:
            if not whole:
                patch.setattr(Checkpoints, "save", lambda *_: None)
                patch.setattr(run_fit, "build_evaluation", lambda *_: lambda _: Evaluation({}))
            return recorded(fit(config, out, world, quiet=True), out, noted)

    return run


@pytest.fixture(scope="module")
def default(run):
    known: dict[str, Any] = {}

    def default(surface: str, needs: dict[str, Any], whole: bool) -> Any:
        key = f"{surface} {needs} {whole}"
        if key not in known:
            known[key] = run(surface, needs, whole)
        return known[key]

    return default


@pytest.mark.parametrize(("surface", "name"), once(CASES))
def test_a_setting_has_an_effect_or_is_refused(request, at, run, default, surface, name):
    keys = ((surface.partition(",")[0], name), (SURFACES[surface][0], name))
    value = next((OWN[key] for key in keys if key in OWN), AWAY[name])
    needs, value = value if isinstance(value, tuple) and isinstance(value[0], dict) else ({}, value)
    before = configured(surface, at, needs)

    def away() -> Any:
        found = run(surface, needs | {name: value}, False, before)
        is_same = is_equal(found, default(surface, needs, False))
        return run(surface, needs | {name: value}, True) if is_same else found

    table = "run, other components" if SURFACES[surface][1] else f"run, {surface}"
    option = "objective" if name == "objective.loss" else name
    check_option(request, table, option, default(surface, needs, True), away)


@pytest.mark.parametrize("surface", SURFACES)
def test_runs_are_compared_without_what_differs_from_run_to_run(run, default, surface):
    assert is_equal(run(surface, {}, True), default(surface, {}, True))


class Texts(Corpus):
    """A file as a corpus of one's own."""

    name, description = "texts", "a file"

    def __init__(self, path: Any) -> None:
        self.path = path

    def documents(self) -> Any:
        return find_documents(self.path)


class Network(nn.Module):
    """Nothing but what a denoiser needs."""

    def __init__(self, width: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(259, width), nn.Linear(width, 259)
        self.blocks = nn.ModuleList([nn.Linear(width, width)])

    def hidden(self, z: Any, t: Any) -> Any:
        return self.blocks[0](self.embedding(z) + t[:, None, None])


def batches(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 256, (4, 16), generator=generator) for _ in range(4)]


def freeze(state: Any, _: Any) -> None:
    """A callback: the head is not trained."""
    state.model.network.head.requires_grad_(False)


CALLS: dict[str, dict[str, Any]] = {
    "prepared": {"data": lambda at: at / "text"},
    "files": {"data": lambda at: [at / "text.jsonl"], "tokenizer": "bytes"},
    "corpus": {"data": lambda at: Texts(at / "text.jsonl"), "tokenizer": "bytes"},
    "module": {"data": lambda at: at / "text", "model": lambda at: Network(8)},
    "batches": {"data": lambda at: batches(0), "tokenizer": lambda at: byte_level()},
}
"""Forms of the data and of the network."""

GIVEN: dict[str, Any] = {
    "out": "elsewhere",
    "model": TINY.changed(width=32),
    "schedule": ({"weighting": "tight"}, "uniform"),
    "weighting": "tight",
    "objective": "drafts",
    "optimizer": "muon",
    "lora": 2,
    "parallel": "fsdp",
    "data": lambda at: at / "other",
    "tokenizer": "chars",
    "steps": 3,
    "preset": changed(BASE, "train.seed", 3),
    "device": "cuda",
    "trackers": ("tensorboard",),
    "callbacks": lambda _: [freeze],
    "quiet": False,
    "init_from": lambda at: at / "model",
    ("files", "data"): lambda at: at / "other.jsonl",
    ("corpus", "data"): lambda at: Texts(at / "other.jsonl"),
    ("batches", "data"): lambda at: batches(1),
    ("batches", "tokenizer"): "bytes",
    ("module", "model"): lambda at: Network(6),
}
"""Arguments away from their defaults; the settings of groups are those of `AWAY`."""

ARGUMENTS = [name for name in signature(gidd.train).parameters if name != "settings"]
GROUPS = ("data.", "optim.", "train.", "objective.")
SETTINGS = [
    name
    for name in names_of(BASE)
    if name.startswith(GROUPS)
    and name.count(".") == 1
    and name.partition(".")[2] not in (*ARGUMENTS, "loss", "noise")
]


@pytest.fixture(scope="module")
def train(at, noted, tmp_path_factory):
    """Calls `gidd.train`; the result also has the pipeline, and whether something was printed."""
    done: list[Any] = []

    def train(surface: str, more: dict[str, Any]) -> Any:
        folder, printed = tmp_path_factory.mktemp("call"), io.StringIO()
        given = {"out": "run", "preset": BASE, "quiet": True, "device": "cpu"}
        given |= CALLS[surface] | more
        given = {name: v(at) if callable(v) else v for name, v in given.items()}
        given["out"] = folder / given["out"]
        noted.clear()
        with redirect_stderr(printed):
            pipe = gidd.train(**given)
        return done.pop() | {
            "out": [path.name for path in folder.iterdir()],
            "pipeline": (pipe.context, pipe.times, pipe.source["data"], type(pipe.schedule)),
            "weights": dict(pipe.denoiser.state_dict()),
            "printed": bool(printed.getvalue()),
        }

    def keep(run: Any, out: Any, *arguments: Any, **options: Any) -> Any:
        found = fit(run, out, *arguments, **options)
        done.append(recorded(found, out, noted))  # before LoRA is merged
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(python_api, "fit", keep)
        yield train


@pytest.fixture(scope="module")
def called(train):
    return cache(lambda surface, needs: train(surface, dict(needs)))


@pytest.mark.parametrize(("surface", "name"), once(product(CALLS, ARGUMENTS)))
def test_an_argument_has_an_effect_or_is_refused(request, train, called, surface, name):
    value = GIVEN.get((surface, name), GIVEN[name])
    needs, value = value if isinstance(value, tuple) and isinstance(value[0], dict) else ({}, value)
    before = called(surface, tuple(needs.items()))
    away = partial(train, surface, needs | {name: value})
    check_option(request, f"gidd.train, {surface}", name, before, away)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_of_batches_has_an_effect_or_is_refused(request, at, train, called, name):
    value = OWN.get(("batches", name), AWAY[name])
    needs, value = value if isinstance(value, tuple) and isinstance(value[0], dict) else ({}, value)
    needs = {each.partition(".")[2]: of for each, of in needs.items()}
    group, _, setting = name.partition(".")
    value = value(at) if callable(value) else value
    change = {group: {setting: value}} if setting == "eps" else {setting: value}
    before = called("batches", tuple(needs.items()))
    away = partial(train, "batches", needs | change)
    check_option(request, "gidd.train, batches", name, before, away)
