"""A step whose loss or gradient is not finite changes nothing; the host learns of it later."""

import re
from dataclasses import replace

import pytest
import torch
from support.ranks import run_ranks
from support.training_runs import final_tensors, reported, speeches, tiny_run, train_here
from torch.distributed.tensor import DTensor

from gidd.data.batch import Batch
from gidd.errors import TrainingDiverged
from gidd.training import loop
from gidd.training.build import build_state
from gidd.training.objectives import nelbo_objective
from gidd.training.parallel import DDP, FSDP
from gidd.training.world import open_world
from gidd.vocab import Vocab

VOCAB = Vocab(40, mask_id=39)
BAD_STEP = 3


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return speeches(tmp_path_factory.mktemp("data"), vocab_size=300, documents=20)


class InfiniteGradient(torch.autograd.Function):
    """The identity, but for its derivative."""

    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient * torch.inf


def objective_with(kind):
    """The objective with a bad loss, or a bad gradient of a good loss, in one step."""

    def objective(denoiser, noisy):
        found = nelbo_objective(denoiser, noisy)
        if noisy.step != BAD_STEP or kind == "good":
            return found
        loss = found.loss * torch.nan if kind == "loss" else InfiniteGradient.apply(found.loss)
        return found._replace(terms=found.terms._replace(loss=loss))

    return objective


def contents(state):
    """A copy of weights, moments and step counters."""
    tensors = {name: tensor for name, tensor in state.tensors().items() if name[:4] != "ema."}
    for number, moments in enumerate(state.optimizers[-1].state.values()):
        tensors[f"counter {number}"] = moments["step"]
    return {
        name: (tensor.to_local() if isinstance(tensor, DTensor) else tensor).clone()
        for name, tensor in tensors.items()
    }


def diverge(kind, parallel):
    """Take good steps, a bad one that is bad on the last rank only, and good ones again."""
    torch.set_num_threads(1)
    run = replace(tiny_run(None, steps=10, ema_decay=0.9), parallel=parallel)
    with open_world("cpu", 600) as world:
        state = build_state(run, VOCAB, world)
        state.objective = objective_with(kind if world.rank == world.size - 1 else "good")
        own = 8 // world.size
        numbers = torch.arange(own) + own * world.rank
        tokens = torch.arange(16).expand(own, 16) + numbers[:, None]
        batch = Batch(tokens, tokens >= 0, numbers)
        for _ in range(BAD_STEP):
            found = loop.gradients(run, world, state, batch)
            loop.update(run, state, found)
            found.read()
        before = contents(state)
        assert before["counter 0"] == BAD_STEP
        bad = loop.gradients(run, world, state, batch)
        loop.update(run, state, bad)
        good = loop.gradients(run, world, state, batch)
        loop.update(run, state, good)
        good.read()
        for name, tensor in contents(state).items():
            assert torch.equal(tensor, before[name]), name
        with pytest.raises(TrainingDiverged) as caught:
            bad.read()
        return str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "parallel", "loss"), [("loss", DDP(), "nan"), ("gradient", FSDP(), r"\d+\.\d+")]
)
def test_a_bad_step_leaves_weights_moments_and_counters_as_they_were(kind, parallel, loss):
    message = diverge(kind, parallel)
    assert re.match(rf"step 3: the loss is {loss} and the gradient norm is (nan|inf)", message)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", [DDP(), FSDP()], ids=["ddp", "fsdp"])
def test_a_step_that_is_bad_on_one_rank_is_bad_on_all(parallel):
    for message in run_ranks(diverge, 2, "gradient", parallel):
        assert message.startswith(f"step {BAD_STEP}: the loss is ")


@pytest.mark.slow
@pytest.mark.parametrize(("save_every", "saved"), [(2, [2]), (100, [])])
def test_a_run_that_diverges_saves_nothing_after_it(save_every, saved, data, tmp_path, monkeypatch):
    """With nothing to report or save, the run has begun another step when it learns of it."""
    run = tiny_run(data, steps=8, save_every=save_every, report_every=100)
    monkeypatch.setattr("gidd.training.objectives.nelbo_objective", objective_with("loss"))
    with pytest.raises(TrainingDiverged, match=rf"^step {BAD_STEP}: the loss is nan"):
        train_here(run, tmp_path)
    names = sorted(path.name for path in (tmp_path / "checkpoints").glob("step-*"))
    assert names == [f"step-{step:09d}" for step in saved]
    monkeypatch.undo()
    assert train_here(run, tmp_path)
    assert train_here(run, tmp_path / "undisturbed")
    assert reported(tmp_path) == reported(tmp_path / "undisturbed")
    ours, theirs = final_tensors(run, tmp_path), final_tensors(run, tmp_path / "undisturbed")
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())


def test_statistics_are_read_one_step_late_or_where_they_are_needed(data, tmp_path, monkeypatch):
    """The host does not wait for the step that the device computes."""
    events = []
    update, read = loop.update, loop.Gradients.read

    def noted_update(run, state, found):
        events.append(f"update {state.step}")
        return update(run, state, found)

    def noted_read(self):
        events.append(f"read {self.step}")
        return read(self)

    monkeypatch.setattr(loop, "update", noted_update)
    monkeypatch.setattr(loop.Gradients, "read", noted_read)
    assert train_here(tiny_run(data, steps=6, report_every=4), tmp_path)
    expected = ["update 0", "update 1", "read 0", "update 2", "read 1", "update 3", "read 2"]
    expected += ["read 3", "update 4", "update 5", "read 4", "read 5"]
    assert events == expected


@pytest.mark.slow
def test_a_stop_is_honoured_within_one_more_step(data, tmp_path, monkeypatch):
    run = tiny_run(data, steps=8, report_every=4, save_every=100, ema_decay=0.9)
    assert train_here(run, tmp_path / "whole")
    working = loop.gradients
    monkeypatch.setattr(
        loop,
        "gradients",
        lambda run, world, state, batch, _: working(run, world, state, batch, state.step == 1),
    )
    assert not train_here(run, tmp_path / "stopped")
    assert [path.name for path in (tmp_path / "stopped" / "checkpoints").glob("step-*")] == [
        "step-000000003"
    ]
    monkeypatch.undo()
    assert train_here(run, tmp_path / "stopped")
    assert reported(tmp_path / "stopped") == reported(tmp_path / "whole")
    ours, theirs = (final_tensors(run, tmp_path / name) for name in ("stopped", "whole"))
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())
