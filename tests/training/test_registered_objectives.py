"""Registered objectives: a loss of a noisy batch, with one more forward pass if it needs one."""

from dataclasses import dataclass, replace
from typing import Annotated

import pytest
import torch
from support.ranks import run_ranks
from support.registrations import temporary_registrations
from support.train_steps import run_step
from support.training_runs import losses, speeches, tiny_run, train_here

import gidd
from gidd.common.config.allowed import problems_of, within
from gidd.common.config.codec import to_plain
from gidd.common.config.components import component
from gidd.data.batch import Batch
from gidd.diffusion.randomness import Stream
from gidd.errors import ConfigError
from gidd.training.build import build_step
from gidd.training.config import Diffusion
from gidd.training.metrics import NAMES, summary
from gidd.training.objective import predict
from gidd.training.objectives import nelbo_objective
from gidd.training.parallel import DDP, FSDP
from gidd.training.recorded import run_from_plain
from gidd.vocab import Vocab

VOCAB = Vocab(40, mask_id=39)


@dataclass(frozen=True)
class OwnDraft:
    """Replaces a fraction of the noisy tokens by tokens that the network predicts."""

    fraction: Annotated[float, within(lambda x: 0 <= x <= 1, "in [0, 1]")] = 0.5
    """Fraction of replaced tokens."""

    def __call__(self, denoiser, noisy):
        chosen = noisy.random(Stream.PLACE) < self.fraction * 2**62
        if noisy.fixed is not None:
            chosen &= ~noisy.fixed
        z = torch.where(chosen, predict(denoiser, noisy), noisy.z)
        return nelbo_objective(denoiser, replace(noisy, z=z))


def cross_entropy(denoiser, noisy):
    """The plain cross-entropy of all tokens, of which no terms are known."""
    weight, bias = denoiser.head()
    logits = denoiser.hidden(noisy.z, noisy.t) @ weight.T + bias
    chosen = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), noisy.batch.tokens.flatten(), reduction="sum"
    )
    return chosen * noisy.scale


def register():
    gidd.register("objective", "own-draft")(OwnDraft)
    gidd.register("objective", "cross-entropy")(cross_entropy)


@pytest.fixture(autouse=True)
def registered():
    with temporary_registrations():
        register()
        yield


def run_with(name, data=None, **options):
    run = tiny_run(data, steps=6)
    return replace(
        run, objective=replace(run.objective, loss=component("objective", name, **options))
    )


def objective_of(run):
    """A step with random weights: a fresh network predicts the same everywhere."""
    step = build_step(run, VOCAB)
    step.model.to_empty(device="cpu")
    torch.manual_seed(0)
    for parameter in step.model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return step


def batch_of(samples=4, length=16):
    tokens = torch.arange(samples * length).view(samples, length) % 39
    return Batch(tokens, tokens >= 0, torch.arange(samples))


def gradients_of(step, autocast=False):
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        outcome = run_step(step, batch_of(), 3, 4)
    outcome.loss.backward()
    return outcome, [parameter.grad for parameter in step.model.parameters()]


@pytest.mark.parametrize("autocast", [False, True])
def test_the_extra_pass_changes_no_gradient(autocast):
    """Of no replaced token: weights that the pass without gradient casts are not reused."""
    outcome, expected = gradients_of(objective_of(run_with("nelbo")), autocast)
    ours, found = gradients_of(objective_of(run_with("own-draft", fraction=0.0)), autocast)
    assert torch.equal(ours.sums, outcome.sums)
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(mine, theirs)


def test_replaced_tokens_are_those_that_the_network_predicts():
    """A network that predicts one token; reported are the kinds of the tokens it was given."""
    step = objective_of(run_with("own-draft", fraction=1.0))
    with torch.no_grad():
        step.model.denoiser.backbone.head.bias[7] = 100.0
    batch = batch_of()
    sums = dict(zip(NAMES, run_step(step, batch, 3, 4).sums.tolist(), strict=True))
    assert sums["num_kept"] == (batch.tokens == 7).sum()
    assert sums["num_masked"] == 0
    given = batch.tokens % 2 == 0
    sums = run_step(step, batch._replace(given=given), 3, 4).sums
    sums = dict(zip(NAMES, sums.tolist(), strict=True))
    assert sums["num_kept"] == ((batch.tokens == 7) & ~given).sum()


def test_a_scalar_loss_is_reported_alone():
    outcome = run_step(objective_of(run_with("cross-entropy")), batch_of(), 3, 4, 0.5)
    outcome.loss.backward()
    sums = dict(zip(NAMES, outcome.sums.tolist(), strict=True))
    assert summary(sums) == {"loss": pytest.approx(2 * outcome.loss.item() / 64)}


def train_registered(run, out, parallel=None):
    register()
    return train_here(run, out, parallel)


@pytest.mark.slow
def test_the_extra_pass_is_the_same_on_every_layout(tmp_path):
    run = run_with("own-draft", speeches(tmp_path / "data", vocab_size=300, documents=20))
    run_ranks(train_registered, 1, run, tmp_path / "alone")
    for name, parallel in {"ddp": DDP(), "fsdp": FSDP()}.items():
        run_ranks(train_registered, 2, run, tmp_path / name, parallel)
        torch.testing.assert_close(
            losses(tmp_path / name), losses(tmp_path / "alone"), rtol=1e-4, atol=0
        )


def test_name_and_options_are_recorded_and_old_records_have_the_nelbo():
    run = run_with("own-draft", fraction=0.25)
    plain = to_plain(run)
    saved = {"kind": "own-draft", "package": __name__, "fraction": 0.25}
    assert plain["objective"]["loss"] == saved
    assert run_from_plain(plain) == run
    del plain["objective"]["loss"]
    assert run_from_plain(plain).objective.loss == component("objective", "nelbo")


def test_options_are_checked():
    with pytest.raises(ConfigError, match=r"objective\.fraction .*got 2"):
        run_with("own-draft", "data", fraction=2.0).check()

    def clashing(denoiser, noisy, *, eps: float = 1.0): ...

    gidd.register("objective", "clashing")(clashing)
    (problem,) = problems_of(Diffusion(loss=component("objective", "clashing")))
    assert "clashing" in problem and "eps" in problem
