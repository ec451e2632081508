"""Run folders from elsewhere: one message, in bounded time and memory."""

import json
import os
import shutil
from pathlib import Path

import pytest
import yaml
from support.training_runs import speeches, tiny_run, train_here

from gidd.cli import main
from gidd.errors import CheckpointError, GiddError
from gidd.runs.export import export
from gidd.training.checkpoints.folder import (
    MANIFEST,
    CheckpointManifest,
    entry,
    read_manifest,
    write_manifest,
)
from gidd.training.world import open_world

DEEP = "[" * 10**5 + "]" * 10**5
STEP = "step-000000002"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return speeches(tmp_path_factory.mktemp("data"), vocab_size=300, documents=20)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, data):
    out = tmp_path_factory.mktemp("run")
    assert train_here(tiny_run(data, steps=2), out)
    return out


@pytest.fixture
def checkpoint(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run") / "checkpoints" / STEP


def seal(folder: Path, **changes: object) -> None:
    """Write a manifest that fits the files, as an attacker can."""
    manifest = read_manifest(folder, 2)
    files = {path.name: entry(path) for path in folder.iterdir() if path.name != MANIFEST}
    content = {"step": 2, "tensors": manifest.tensors, "files": files} | changes
    (folder / MANIFEST).unlink()
    write_manifest(folder, CheckpointManifest(**content))


def changed(plain: object, names: str, value: object) -> object:
    """The same settings with another value of one, named by a path such as backbone.width."""
    first, _, rest = names.partition(".")
    return plain | {first: changed(plain[first], rest, value) if rest else value}


SETTINGS = [
    ("backbone.num_layers", 10**9, "backbone.num_layers must be at most"),
    ("backbone.num_layers", "two", "backbone.num_layers must be int"),
    ("backbone.width", 8 * 10**9, STEP),
    ("backbone.width", 64, "holds another model"),
    ("data.length", 10**10, "data.length"),
    ("train.ema_decay", 0.9, "ema."),
    ("train.steps", 0, "train.steps"),
    ("objective", {"kind": "Autoregressive"}, "no longer trained"),
    ("objective.kind", "os.system", "kind"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "value", "message"), SETTINGS)
def test_settings_that_do_not_fit_the_tensors_are_refused(
    checkpoint, tmp_path, name, value, message
):
    plain = yaml.safe_load((checkpoint / "run.yaml").read_text())
    (checkpoint / "run.yaml").write_text(yaml.safe_dump(changed(plain, name, value)))
    seal(checkpoint)
    with open_world("cpu") as world, pytest.raises(CheckpointError, match=message) as error:
        export(tmp_path / "run", tmp_path / "model", world)
    assert STEP in str(error.value)
    assert len(str(error.value)) < 2000
    assert not (tmp_path / "model").exists()


ALIASES = "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30))
TEXTS = [
    ("run.yaml", ""),
    ("run.yaml", DEEP),
    ("run.yaml", "a0: &a0 [1]\n" + ALIASES),
    ("run.yaml", "\xff\x00"),
    ("record.json", "[]"),
    ("record.json", DEEP),
    ("tokenizer.json", "{}"),
    ("tokenizer_config.json", '{"eos_token": 3}'),
    ("shard-00001-model-00001-of-00001.safetensors", "no tensors"),
    (MANIFEST, "{}"),
    (MANIFEST, DEEP),
]


def label(value: str) -> str:
    return value[:12]


@pytest.mark.parametrize(("name", "text"), TEXTS, ids=label)
def test_files_with_other_content_end_export_in_one_message(checkpoint, tmp_path, name, text):
    overwrite(checkpoint, name, text)
    with open_world("cpu") as world, pytest.raises(CheckpointError, match=STEP) as error:
        export(tmp_path / "run", tmp_path / "model", world)
    assert len(str(error.value)) < 2000


# a training reads the settings in record.json
READ_BY_TRAINING = [(name, text) for name, text in TEXTS if name != "run.yaml"]


@pytest.mark.parametrize(("name", "text"), READ_BY_TRAINING, ids=label)
def test_files_with_other_content_end_training_in_one_message(
    checkpoint, data, tmp_path, name, text
):
    overwrite(checkpoint, name, text)
    with pytest.raises(GiddError, match=STEP) as error:
        train_here(tiny_run(data, steps=2), tmp_path / "run")
    assert len(str(error.value)) < 2000


def overwrite(checkpoint: Path, name: str, text: str) -> None:
    (checkpoint / name).write_text(text, encoding="latin-1")
    if name != MANIFEST:
        seal(checkpoint)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("step", "two"),
        ("pending", {"loss": "1"}),
        ("pending", {"loss": float("nan")}),
        ("optimizer", []),
        ("optimizer", {"x": "1"}),
        ("run", {"kind": "RunConfig"}),
    ],
)
def test_a_record_with_other_values_is_refused(checkpoint, data, tmp_path, key, value):
    record = json.loads((checkpoint / "record.json").read_text())
    (checkpoint / "record.json").write_text(json.dumps(record | {key: value}))
    seal(checkpoint)
    with pytest.raises(GiddError, match=key) as error:
        train_here(tiny_run(data, steps=4), tmp_path / "run")
    assert STEP in str(error.value)


TENSOR = "model.denoiser.backbone.embedding.weight"


@pytest.mark.parametrize(
    "changes",
    [
        {"step": "2"},
        {"tensors": []},
        {"tensors": {TENSOR: "float32 " + DEEP}},
        {"tensors": {TENSOR: "float32 [-1, 3]"}},
        {"tensors": {TENSOR: f"float32 [{10**400}]"}},
        {"files": []},
        {"files": {"run.yaml": {"bytes": "1", "sha256": "0"}}},
    ],
    ids=lambda changes: str(changes)[:50],
)
def test_a_manifest_with_values_of_other_types_is_damaged(checkpoint, tmp_path, changes):
    seal(checkpoint, **changes)
    with (
        open_world("cpu") as world,
        pytest.raises(CheckpointError, match=f"{STEP}/{MANIFEST} is damaged"),
    ):
        export(tmp_path / "run", tmp_path / "model", world)


@pytest.mark.parametrize("name", ["manifest.json", "record.json", "run.yaml"])
def test_a_named_pipe_is_not_read(checkpoint, tmp_path, name):
    (checkpoint / name).unlink()
    os.mkfifo(checkpoint / name)
    with open_world("cpu") as world, pytest.raises(CheckpointError, match=name):
        export(tmp_path / "run", tmp_path / "model", world)


def test_the_command_prints_one_line(checkpoint, tmp_path, capsys):
    (checkpoint / "run.yaml").write_text("\x1b]0;title\x07")
    seal(checkpoint)
    with pytest.raises(SystemExit) as stopped:
        main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "model")])
    printed = capsys.readouterr().err
    assert stopped.value.code == 2
    assert str(checkpoint) in printed
    assert "\x1b" not in printed and "Traceback" not in printed


@pytest.mark.slow
def test_an_honest_run_of_this_kind_is_exported(checkpoint, data, tmp_path):
    """The tests above fail for the reason they give, not for another one."""
    seal(checkpoint)
    with open_world("cpu") as world:
        assert export(tmp_path / "run", tmp_path / "model", world) == (2, [])
    assert train_here(tiny_run(data, steps=4), tmp_path / "run")
