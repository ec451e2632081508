"""The objective `drafts`: random tokens of some samples become the model's own mistakes."""

from dataclasses import replace

import pytest
import torch
from support.ranks import run_ranks
from support.train_steps import run_step
from support.training_runs import losses, speeches, tiny_run, train_here

import gidd
from gidd.common.config.components import component
from gidd.data.batch import Batch
from gidd.data.tokenizers import Tokenizer
from gidd.diffusion.elbo import elbo_terms
from gidd.diffusion.process import marginal_at
from gidd.diffusion.schedules import HybridSchedule
from gidd.diffusion.weighting import TightWeighting
from gidd.errors import ConfigError, DataError
from gidd.runs.presets import hybrid
from gidd.training.build import build_step
from gidd.training.config import Diffusion
from gidd.training.metrics import NAMES, summary
from gidd.training.objective import predict
from gidd.training.objectives import Drafts, nelbo_objective
from gidd.vocab import Vocab

VOCAB = Vocab(40, mask_id=39)
NUM_SAMPLES = 12


def run_with(loss, data=None, noise=None, **changes):
    tight = component("weighting", "tight")
    objective = Diffusion(noise=noise or hybrid(0.5), weighting=tight, loss=loss)
    return replace(tiny_run(data, **changes), objective=objective)


def objective_of(loss, noise=None, vocab=VOCAB):
    """A step with random weights: a fresh network predicts the same everywhere."""
    step = build_step(run_with(loss, noise=noise), vocab)
    step.model.to_empty(device="cpu")
    torch.manual_seed(0)
    for parameter in step.model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return step


def drafts(fraction):
    return component("objective", "drafts", fraction=fraction)


def batch_of(given=None):
    tokens = torch.arange(NUM_SAMPLES * 16).view(NUM_SAMPLES, 16) % 39
    return Batch(tokens, tokens >= 0, torch.arange(NUM_SAMPLES), given)


def sums_and_gradients(step, batch):
    step.model.zero_grad()
    outcome = run_step(step, batch, 3, NUM_SAMPLES)
    outcome.loss.backward()
    return outcome.sums, [parameter.grad.clone() for parameter in step.model.parameters()]


def noisy_and_drafted(step, batch, fraction):
    """The noisy batch of a step, and the loss of `drafts` for it."""
    noisy = step.corrupt(batch, 3, NUM_SAMPLES, 1.0)
    return noisy, Drafts(fraction)(step.model.denoiser, noisy)


def sums_of(step, batch):
    return dict(zip(NAMES, run_step(step, batch, 3, NUM_SAMPLES).sums.tolist(), strict=True))


def test_no_drafts_are_the_nelbo_bit_for_bit():
    expected, gradients = sums_and_gradients(
        objective_of(component("objective", "nelbo")), batch_of()
    )
    found, ours = sums_and_gradients(objective_of(drafts(0.0)), batch_of())
    assert torch.equal(found, expected)
    assert all(torch.equal(a, b) for a, b in zip(ours, gradients, strict=True))


def test_only_random_tokens_of_the_chosen_samples_are_drafted_and_no_given_ones():
    step, given = objective_of(drafts(0.5)), torch.arange(16).expand(NUM_SAMPLES, 16) % 3 == 0
    batch = batch_of(given)
    noisy, found = noisy_and_drafted(step, batch, 0.5)
    drafted = ~found.reported
    assert 0 < drafted.sum() < NUM_SAMPLES
    random = (noisy.z != batch.tokens) & (noisy.z != VOCAB.mask_id) & drafted[:, None]
    assert torch.equal(found.z[~random], noisy.z[~random])
    assert torch.equal(found.z[given], batch.tokens[given])
    blank = replace(noisy, z=torch.where(random, VOCAB.mask_id, noisy.z))
    assert torch.equal(found.z[random], predict(step.model.denoiser, blank)[random])
    assert (found.z != noisy.z).any() and not (found.z[random] == VOCAB.mask_id).any()


def test_the_draft_has_no_gradient():
    """The gradient is that of the same tokens, given as a constant."""
    step = objective_of(drafts(1.0))
    _, found = noisy_and_drafted(step, batch_of(), 1.0)
    assert not found.z.requires_grad
    _, ours = sums_and_gradients(step, batch_of())

    def of_constants(denoiser, noisy):
        return nelbo_objective(denoiser, replace(noisy, z=found.z))

    _, constant = sums_and_gradients(step._replace(objective=of_constants), batch_of())
    assert all(torch.equal(a, b) for a, b in zip(ours, constant, strict=True))


def test_the_reported_nelbo_is_that_of_the_other_samples():
    step, batch = objective_of(drafts(0.5)), batch_of()
    _, found = noisy_and_drafted(step, batch, 0.5)
    others = batch.map(lambda part: part[found.reported])
    ours = sums_of(step, batch)
    theirs = sums_of(objective_of(component("objective", "nelbo")), others)
    for name in set(NAMES) - {"loss", "tokens"}:
        assert ours[name] == pytest.approx(theirs[name], rel=1e-5), name
    assert ours["tokens"] == batch.tokens.numel()
    assert list(summary(sums_of(step._replace(objective=Drafts(1.0)), batch))) == ["loss"]


def test_noise_without_random_tokens_and_wrong_fractions_are_refused():
    with pytest.raises(ConfigError, match=r"drafts .*p-uniform"):
        objective_of(drafts(0.5), hybrid(0.0))
    with pytest.raises(ConfigError, match=r"objective\.fraction .*got 2"):
        run_with(drafts(2.0), "data").check()


def test_uniform_noise_is_drafted_without_masks():
    step = objective_of(drafts(1.0), component("schedule", "uniform"), Vocab(39))
    noisy, found = noisy_and_drafted(step, batch_of(), 1.0)
    random = noisy.z != batch_of().tokens
    assert torch.equal(found.z[random], predict(step.model.denoiser, noisy)[random])


def test_the_minimiser_times_the_noise_is_the_posterior_given_the_drafts():
    """One token x ~ p; z is x, a mask or, in place of a random token, a draft ~ d."""
    schedule, t = HybridSchedule(Vocab(5, mask_id=4), 0.4), torch.tensor([0.6], dtype=torch.float64)
    p = torch.tensor([0.4, 0.3, 0.2, 0.1, 0.0], dtype=torch.float64)
    d = torch.tensor([0.6, 0.1, 0.1, 0.2, 0.0], dtype=torch.float64)
    x, noise = torch.arange(4), schedule.beta_pi(t)[0]
    for token in range(4):
        z = torch.full_like(x, token)
        q = marginal_at(schedule, t, z[None], (x == z).double()[None])[0]
        drafted = noise[0] * 3 * d[token]  # of 4 equal random tokens, 3 are wrong
        joint = p[:4] * (torch.where(x == z, schedule.alpha(t) + noise[0], 0) + drafted)
        x_theta = torch.cat([joint / q, torch.zeros(1)])
        logits = (x_theta / x_theta.sum()).log().requires_grad_()
        rows = logits.softmax(-1).expand(4, 1, 5)
        args = t.expand(4), x[:, None], z[:, None]
        divergence = elbo_terms(schedule, *args, rows).divergence
        weight = TightWeighting(schedule)(*args)
        (joint @ (weight * divergence).squeeze(-1)).backward()
        torch.testing.assert_close(logits.grad, torch.zeros(5).double(), rtol=0, atol=1e-12)


@pytest.mark.slow
def test_a_resumed_run_and_two_ranks_are_the_same_run(tmp_path):
    data = speeches(tmp_path / "data", vocab_size=300, documents=20)
    tokenizer = Tokenizer.load(data)
    generator = torch.Generator().manual_seed(0)
    pairs = [
        (x := torch.randint(0, 256, (4, 16), generator=generator), x % 2 == 0) for _ in range(4)
    ]

    def train(out, batches):
        run = run_with(drafts(0.5), data, steps=4, save_every=2)
        gidd.train(
            tmp_path / out, preset=run, data=batches, tokenizer=tokenizer, device="cpu", quiet=True
        )

    train("whole", pairs)
    with pytest.raises(DataError, match="ended before step 4"):  # after the save of step 2
        train("parts", pairs[:3])
    train("parts", pairs)
    assert torch.equal(losses(tmp_path / "parts"), losses(tmp_path / "whole"))

    run = run_with(drafts(0.5), data, steps=4)
    run_ranks(train_here, 1, run, tmp_path / "alone")
    run_ranks(train_here, 2, run, tmp_path / "two")
    torch.testing.assert_close(
        losses(tmp_path / "two"), losses(tmp_path / "alone"), rtol=1e-4, atol=0
    )
