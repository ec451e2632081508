"""The example package, as its users meet it: installed by pip, used by the commands."""

import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.one_process import run_each
from support.registrations import (
    EXAMPLE,
    environment_with,
    install_example,
    run_gidd,
    temporary_registrations,
    write_package,
)
from support.sampling_worlds import blank_state
from support.size import code_lines
from support.training_runs import reported

import gidd
from gidd.cli import main
from gidd.diffusion.schedules import FunctionalSchedule, MaskedSchedule, UniformSchedule
from gidd.diffusion.times import sine_times
from gidd.errors import CheckpointError, ConfigError
from gidd.evaluation import evaluate_samples
from gidd.evaluation.sample_files import TextSample
from gidd.models import load
from gidd.sampling.predict import NetworkPredict
from gidd.training.checkpoints.folder import steps_in
from gidd.vocab import Vocab

LAST = "checkpoints/step-000000010"
TRAIN = (
    ("train", "nano", "--noise", "drifting", "--weighting", "faded", "--weighting.power", "0.5")
    + ("--objective", "guessed", "--objective.fraction", "0.2")
    + ("--optimizer", "nadam", "--optimizer.momentum-decay", "0.01")
    + ("--backbone", "conv", "--backbone.width", "16", "--backbone.num-layers", "2")
    + ("--data.sources", "sums", "--data.tokenizer", "270", "--data.length", "32", "--quiet")
    + ("--train.steps", "10", "--train.save-every", "4", "--train.report-every", "1")
    + ("--train.global-batch", "4", "--train.evaluate-samples", "4")
    + ("--train.generate-samples", "0")
)  # fmt: skip
MEASURE = ("--num-samples", "3", "--length", "16", "--steps", "4")
MEASURE += ("--metric", "right-sums", "--metric.tolerance", "300")
STOP_IN_STEP_6 = """
import sys
from gidd.cli import main
from gidd.training import loop
from support.kill_training import stop_at

stop_at(loop, "update", calls=6, after=True)
main(sys.argv[1:])
"""
USE = """
import gidd
pipe = gidd.from_pretrained("model")
options = {"sampler": "left-to-right", "sampler_options": {"at_least": 2}}
assert len(pipe.generate(n=2, length=16, steps=4, **options)) == 2
print(pipe.score("12 + 7 = 19", nodes=2, repeats=2).nelbo)
"""


REQUIRED_OPTION = """
import gidd

@gidd.register("step", "works")
def works(schedule, s, t, state, predict, *, width: int): ...
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with the installed example."""
    return install_example(tmp_path_factory.mktemp("site"))


@pytest.fixture
def example(monkeypatch):
    """The modules of the example in this process, which forgets its components afterwards."""
    monkeypatch.syspath_prepend(EXAMPLE / "src")
    with temporary_registrations():
        yield importlib.import_module("gidd_example")
        for name in [name for name in sys.modules if name.partition(".")[0] == "gidd_example"]:
            del sys.modules[name]


def ran(*words, site=None, cwd=None) -> str:
    done = run_gidd(*words, site=site, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(*commands, cwd) -> list[str]:
    """What commands without the example print: each one message, without a traceback."""
    messages = []
    for done in run_each(commands, environment_with(None), cwd):
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert done.stderr.startswith("gidd: ") and "Traceback" not in done.stderr
        messages.append(done.stderr)
    return messages


@pytest.mark.slow
def test_help_shows_the_parts_and_their_options(site):
    """Without the package it shows none of them: tests/common/test_parts_by_name.py."""
    shown = ran("train", "nano", "--noise", "drifting", "--help", site=site)
    names = ("drifting", "faded", "conv", "guessed", "nadam", "--noise.random-fraction")
    for name in names:
        assert re.search(rf"(?<!\w){name}\b", shown), name
    assert "Fraction r of random tokens in the noise at t = 0" in shown


@pytest.mark.slow
def test_the_corpus_is_listed_if_and_only_if_the_package_is_installed(site, capsys):
    assert re.search(r"\bsums\b.*additions", ran("data", "list", site=site))
    main(["data", "list"])
    shown = capsys.readouterr().out
    assert "sotu" in shown and "sums" not in shown


@pytest.mark.slow
def test_a_run_of_registered_parts_is_resumed_exported_loaded_and_refused_without_them(
    site, tmp_path
):
    command = [sys.executable, "-c", STOP_IN_STEP_6, *TRAIN, "--out", "killed"]
    with subprocess.Popen(command, env=environment_with(site), cwd=tmp_path) as child:
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    killed, undisturbed = tmp_path / "killed", tmp_path / "undisturbed"
    assert steps_in(killed / "checkpoints") == [4]
    shutil.copytree(killed, tmp_path / "stopped")
    sample = ("sample", "model", "--length", "16", "--steps", "4", "--sampler", "left-to-right")
    commands = [
        (*TRAIN, "--out", "undisturbed"),
        (*TRAIN, "--out", "killed"),
        ("export", "killed", "--out", "model"),
        (*sample, "--sampler.at-least", "2"),
        ("python", USE),
        ("eval", "samples", "model", *MEASURE, "--out", "metric.json"),
    ]
    done = run_each(commands, environment_with(site), tmp_path)
    assert all(each.returncode == 0 for each in done), [each.stderr for each in done]
    assert reported(killed) == reported(undisturbed)
    ours, theirs = (saved_tensors(run / LAST) for run in (killed, undisturbed))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)

    *_, sampled, used, _ = done
    measured = json.loads((tmp_path / "metric.json").read_text())
    assert measured["manifest"]["metric"] == {
        "kind": "right-sums",
        "package": "gidd-example 0.1.0",
        "tolerance": 300,
    }
    assert measured["measurements"]["right-sums"]["num_samples"] <= 3
    assert all("right-sums" in row for row in measured["rows"])
    assert sampled.stdout
    assert float(used.stdout) > 0

    # without the package a run is not resumed, by any of the commands that could
    yaml = "stopped/checkpoints/step-000000004/run.yaml"
    again, foreign, same, exported, loaded = refused(
        ("train", yaml, "--out", "stopped"),
        ("train", "nano", "--data.folder", "stopped/data", "--out", "stopped"),
        (*TRAIN, "--out", "stopped"),
        ("export", "killed", "--out", "other"),
        ("sample", "model"),
        cwd=tmp_path,
    )
    assert "record.json" in foreign
    assert "'guessed'" in same
    assert "delete" not in exported  # the checkpoint is not damaged
    assert "model/gidd.json" in loaded
    assert all("backbone 'conv'" in message for message in (again, exported, loaded))
    assert all("gidd-example 0.1.0" in each for each in (again, foreign, exported, loaded))


def saved_tensors(checkpoint):
    """Weights and optimiser state."""
    (file,) = checkpoint.glob("*.safetensors")
    return load_file(file)


@pytest.mark.slow
def test_a_package_that_cannot_be_imported_is_reported_once_and_left_out(tmp_path):
    write_package(tmp_path, "broken", "raise RuntimeError('no such device')")
    write_package(tmp_path, "works", REQUIRED_OPTION)
    done = run_gidd("sample", "--help", site=tmp_path)
    assert done.returncode == 0
    (warning,) = done.stderr.splitlines()
    for component in ("gidd: warning", "broken 1.0", "RuntimeError", "no such device"):
        assert component in warning
    assert "works" in done.stdout


@pytest.mark.slow
def test_a_required_option_is_asked_for_by_the_command(tmp_path):
    write_package(tmp_path, "works", REQUIRED_OPTION)
    shown = ran("sample", "--sampler", "works", "--help", site=tmp_path)
    assert "--sampler.width INT" in shown and "(required)" in shown
    done = run_gidd("sample", "model", "--sampler", "works", site=tmp_path)
    assert done.returncode == 2 and "--sampler.width" in done.stderr + done.stdout


@pytest.mark.slow
def test_a_name_that_is_not_installed_is_refused_with_its_option(tmp_path):
    commands = ("train", "nano", "--noise", "drifting"), ("sample", "m", "--sampler", "drift")
    for words, message in zip(commands, refused(*commands, cwd=tmp_path), strict=True):
        assert words[2] in message and f"got '{words[3]}'" in message
        assert "package" in message


@pytest.mark.slow
def test_two_packages_with_one_name_are_reported(tmp_path):
    code = "import gidd\n@gidd.register('step', 'same')\ndef {}(): ...\n"
    for name in ("first", "second"):
        write_package(tmp_path, name, code.format(name))
    done = run_gidd("sample", "--help", site=tmp_path)
    assert done.returncode == 0 and "same" in done.stdout
    assert "'same' in first 1.0" in done.stderr or "'same' in second 1.0" in done.stderr


def test_the_inflow_of_drifting_noise_is_that_of_its_marginals(example):
    vocab, t = Vocab(5, mask_id=4), sine_times(20)[1:-1]
    for fraction in (0.0, 0.3, 1.0):
        schedule = example.noise.DriftingSchedule(vocab, fraction)
        derived = FunctionalSchedule(vocab, schedule.alpha, schedule.beta_pi)
        torch.testing.assert_close(schedule.inflow(t), derived.inflow(t), rtol=1e-10, atol=1e-12)


def test_left_to_right_fills_the_leftmost_masks(example):
    class Network:
        uses_time = True

        def hidden(self, z, t):
            return torch.zeros(*z.shape, 1)

        def distribution(self, hidden):
            return torch.tensor([1.0, 0.0, 0.0]).expand(len(hidden), 3)

    vocab = Vocab(3, mask_id=2)
    state = blank_state(MaskedSchedule(vocab), 2, 8)
    state.protected[1, 0] = True
    state.tokens[1, 0] = 1
    t = torch.ones(2, dtype=torch.float64)
    predict = NetworkPredict(Network(), vocab.size, 2)
    step, late_step = example.sampler.LeftToRight(), example.sampler.LeftToRight(at_least=1)
    output = step(MaskedSchedule(vocab), 0.5 * t, t, state, predict)
    # masks expected at s = 1/2: 4 of 8 free positions, 3.5 -> 4 of 7
    assert output.tokens.tolist() == [[0, 0, 0, 0, 2, 2, 2, 2], [1, 0, 0, 0, 2, 2, 2, 2]]
    assert output.probability[0].tolist() == [1, 1, 1, 1, 0, 0, 0, 0]
    late = late_step(MaskedSchedule(vocab), t, t, state, predict)
    assert late.tokens[:, :2].tolist() == [[0, 2], [1, 0]]


def test_the_importer_reads_the_layout(example, tmp_path):
    config = example.network.ConvConfig(vocab_size=7, max_length=8, width=4, num_layers=1, reach=1)
    network, sizes = config.build(), asdict(config)
    save_file(network.state_dict(), tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "conv", **sizes}))
    model = load(tmp_path)
    assert (model.schedule, model.denoiser.backbone.config) == (UniformSchedule(Vocab(7)), config)
    z, t = torch.arange(6)[None], torch.tensor([0.5])
    assert torch.equal(model.denoiser.hidden(z, t), network.hidden(z, t))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "conv", **sizes, "reach": -1}))
    with pytest.raises(CheckpointError, match="reach"):
        load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "other"}))
    with pytest.raises(CheckpointError, match="gidd-scaling, .*conv, got model_type 'other'"):
        load(tmp_path)


def test_the_metric_counts_right_sums(example):
    texts = ["1 + 2 = 3\n4 + 4 = 9", "no sum", "2 + 2 = 4"]
    characters = [TextSample(text, tuple(map(ord, text))) for text in texts]
    result = evaluate_samples(characters, metric="right-sums")
    assert result.measurements["right-sums"].value == 0.75
    assert result.measurements["right-sums"].num_samples == 2
    tolerant = gidd.component("metric", "right-sums", tolerance=1)
    assert evaluate_samples(characters, metric=tolerant).measurements["right-sums"].value == 1


KINDS_OF_FILES = ("importer", "metric", "objective", "optimizer")


@pytest.mark.parametrize("name", KINDS_OF_FILES)
def test_a_component_takes_at_most_15_lines(name):
    """Lines of code from the registration on, without docstrings."""
    source = (EXAMPLE / "src" / "gidd_example" / f"{name}.py").read_text()
    code = "import gidd\n\n\n@gidd.register" + source.partition("@gidd.register")[2]
    assert code_lines(code) <= 15


def test_left_to_right_is_checked_before_sampling(example):
    with pytest.raises(ConfigError, match="at_least .*got -1"):
        example.sampler.LeftToRight(at_least=-1)
    example.sampler.LeftToRight().check(MaskedSchedule(Vocab(3, mask_id=2)), 1.0)
    with pytest.raises(ConfigError, match="masks at t = 1"):
        example.sampler.LeftToRight().check(UniformSchedule(Vocab(3)), 1.0)
