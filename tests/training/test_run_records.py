"""Runs that were saved before parts had names are read, resumed and exported."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from support import frozen
from support.training_runs import reported, train_here

import gidd
from gidd.common.config.codec import to_plain, to_yaml
from gidd.common.config.components import component
from gidd.diffusion.schedules import HybridSchedule
from gidd.errors import ConfigError
from gidd.runs.export import RUN_FILE, export
from gidd.runs.presets import PRESETS
from gidd.training.checkpoints.folder import folder_name
from gidd.training.config import Diffusion, RunConfig
from gidd.training.recorded import run_from_plain, run_from_yaml
from gidd.training.world import open_world

GOLDEN = Path(__file__).parents[1] / "golden"
OLD = GOLDEN / "old_run"
EXPECTED = json.loads((OLD / "expected.json").read_text())

UNIFORM = Diffusion(
    noise=component("schedule", "uniform"), weighting=component("weighting", "tight"), eps=1e-3
)
RECORDED = {
    **{name: PRESETS[name] for name in ("nano", "small-mdm", "1b")},
    "uniform-tight": replace(PRESETS["nano"], objective=UNIFORM),
}
HELD_OUT = {"nano": 24, "uniform-tight": 24, "small-mdm": 100_000}
RUNS = {  # compilation was off, autocast on, the number of held-out documents given by default,
    # and the shuffle full
    name: replace(
        run,
        train=replace(run.train, compile=False, autocast=True),
        data=replace(run.data, validation=HELD_OUT.get(name, run.data.validation), shuffle="full"),
    )
    for name, run in RECORDED.items()
}


def old_text(name: str) -> str:
    return (GOLDEN / "runs" / f"{name}.yaml").read_text()


def test_all_recorded_runs_are_compared():
    assert {path.stem for path in (GOLDEN / "runs").iterdir()} == {*RUNS, "small-llama-262b"}


@pytest.mark.parametrize("name", RUNS)
def test_an_old_run_is_the_same_configuration(name):
    run = run_from_yaml(old_text(name))
    assert run == RUNS[name]
    assert run_from_yaml(to_yaml(run)) == run


@pytest.mark.parametrize("name", RUNS)
def test_a_new_record_has_names_and_every_other_setting(name):
    """What the record of a run says is what the old one said, in names of parts."""
    old, new = yaml.safe_load(old_text(name)), to_plain(RUNS[name])
    assert "model" not in new
    assert new["backbone"] == {**old["model"], "kind": "dit", "mixing_width": 0}
    later = {"data": {"format": "text", "padding": "learned", "packing": False}}
    later["data"]["shuffle"] = "full"
    later["optim"] = {"lr_schedule": "cosine", "decay_ratio": 0.2}
    for group in ("data", "optim", "train", "parallel"):
        assert new[group] == later.get(group, {}) | old[group]


OLD_NANO = yaml.safe_load(old_text("nano"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": OLD_NANO["model"] | {"depth": 3}}, r"run.backbone has unknown .*'depth'"),
        ({"model": {"kind": "ModelConfig"}}, r"run.backbone has .* lacks .*'num_heads'.*'width'"),
        ({"model": OLD_NANO["model"] | {"width": "8"}}, "run.backbone.width must be int, got '8'"),
        ({"model": {"kind": "os.system"}}, r"unknown fields \['model'\] and lacks .*'backbone'"),
        ({"backbone": to_plain(PRESETS["nano"].backbone)}, r"unknown fields \['model'\]"),
        ({"model": [1]}, r"unknown fields \['model'\] and lacks .*'backbone'"),
        ({"objective": None}, "run.objective must be an object, got None"),
        ({"surprise": 1}, r"run has unknown fields \['surprise'\]"),
        *(
            ({"objective": OLD_NANO["objective"] | {"noise": value}}, "run.objective.noise")
            for value in (None, [], "HybridNoise", {}, {"kind": "os.system"}, {"kind": ["x"]})
        ),
        *(
            ({"objective": OLD_NANO["objective"] | {"weights": value}}, "run.objective.weighting")
            for value in (None, [], "TightWeights", {}, {"kind": "HybridNoise"}, {"kind": {}})
        ),
        (
            {"objective": OLD_NANO["objective"] | {"weights": {"kind": "TightWeights", "size": 1}}},
            r"run.objective.weighting has unknown fields \['size'\]",
        ),
        (
            {"objective": OLD_NANO["objective"] | {"noise": {"kind": "HybridNoise", "gamma": "1"}}},
            "run.objective.noise.gamma must be float, got '1'",
        ),
    ],
)
def test_a_damaged_old_record_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        run_from_plain(OLD_NANO | change)


@pytest.fixture
def old(tmp_path) -> Path:
    """A folder of a run that was stopped after 2 of 4 steps."""
    shutil.copytree(OLD / "run", tmp_path / "run")
    return tmp_path / "run"


def old_run(folder: Path) -> RunConfig:
    run = run_from_yaml((folder / "checkpoints" / folder_name(2) / RUN_FILE).read_text())
    return replace(run, data=replace(run.data, folder=str(OLD / "data")))


@pytest.mark.slow
def test_an_old_checkpoint_is_resumed(old):
    """To the losses and weights with which the old code goes on."""
    run, before = old_run(old), reported(old)
    assert [line["step"] for line in before] == [1, 2]
    assert train_here(run, old)
    frozen.require_equal(EXPECTED["after"], frozen.trained(run, old), EXPECTED["machine"])
    assert reported(old)[:2] == before
    resumed = (old / "checkpoints" / folder_name(4) / RUN_FILE).read_text()
    assert run_from_yaml(resumed) == run
    assert "ModelConfig" not in resumed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda run: {"backbone": run.backbone.changed(width=32)}, r"backbone.width: 16 -> 32"),
        (lambda run: {"objective": Diffusion()}, r"objective.noise.p_uniform: 0.2 -> 0.0"),
        (
            lambda run: {
                "objective": replace(run.objective, weighting=component("weighting", "tight"))
            },
            r"objective.weighting.kind: dynamic -> tight",
        ),
    ],
)
def test_other_settings_of_an_old_run_are_refused(old, change, message):
    run = old_run(old)
    with pytest.raises(ConfigError, match=message):
        train_here(replace(run, **change(run)), old)
    assert len(reported(old)) == 2


def test_an_old_checkpoint_is_exported(old, tmp_path):
    """To the bytes that the old code exported, which can be loaded and sampled."""
    with open_world("cpu") as world:
        assert export(old, tmp_path / "model", world).step == 2
    record = json.loads((tmp_path / "model" / "gidd.json").read_text())
    expected = EXPECTED["export"] | {"model": EXPECTED["export"]["model"] | {"mixing_width": 0}}
    assert {name: record[name] for name in expected} == expected
    pipe = gidd.from_pretrained(tmp_path / "model", device="cpu")
    assert pipe.schedule == HybridSchedule(pipe.schedule.vocab, 0.2)
    (sample,) = pipe.generate(length=8, steps=2)
    assert torch.tensor(sample.tokens).max() < pipe.schedule.vocab.size


def test_a_run_without_a_density_of_times_has_uniform_ones():
    """Runs of the version before that setting have names of parts already."""
    plain = to_plain(PRESETS["nano"])
    del plain["objective"]["time_power"]
    assert run_from_plain(plain) == PRESETS["nano"]


def test_a_run_of_the_autoregressive_objective_says_who_exports_it():
    with pytest.raises(ConfigError, match="no longer trained. Export the run with the version"):
        run_from_yaml(old_text("small-llama-262b"))
