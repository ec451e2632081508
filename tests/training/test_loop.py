"""The training loop: it learns, stops before a bad update, and can be exported and compiled."""

import itertools
import json
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.cases import few
from support.training_runs import final_tensors, losses, reported, speeches, tiny_run, train_here

import gidd.runs.fit
from gidd.cli import main
from gidd.common.config.components import component
from gidd.data.tokenizers import Tokenizer
from gidd.errors import DataError, TrainingDiverged
from gidd.models import load_pretrained
from gidd.runs.data import ensure_prepared
from gidd.runs.presets import hybrid
from gidd.training.build import build_state
from gidd.training.checkpoints import Checkpoints, manager
from gidd.training.checkpoints.tensors import write_tensors
from gidd.training.config import DataConfig, Diffusion
from gidd.training.loop import dropout_seed
from gidd.training.parallel import FSDP
from gidd.training.world import open_world


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return speeches(tmp_path_factory.mktemp("data"), vocab_size=300, documents=20)


OBJECTIVES = {
    "hybrid": Diffusion(noise=hybrid(0.2)),
    "masked": Diffusion(noise=hybrid(0.0)),
    "uniform": Diffusion(
        noise=component("schedule", "uniform"), weighting=component("weighting", "clamp", w_max=1.0)
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", few(OBJECTIVES, every=3))
def test_every_objective_learns(name, data, tmp_path):
    run = replace(
        tiny_run(data, steps=120, evaluate_every=40, evaluate_samples=64),
        objective=OBJECTIVES[name],
    )
    run = replace(run, optim=replace(run.optim, learning_rate=1e-2))
    assert train_here(run, tmp_path)
    first, *_, last = [line for line in reported(tmp_path) if line["kind"] == "evaluation"]
    assert last["nelbo"] < first["nelbo"]
    curve = losses(tmp_path)
    assert curve[-20:].mean() < 0.95 * curve[:20].mean()


def test_a_gradient_that_is_not_finite_stops_the_run_before_the_update(data, tmp_path, monkeypatch):
    """On real data: some weights are NaN, as a broken device might make them."""

    def broken(*args):
        state = build_state(*args)
        with torch.no_grad():
            state.model.network.embedding.weight[:, 1] = torch.nan
        return state

    monkeypatch.setattr(gidd.runs.fit, "build_state", broken)
    with pytest.raises(TrainingDiverged, match=r"(?s)step 0.*loss is nan.*optim.learning_rate"):
        train_here(tiny_run(data, save_every=5), tmp_path)
    assert not list((tmp_path / "checkpoints").glob("step-*"))


@pytest.mark.slow
@pytest.mark.parametrize("max_steps_ahead_of_save", [0, 3, 100])
def test_a_run_gets_no_further_ahead_of_a_checkpoint_than_asked(
    max_steps_ahead_of_save, data, tmp_path, monkeypatch
):
    """The first write ends when the run waits for it; a kill loses the steps until then."""
    reached = []
    has_saved, is_waiting = threading.Event(), threading.Event()
    save, wait = Checkpoints.save, Checkpoints.wait

    def noted_save(self, *args):
        save(self, *args)
        has_saved.set()

    def noted_wait(self):
        if has_saved.is_set():
            is_waiting.set()
        wait(self)

    def slow_write(*args):
        assert is_waiting.wait(300)
        reached.append(len(reported(tmp_path)))
        write_tensors(*args)

    monkeypatch.setattr(Checkpoints, "save", noted_save)
    monkeypatch.setattr(Checkpoints, "wait", noted_wait)
    monkeypatch.setattr(manager, "write_tensors", slow_write)
    run = tiny_run(data, steps=30, save_every=10, max_steps_ahead_of_save=max_steps_ahead_of_save)
    assert train_here(run, tmp_path)
    assert reached[0] == 10 + min(max_steps_ahead_of_save, 10)  # never beyond the next checkpoint


def test_masks_of_dropout_belong_to_seed_step_and_rank():
    seeds = {dropout_seed(*at) for at in itertools.product((0, 1, 2**31 - 1), range(9), range(9))}
    assert len(seeds) == 3 * 9 * 9
    assert max(seeds) < 2**32  # torch's CPU generator ignores higher bits


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sources": ("b.txt",)}, r"(?s)data.sources: .*a.txt.* -> .*b.txt"),
        ({"validation": 3}, "data.validation: 2 -> 3"),
        ({"tokenizer": 260}, "data.tokenizer: 259 -> 260"),
        ({"tokenizer": "gpt2"}, "data.tokenizer: 259 -> gpt2"),
    ],
)
def test_data_that_was_prepared_otherwise_is_not_used(change, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "b.txt"):
        Path(name).write_text("".join(f"{name} {i}\n\n" for i in range(10)))
    data = DataConfig(sources=("a.txt", "a.txt", "a.txt", "a.txt"), tokenizer=259, validation=2)
    with open_world("cpu") as world:
        folder = ensure_prepared(data, tmp_path, world, quiet=True)
    with open_world("cpu") as world:
        assert ensure_prepared(data, tmp_path, world, quiet=True) == folder
    with open_world("cpu") as world, pytest.raises(DataError, match=message):
        ensure_prepared(replace(data, **change), tmp_path, world, quiet=True)


@pytest.mark.slow
@pytest.mark.parametrize("ema", [None, 0.9])
def test_an_exported_model_is_the_trained_one(ema, data, tmp_path):
    run = tiny_run(data, ema_decay=ema)
    train_here(run, tmp_path)
    main(["export", str(tmp_path), "--out", str(tmp_path / "model")])
    trained, kind = final_tensors(run, tmp_path), "model" if ema is None else "ema"
    loaded = load_pretrained(tmp_path / "model")
    for name, tensor in loaded.denoiser.backbone.state_dict().items():
        assert torch.equal(tensor, trained[f"{kind}.denoiser.backbone.{name}"]), name
    assert loaded.schedule.p_uniform == 0.1
    assert loaded.summary["steps"] == run.train.steps
    assert Tokenizer.load(tmp_path / "model").vocab == loaded.denoiser.vocab


def test_initial_weights_do_not_depend_on_the_sharding(data):
    """The k-th parameter is drawn from (seed, k)."""
    run, vocab = tiny_run(data), Tokenizer.load(data).vocab
    with open_world("cpu") as world:
        whole = build_state(run, vocab, world).tensors()
        sharded = build_state(replace(run, parallel=FSDP()), vocab, world).tensors()
        other = build_state(replace(run, train=replace(run.train, seed=1)), vocab, world).tensors()
        for name, tensor in whole.items():
            assert torch.equal(sharded[name].full_tensor(), tensor)
    name = "model.denoiser.backbone.embedding.weight"
    assert not torch.equal(whole[name], other[name])


def test_no_data_no_gpu_no_network_dry_run(capsys):
    main(["train", "small-gidd-plus-0.1", "--dry-run", "--train.steps", "7"])
    printed = capsys.readouterr().out
    assert "169,627,218" in printed  # parameters of the paper's small model
    assert "steps: 7" in printed


def test_a_folder_that_is_not_there_is_named(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["train", "nano", "--data.folder", "nowhere"])
    assert "nowhere" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.long)])
def test_a_compiled_step_has_no_graph_break_and_the_same_losses(backend, data, tmp_path):
    """Blocks are compiled with fullgraph=True, which fails where a graph would break.

    Graphs and their derivatives do not depend on the backend; CI does not wait for a C++ compiler.
    """
    run = tiny_run(data, steps=5)
    train_here(run, tmp_path / "eager")
    compiled = tmp_path / "compiled"
    code = (
        "import sys, functools, torch; from support.training_runs import *\n"
        f"torch.compile = functools.partial(torch.compile, backend={backend!r})\n"
        f"run = tiny_run(Path({str(data)!r}), steps=5, compile=True)\n"
        f"train_here(run, Path({str(compiled)!r}))\n"
        "import json\n"
        "counters = torch._dynamo.utils.counters\n"
        "print(json.dumps([counters['stats']['unique_graphs'], counters['graph_break']]))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    graphs, breaks = json.loads(done.stdout.splitlines()[-1])
    assert graphs >= 1 and breaks == {}
    torch.testing.assert_close(losses(compiled), losses(tmp_path / "eager"), rtol=1e-4, atol=0)
