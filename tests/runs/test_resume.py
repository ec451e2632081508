"""A run that was interrupted and resumed ends with the bits of an uninterrupted one."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
import torch
from support.ranks import run_ranks
from support.training_runs import final_tensors, losses, reported, speeches, tiny_run, train_here

import gidd.runs.fit
from gidd.cli import main
from gidd.data.preparation.prepare import prepare
from gidd.data.tokenizers import Tokenizer, train_tokenizer
from gidd.errors import ConfigError, DataError
from gidd.runs.evaluate import build_evaluation
from gidd.training import loop
from gidd.training.parallel import DDP, FSDP
from gidd.training.recorded import newest_run
from gidd.training.watchdog import STOPPED

STEPS = 60


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return speeches(tmp_path_factory.mktemp("data"), vocab_size=300, documents=40)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, data):
    out = tmp_path_factory.mktemp("undisturbed")
    run_ranks(train_here, 1, resumable(data), out)
    return out


def resumable(data, **changes):
    # reports every third step: sums between reports must be restored, too
    settings = {"steps": STEPS, "save_every": 23, "report_every": 3, "ema_decay": 0.9, "keep": 5}
    return tiny_run(data, **(settings | changes))


def train_and_die(run, out, step, parallel=None):
    """Train until the checkpoint of a step can be seen; then kill -9 this process."""

    def watch():
        while not (out / "checkpoints" / f"step-{step:09}").exists():
            time.sleep(0.002)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    train_here(run, out, parallel)


def kill_after(run, out, step, size=1, parallel=None):
    with pytest.raises(AssertionError, match="died without a result"):
        run_ranks(train_and_die, size, run, out, step, parallel)


@pytest.mark.slow
def test_resume_is_exact_to_the_last_bit(data, undisturbed, tmp_path):
    run = resumable(data)
    kill_after(run, tmp_path, 23)
    run_ranks(train_here, 1, run, tmp_path)
    assert reported(tmp_path) == reported(undisturbed)
    ours, theirs = final_tensors(run, tmp_path), final_tensors(run, undisturbed)
    assert ours.keys() == theirs.keys()
    assert any(name.startswith("ema.") for name in ours)
    for name, tensor in theirs.items():
        assert torch.equal(ours[name], tensor), name


@pytest.mark.long
def test_resume_by_blocks_is_exact_on_other_numbers_of_ranks(data, tmp_path):
    """The samples, and so the losses, of blocks and windows, over several epochs."""
    run = resumable(data, save_every=15)
    run = replace(run, data=replace(run.data, shuffle="blocks"))
    run_ranks(train_here, 1, run, tmp_path / "undisturbed")
    kill_after(run, tmp_path / "killed", 15)
    kill_after(run, tmp_path / "killed", 30, 2, FSDP())
    with pytest.raises(ConfigError, match=r"data\.shuffle: blocks -> full"):
        train_here(resumable(data), tmp_path / "killed")
    run_ranks(train_here, 1, run, tmp_path / "killed", DDP())
    ours, theirs = losses(tmp_path / "killed"), losses(tmp_path / "undisturbed")
    assert len(ours) == STEPS // 3
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=0)


@pytest.mark.slow
def test_precision_is_chosen_by_the_device_and_kept_on_another(data, tmp_path, monkeypatch):
    def train_on(has_bf16, out, **changes):
        monkeypatch.setattr(gidd.runs.fit, "has_bf16", lambda device: has_bf16)
        changes = {"autocast": None, "evaluate_every": 9, "save_every": 9} | changes
        train_here(tiny_run(data, **changes), out)
        return newest_run(out / "checkpoints").train.autocast

    assert train_on(False, tmp_path / "a", steps=1) is False
    assert train_on(True, tmp_path / "a", steps=2) is False
    assert train_on(True, tmp_path / "b", steps=1) is True
    assert train_on(False, tmp_path / "b", steps=2) is True
    with pytest.raises(ConfigError, match=r"train.autocast: True -> False"):
        train_on(True, tmp_path / "b", steps=3, autocast=False)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [[2], pytest.param([2, 4], marks=pytest.mark.long)], ids=str)
def test_resume_on_other_numbers_of_ranks(sizes, data, undisturbed, tmp_path):
    run = resumable(data, save_every=15)
    kill_after(run, tmp_path, 15)
    for step, size in zip((30, 45), sizes, strict=False):
        kill_after(run, tmp_path, step, size, FSDP())
    run_ranks(train_here, 1, run, tmp_path, DDP())
    ours, theirs = losses(tmp_path), losses(undisturbed)
    assert len(ours) == STEPS // 3
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=0)


def test_a_finished_run_stays_as_it_is(data, undisturbed):
    before = reported(undisturbed)
    run_ranks(train_here, 1, resumable(data), undisturbed)
    assert reported(undisturbed) == before


def test_other_settings_are_refused(data, undisturbed):
    run = resumable(data)
    other = replace(run, optim=replace(run.optim, beta2=0.5, weight_decay=0.5))
    with pytest.raises(ConfigError, match=r"(?s)beta2.*weight_decay.*another --out"):
        train_here(other, undisturbed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda run: replace(run, backbone=run.backbone.changed(width=64)),
            "backbone.width: 32 -> 64",
        ),
        (
            lambda run: replace(run, train=replace(run.train, ema_decay=None)),
            "train.ema_decay: 0.9 -> None",
        ),
    ],
)
def test_another_model_is_refused_by_its_settings(change, message, data, undisturbed):
    with pytest.raises(ConfigError, match=message):
        train_here(change(resumable(data)), undisturbed)


@pytest.mark.slow
def test_a_diverged_run_resumes_with_a_lower_learning_rate(data, tmp_path):
    run = resumable(data, steps=2, save_every=1)
    train_here(run, tmp_path)
    longer = replace(run, train=replace(run.train, steps=4))
    lower = replace(
        longer.optim, learning_rate=1e-5, warmup=7, final_lr_ratio=0.2, max_grad_norm=0.5
    )
    assert train_here(replace(longer, optim=lower), tmp_path)
    assert reported(tmp_path)[-2]["learning_rate"] == pytest.approx(1e-5 * 4 / 7)


def test_another_tokenizer_of_the_same_size_is_refused(data, undisturbed, tmp_path):
    files = [tmp_path / name for name in ("one.txt", "two.txt")]
    for number, file in enumerate(files):
        file.write_text(" ".join(f"word{number + i} zebra" for i in range(500)))
    tokenizer = train_tokenizer(files, 300)
    assert tokenizer.vocab == Tokenizer.load(data).vocab
    prepare(files, tokenizer, tmp_path / "data", validation=1, quiet=True)
    run = resumable(data)
    other = replace(run, data=replace(run.data, folder=tmp_path / "data"))
    with pytest.raises(DataError, match=r"(?s)tokenizer.*another --out"):
        train_here(other, undisturbed)


@pytest.mark.slow
def test_resume_with_dropout_is_exact_to_the_last_bit(data, tmp_path):
    run = tiny_run(data, steps=12, save_every=5)
    run = replace(run, backbone=run.backbone.changed(dropout=0.2))
    run_ranks(train_here, 1, run, tmp_path / "undisturbed")
    kill_after(run, tmp_path / "killed", 5)
    run_ranks(train_here, 1, run, tmp_path / "killed")
    assert reported(tmp_path / "killed") == reported(tmp_path / "undisturbed")
    ours, theirs = (final_tensors(run, tmp_path / name) for name in ("killed", "undisturbed"))
    for name, tensor in theirs.items():
        assert torch.equal(ours[name], tensor), name


def fail_in_evaluation(run, out, step, parallel=None):
    """Train until the evaluation of a step, which fails on all ranks."""

    def build(*args):
        working = build_evaluation(*args)

        def evaluate(state):
            if state.step == step:
                raise ZeroDivisionError("the evaluation fails")
            return working(state)

        return evaluate

    gidd.runs.fit.build_evaluation = build
    try:
        train_here(run, out, parallel)
    finally:
        gidd.runs.fit.build_evaluation = build_evaluation


@pytest.mark.parametrize(
    ("ranks", "parallel", "failures"),
    [
        (1, DDP(), (4, 8)),
        pytest.param(2, FSDP(), (4, 8), marks=pytest.mark.long),
    ],
)
def test_an_evaluation_that_fails_loses_no_step_and_is_repeated(
    data, tmp_path, ranks, parallel, failures
):
    """Also that of the last step, after which nothing is left to train."""
    run = tiny_run(data, steps=8, save_every=4, evaluate_every=4, ema_decay=0.9)
    whole, failed = tmp_path / "whole", tmp_path / "failed"
    run_ranks(train_here, ranks, run, whole, parallel)
    for step in failures:
        with pytest.raises(AssertionError, match="the evaluation fails"):
            run_ranks(fail_in_evaluation, ranks, run, failed, step, parallel)
        assert (failed / "checkpoints" / f"step-{step:09}").exists()
        assert reported(failed)[-1]["kind"] == "training"
        assert reported(failed)[-1]["step"] == step
    assert run_ranks(train_here, ranks, run, failed, parallel) == [True] * ranks
    assert reported(failed) == reported(whole)
    ours, theirs = final_tensors(run, failed), final_tensors(run, whole)
    for name, tensor in theirs.items():
        assert torch.equal(ours[name], tensor), name


@pytest.mark.slow
def test_a_run_that_is_stopped_where_it_evaluates_saves_first_and_evaluates_later(
    data, tmp_path, monkeypatch
):
    """A scheduler grants seconds after SIGTERM: they are for the save."""
    run = tiny_run(data, steps=8, save_every=100, evaluate_every=4)
    assert train_here(run, tmp_path / "whole")
    working = loop.gradients

    def gradients(run, world, state, batch, stop_requested):
        return working(run, world, state, batch, stop_requested=state.step == 3)

    monkeypatch.setattr(loop, "gradients", gradients)
    assert not train_here(run, tmp_path / "stopped")
    assert [line["kind"] for line in reported(tmp_path / "stopped")] == ["training"] * 4
    monkeypatch.undo()
    assert train_here(run, tmp_path / "stopped")
    assert reported(tmp_path / "stopped") == reported(tmp_path / "whole")


@pytest.mark.slow
def test_how_often_it_reports_and_saves_may_change(data, tmp_path):
    train_here(resumable(data, steps=6, save_every=3), tmp_path)
    assert train_here(resumable(data, steps=12, save_every=4, report_every=2), tmp_path)
    assert [r["step"] for r in reported(tmp_path) if r["kind"] == "training"] == [3, 6, 8, 10, 12]
    saved = sorted(path.name for path in (tmp_path / "checkpoints").glob("step-*"))
    assert saved == [f"step-{step:09d}" for step in (3, 6, 8, 12)]


@pytest.mark.slow
def test_sigterm_saves_and_ends_with_a_status_of_its_own(data, tmp_path):
    """The real command: stopped and resumed, it ends with the same metrics."""

    def train(out):
        words = ["train", "nano", "--data.folder", str(data), "--out", str(tmp_path / out)]
        words += ["--train.steps", "10", "--train.global-batch", "4", "--data.length", "16"]
        words += ["--train.report-every", "1", "--train.evaluate-samples", "4", "--device", "cpu"]
        words += ["--backbone.width", "32", "--backbone.num-layers", "2"]
        return [*words, "--backbone.num-heads", "2", "--train.generate-samples", "0"]

    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "support.stop_rank", "0", "5", *train("stopped")]
    process = subprocess.Popen(command, env=environment)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    process.send_signal(signal.SIGTERM)  # it is delivered when the process goes on
    process.send_signal(signal.SIGCONT)
    assert process.wait(300) == STOPPED
    assert 5 <= len(losses(tmp_path / "stopped")) < 10
    for out in ("stopped", "undisturbed"):
        run_ranks(main, 1, train(out))
    assert reported(tmp_path / "stopped") == reported(tmp_path / "undisturbed")
