"""Registered optimizers are resumed to the last bit, sharded, and skip a step that diverged."""

from dataclasses import replace

import pytest
import torch
from support.ranks import run_ranks
from support.registrations import temporary_registrations
from support.training_runs import final_tensors, losses, reported, speeches, tiny_run, train_here

import gidd
from gidd.common.config.allowed import problems_of
from gidd.common.config.codec import to_plain
from gidd.common.config.components import component
from gidd.data.batch import Batch
from gidd.errors import ConfigError, TrainingDiverged
from gidd.training import loop
from gidd.training.build import build_state
from gidd.training.optim import OptimConfig, build_optimizers
from gidd.training.parallel import FSDP
from gidd.training.recorded import run_from_plain
from gidd.training.world import open_world
from gidd.vocab import Vocab

VOCAB = Vocab(40, mask_id=39)


class Counting(torch.optim.Optimizer):
    """Gradient descent whose rate falls with a number in its state, which is no tensor."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["calls"] = state.get("calls", 0) + 1
                parameter.add_(parameter.grad, alpha=-group["lr"] / state["calls"])


def sgd(network, optim, *, momentum: float = 0.9):
    return torch.optim.SGD(network.parameters(), lr=optim.learning_rate, momentum=momentum)


def nadam(network, optim):
    """It allocates its state in its first step."""
    return torch.optim.NAdam(network.parameters(), lr=optim.learning_rate)


def counting(network, optim):
    return Counting(network.parameters(), optim.learning_rate)


def register():
    for function in (sgd, nadam, counting):
        gidd.register("optimizer", function.__name__)(function)


@pytest.fixture(autouse=True)
def registered():
    with temporary_registrations():
        register()
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return speeches(tmp_path_factory.mktemp("data"), vocab_size=300, documents=20)


def run_with(name, data=None, **options):
    run = tiny_run(data, steps=6, save_every=2, ema_decay=0.9)
    return replace(run, optimizer=component("optimizer", name, **options))


def train_part(run, out, steps, parallel=None):
    """Train until a step, in a rank that stops there."""
    register()
    working = loop.gradients
    loop.gradients = lambda run, world, state, batch, _: working(
        run, world, state, batch, state.step == steps - 1
    )
    try:
        return train_here(run, out, parallel)
    finally:
        loop.gradients = working


def train_registered(run, out, parallel=None):
    register()
    return train_here(run, out, parallel)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adamw", "muon", "sgd", "nadam", "counting"])
def test_every_optimizer_is_resumed_to_the_last_bit(name, data, tmp_path):
    run = run_with(name, data)
    assert train_here(run, tmp_path / "whole")
    assert not train_part(run, tmp_path / "stopped", 3)
    assert train_here(run, tmp_path / "stopped")
    assert reported(tmp_path / "stopped") == reported(tmp_path / "whole")
    ours, theirs = (final_tensors(run, tmp_path / each) for each in ("stopped", "whole"))
    assert all(torch.equal(ours[key], tensor) for key, tensor in theirs.items())
    assert losses(tmp_path / "whole")[-1] < losses(tmp_path / "whole")[0]


@pytest.mark.long
@pytest.mark.parametrize(("name", "tolerance"), [("muon", 1e-3), ("adamw", 1e-4), ("nadam", 1e-4)])
def test_a_sharded_optimizer_is_resumed_and_matches_one_rank(name, tolerance, data, tmp_path):
    """Newton-Schulz iterations are computed in bfloat16, whose sums depend on the ranks."""
    run = run_with(name, data)
    run_ranks(train_registered, 1, run, tmp_path / "alone")
    run_ranks(train_registered, 2, run, tmp_path / "sharded", FSDP())
    run_ranks(train_part, 2, run, tmp_path / "stopped", 3, FSDP())
    run_ranks(train_registered, 2, run, tmp_path / "stopped", FSDP())
    assert reported(tmp_path / "stopped") == reported(tmp_path / "sharded")
    torch.testing.assert_close(
        losses(tmp_path / "sharded"), losses(tmp_path / "alone"), rtol=tolerance, atol=0
    )
    # and a run of two ranks can be resumed by one
    ours, theirs = (final_tensors(run, tmp_path / each) for each in ("stopped", "sharded"))
    assert all(torch.equal(ours[key], tensor) for key, tensor in theirs.items())


def test_muon_optimizes_hidden_matrices():
    with open_world("cpu", 600) as world:
        state = build_state(run_with("muon", momentum=0.8), VOCAB, world)
    muon, adamw = state.optimizers
    assert muon.param_groups[0]["momentum"] == 0.8
    names = {id(parameter): name for name, parameter in state.model.named_parameters()}
    hidden = {names[id(p)] for p in muon.param_groups[0]["params"]}
    others = {names[id(p)] for p in adamw.param_groups[0]["params"]}
    assert hidden | others == set(names.values()) and not hidden & others
    assert all(dict(state.model.named_parameters())[name].ndim == 2 for name in hidden)
    assert any("blocks" in name for name in hidden)
    assert {"denoiser.backbone.embedding.weight", "denoiser.backbone.head.weight"} <= others


@pytest.mark.parametrize("name", ["adamw", "muon", "sgd", "nadam", "counting"])
def test_a_step_that_is_not_finite_changes_nothing(name):
    run = run_with(name)
    tokens = torch.arange(8 * 16).view(8, 16) % 39
    batch = Batch(tokens, tokens >= 0, torch.arange(8))
    with open_world("cpu", 600) as world:
        state = build_state(run, VOCAB, world)
        loop.update(run, state, loop.gradients(run, world, state, batch))
        before = {key: tensor.clone() for key, tensor in state.tensors().items()}
        record = state.record()
        found = loop.gradients(run, world, state, batch)
        found.stats.norm.fill_(torch.inf)
        found.stats._stats[-2] = torch.inf
        with pytest.raises(TrainingDiverged, match="step 1: .*norm is inf"):
            loop.update(run, state, found)
            found.read()
        after = state.tensors()
        # the EMA of unchanged weights moves towards them
        for key, tensor in before.items():
            assert key.startswith("ema.") or torch.equal(tensor, after[key]), key
        assert state.record().get("optimizer") == record.get("optimizer")


def test_a_fresh_optimizer_has_no_state_of_a_step_that_was_not_taken(data, tmp_path):
    """Saving and restoring allocate the state by a step without effect."""
    run = replace(run_with("nadam", data), train=replace(run_with("nadam", data).train, steps=1))
    assert train_here(run, tmp_path)
    found = final_tensors(run, tmp_path)
    counters = {float(value) for key, value in found.items() if key.endswith(".step")}
    assert counters == {1.0}


def test_learning_rates_of_warmup_stable_decay():
    optim = OptimConfig(learning_rate=1.0, warmup=4, lr_schedule="wsd", decay_ratio=0.25)
    optim = replace(optim, final_lr_ratio=0.2)
    rates = [optim.learning_rate_at(step, 16) for step in range(17)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4:13] == [1.0] * 9
    assert rates[13:] == pytest.approx([0.8, 0.6, 0.4, 0.2])
    constant = replace(optim, lr_schedule="constant")
    assert [constant.learning_rate_at(step, 16) for step in (4, 15)] == [1.0, 1.0]
    (problem,) = problems_of(replace(optim, decay_ratio=1.5), "optim.")
    assert "optim.decay_ratio" in problem and "1.5" in problem


def test_name_and_options_are_recorded_and_old_records_have_adamw():
    plain = to_plain(run_with("sgd", momentum=0.5))
    assert plain["optimizer"] == {"kind": "sgd", "package": __name__, "momentum": 0.5}
    assert run_from_plain(plain) == run_with("sgd", momentum=0.5)
    del plain["optimizer"], plain["optim"]["lr_schedule"], plain["optim"]["decay_ratio"]
    old = run_from_plain(plain)
    assert (old.optimizer.name, old.optim.lr_schedule) == ("adamw", "cosine")


def test_wrong_optimizers_are_refused():
    with pytest.raises(ConfigError, match=r"optimizer\.momentum .*got 2"):
        run_with("muon", "data", momentum=2.0).check()
    gidd.register("optimizer", "wrong")(lambda network, optim: network)
    with pytest.raises(ConfigError, match="optimizer wrong .*got Linear"):
        build_optimizers(component("optimizer", "wrong"), torch.nn.Linear(2, 2), OptimConfig())
