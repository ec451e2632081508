"""Callbacks of a training run, the profile, and torch's generators between steps."""

import json

import pytest
import torch
from support.training_runs import speeches

import gidd
from gidd.cli.train import main
from gidd.errors import ConfigError
from gidd.training.reporting.profile import ACTIVE, WAIT

TINY = gidd.component("backbone", "dit", width=16, num_layers=1, num_heads=2, time_width=8)
SETTINGS = {"length": 16, "global_batch": 4, "evaluate_samples": 4, "generate_samples": 0}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return speeches(tmp_path_factory.mktemp("data"), documents=8)


def train(out, data, **changes):
    settings = {"model": TINY, "steps": 4, "save_every": 2, "quiet": True, "device": "cpu"}
    return gidd.train(out, data=data, **settings | SETTINGS | changes)


def weights(pipe) -> dict[str, torch.Tensor]:
    return dict(pipe.denoiser.state_dict())


def freeze_and_raise_times(state, metrics):
    """The embedding is trained from step 2 on, and the density of times changes in each step."""
    state.model.network.embedding.requires_grad_(state.step >= 2)
    state.corrupt.time_power = 1.0 + state.step


class Interrupt(Exception):
    pass


def test_a_resumed_run_with_a_callback_is_the_same(data, tmp_path):
    calls = []

    def note(state, metrics):
        calls.append((state.step, sorted(metrics)[:3]))

    expected = train(tmp_path / "a", data, callbacks=[freeze_and_raise_times, note])
    assert [step for step, _ in calls] == [0, 1, 2, 3, 4]
    assert calls[0][1] == [] and "grad_norm" in calls[1][1]
    assert weights(expected).keys() == weights(plain := train(tmp_path / "b", data)).keys()
    assert any(not torch.equal(w, weights(plain)[k]) for k, w in weights(expected).items())

    def interrupt(state, metrics):
        if state.step == 3:
            raise Interrupt

    with pytest.raises(Interrupt):
        train(tmp_path / "c", data, callbacks=[freeze_and_raise_times, interrupt])
    calls.clear()
    resumed = train(tmp_path / "c", data, callbacks=[freeze_and_raise_times, note])
    assert [step for step, _ in calls] == [2, 3, 4]
    assert all(torch.equal(w, weights(expected)[k]) for k, w in weights(resumed).items())


def test_a_frozen_parameter_stays_as_it_is(data, tmp_path):
    first = {}

    def freeze(state, metrics):
        embedding = state.model.network.embedding.requires_grad_(False)
        first.setdefault("embedding", embedding.weight.detach().clone())

    pipe = train(tmp_path, data, callbacks=[freeze])
    assert torch.equal(pipe.denoiser.backbone.embedding.weight, first["embedding"])


def test_dropout_leaves_torchs_generator_as_it_is_in_every_step(data, tmp_path):
    states = []

    def note(state, metrics):
        states.append(torch.get_rng_state())

    torch.manual_seed(3)
    train(tmp_path, data, model=TINY.changed(dropout=0.5), callbacks=[note])
    assert len(states) == 5 and all(torch.equal(each, states[0]) for each in states)


def test_a_profile_is_one_file_with_the_operators_of_some_steps(data, tmp_path):
    steps = WAIT + ACTIVE
    sizes = "--backbone.width 16 --backbone.num-layers 1 --backbone.num-heads 2"
    command = f"nano {sizes} --data.folder {data} --data.length 16 --train.steps {steps}"
    command += " --optim.warmup 1 --train.global-batch 4 --train.evaluate-samples 4 --quiet"
    command += f" --train.generate-samples 0 --device cpu --out {tmp_path / 'run'}"
    main([*command.split(), "--profile", str(tmp_path / "trace.json")])
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    numbered = {event["name"] for event in events if "ProfilerStep" in event.get("name", "")}
    assert len(numbered) == ACTIVE
    assert any(event.get("name") == "aten::mm" for event in events)
    with pytest.raises(ConfigError, match=r"--profile needs steps, but .*run is complete"):
        main([*command.split(), "--profile", str(tmp_path / "again.json")])
    short = command.replace("--train.steps 6", "--train.steps 5").replace("/run", "/short")
    with pytest.raises(ConfigError, match=r"--profile needs at least 6 steps, got 5"):
        main([*short.split(), "--profile", str(tmp_path / "again.json")])
    assert not (tmp_path / "again.json").exists()
