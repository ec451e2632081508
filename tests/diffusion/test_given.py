"""Given tokens: never noised, not scored; the loss bounds -log p(other tokens | given tokens)."""

from itertools import combinations

import pytest
import torch
from support.cases import few
from support.sampling_worlds import random_denoiser
from support.train_steps import run_step, step_of

import gidd
from gidd.data.batch import Batch
from gidd.diffusion import HybridSchedule, MaskedSchedule, UniformSchedule
from gidd.diffusion.loss import diffusion_loss, fused_loss
from gidd.diffusion.process import noise
from gidd.diffusion.randomness import Stream, random_integers
from gidd.diffusion.weighting import TightWeighting
from gidd.sources import MarkovSource
from gidd.sources.enumeration import SmallWorld, exact_nodes
from gidd.training.metrics import NAMES, summary

MASKED_VOCAB, PLAIN_VOCAB = gidd.Vocab(4, mask_id=3), gidd.Vocab(3)
SCHEDULES = {
    "masked": MaskedSchedule(MASKED_VOCAB),
    "hybrid": HybridSchedule(MASKED_VOCAB, 0.2),
    "uniform": UniformSchedule(PLAIN_VOCAB),
}
LENGTH = 3
SETS = [given for size in range(LENGTH + 1) for given in combinations(range(LENGTH), size)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "given"), few(SCHEDULES, SETS, every=9))
def test_the_nelbo_of_the_exact_denoiser_is_the_conditional_entropy(name, given):
    world = SmallWorld(MarkovSource.random(3, 0.5), SCHEDULES[name], LENGTH, given)
    nelbo = world.nelbo(world.leave_one_out, exact_nodes(256))
    assert nelbo == pytest.approx(world.entropy, abs=1e-10)
    assert (world.entropy == 0) == (len(given) == LENGTH)


WIDE = gidd.Vocab(12, mask_id=11)
NOISES = {"masked": MaskedSchedule(WIDE), "hybrid": HybridSchedule(WIDE, 0.2)}


def batch_of(num: int = 6, length: int = 10) -> Batch:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 11, (num, length), generator=generator)
    given = torch.rand(num, length, generator=generator) < 0.5
    valid = torch.arange(length) < torch.arange(length - num + 1, length + 1)[:, None]
    return Batch(tokens, valid, torch.arange(num), given)


@pytest.mark.parametrize("name", NOISES)
def test_rows_of_given_tokens_have_no_gradient_and_are_not_computed(name):
    schedule, batch = NOISES[name], batch_of()
    tokens, given = batch.tokens, batch.given
    t = torch.linspace(0.2, 0.8, len(tokens))
    rows, columns = (torch.arange(size) for size in tokens.shape)
    u = random_integers(0, Stream.NOISE, 0, rows, columns)
    z = torch.where(given, tokens, noise(schedule, t, tokens, u))
    hidden = torch.randn(*tokens.shape, 5, generator=torch.Generator().manual_seed(0))
    hidden[given] = torch.nan  # a row that was read would spoil the loss
    hidden.requires_grad_()
    head = torch.randn(12, 5, generator=torch.Generator().manual_seed(2)), torch.zeros(12)
    weight = TightWeighting(schedule)(t, tokens, z)
    found = fused_loss(schedule, t, tokens, z, hidden, *head, weight, scored=~given)
    found.loss.backward()
    assert found.loss.isfinite()
    assert hidden.grad is not None and (hidden.grad[given] == 0).all()
    assert hidden.grad[~given & (weight != 0)].abs().sum(-1).min() > 0
    terms = torch.stack([found.weight, found.kl, found.itakura_saito])
    assert (terms[:, given] == 0).all()


@pytest.mark.parametrize("name", NOISES)
def test_the_network_reads_given_tokens_as_they_are(name):
    batch, seen = batch_of(), []
    model = random_denoiser(WIDE)
    hidden = model.hidden
    model.hidden = lambda z, t, valid=None: (seen.append(z), hidden(z, t, valid))[1]
    for step in range(20):
        found = diffusion_loss(model, NOISES[name], batch.tokens, step=step, given=batch.given)
        assert (seen[-1] == batch.tokens)[batch.given].all()
        assert found.loss.isfinite() and found.nelbo > 0
    assert not all((z == batch.tokens).all() for z in seen)


def test_without_a_condition_nothing_changes():
    batch, model, schedule = batch_of(), random_denoiser(WIDE), NOISES["hybrid"]
    plain = diffusion_loss(model, schedule, batch.tokens, step=3)
    nothing = torch.zeros_like(batch.given)
    same = diffusion_loss(model, schedule, batch.tokens, step=3, given=nothing)
    torch.testing.assert_close(same.loss, plain.loss, rtol=1e-6, atol=0)
    torch.testing.assert_close(same.nelbo, plain.nelbo, rtol=1e-6, atol=0)


def test_padding_outside_the_loss_changes_nothing():
    """Rows with padding have the loss that they have without it; its token does not matter."""
    batch, model, schedule = batch_of(), random_denoiser(WIDE), NOISES["hybrid"]
    values = []
    for fill in (0, 5):
        tokens = batch.tokens.masked_fill(~batch.valid, fill)
        options = {"given": batch.given, "valid": batch.valid}
        values.append(diffusion_loss(model, schedule, tokens, step=1, **options))
    assert torch.equal(values[0].loss, values[1].loss)
    assert torch.equal(values[0].nelbo, values[1].nelbo)


@pytest.mark.parametrize("hides_padding", [False, True])
def test_the_sums_of_an_objective_count_what_is_scored(hides_padding):
    batch, schedule = batch_of(), NOISES["hybrid"]
    step = step_of(
        random_denoiser(WIDE), schedule, TightWeighting(schedule), hides_padding=hides_padding
    )
    found = run_step(step, batch, 0, len(batch.tokens))
    sums = dict(zip(NAMES, found.sums.tolist(), strict=True))
    scored = ~batch.given & batch.valid if hides_padding else ~batch.given
    assert sums["tokens"] == int(scored.sum()) == int(step.corrupt.num_targets(batch))
    assert sums["valid"] == int((batch.valid & ~batch.given).sum())
    assert sums["num_masked"] + sums["num_replaced"] + sums["num_kept"] == sums["valid"]
    assert summary(sums)["loss"] == pytest.approx(float(found.loss.detach()) / sums["tokens"])


def test_a_batch_is_split_and_copied_with_its_condition():
    batch = batch_of()
    parts = batch.split(4)
    assert [len(part.tokens) for part in parts] == [2, 2, 1, 1]
    assert torch.equal(torch.cat([part.given for part in parts]), batch.given)
    assert torch.equal(batch.to("cpu").given, batch.given)
    plain = batch._replace(given=None)
    assert [part.given for part in plain.split(2)] == [None, None]
    assert torch.equal(plain.scored, batch.valid)
