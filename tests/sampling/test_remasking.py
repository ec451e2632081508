"""Steps that remask or renoise tokens: exact distributions on small sources, and the rules."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from support.cases import few
from support.sampling_worlds import (
    VOCAB,
    blank_state,
    chi_square_p,
    counts,
    sampled,
    tabulated,
    world_of,
)
from support.session_runs import run_state
from support.strategies import schedule_from_unit_cube

from gidd.diffusion.process import marginal, posterior
from gidd.diffusion.schedules import (
    HybridSchedule,
    MaskedSchedule,
    MixtureSchedule,
    UniformSchedule,
)
from gidd.diffusion.times import even_times
from gidd.errors import ConfigError
from gidd.sampling import (
    FunctionNetwork,
    Psi,
    RemaskSuspects,
    ReMDM,
    Request,
    Session,
    ancestral,
    corrector_plan,
    sampling_plan,
)
from gidd.sources.enumeration import total_variation
from gidd.vocab import Vocab

MASK = VOCAB.mask_id
MASKED, HYBRID = MaskedSchedule(VOCAB), HybridSchedule(VOCAB, 0.2)
SCHEDULES = {
    "masked": MASKED,
    "hybrid": HYBRID,
    "uniform": UniformSchedule(Vocab(3)),
    "mixture": schedule_from_unit_cube(MixtureSchedule, VOCAB, (0.2, 0.5, 0.5)),
}
STEPS = {
    **{f"psi-{name}": (Psi(0.3), name) for name in SCHEDULES},
    "remdm-cap": (ReMDM(cap=0.2), "masked"),
    "remdm-rescale": (ReMDM(cap=1.0, rescale=0.7), "masked"),
}


def token_kernel(world, step, s, t):
    """Distribution of each position of z_s given z_t [Z, L, V], as the papers define it."""
    schedule, z = world.schedule, world.noisy
    times_s, times_t = world.times(s), world.times(t)
    x_theta = world.leave_one_out(z, times_t.clamp_max(1 - 1e-9))
    if isinstance(step, Psi):
        x = posterior(schedule, world.times(0), times_t, z, x_theta)
        kappa, reverse = 1 - step.renoise, posterior(schedule, times_s, times_t, z, x_theta)
        return kappa * reverse + (1 - kappa) * marginal(schedule, times_s, x)
    alpha_s, alpha_t = 1 - s, 1 - t
    sigma = min(step.cap, step.rescale * min(1, (1 - alpha_s) / max(alpha_t, 1e-30)))
    mask = F.one_hot(torch.tensor(MASK), VOCAB.size).double()
    fill = (alpha_s - (1 - sigma) * alpha_t) / (1 - alpha_t)
    filled = fill * x_theta + (1 - fill) * mask
    kept = (1 - sigma) * F.one_hot(z, VOCAB.size).double() + sigma * mask
    return torch.where((z == MASK)[..., None], filled, kept)


def kernel(world, step, s, t):
    """Distribution of z_s given z_t [Z, Z]: positions are independent."""
    each = token_kernel(world, step, s, t)
    return torch.stack([each[:, i, world.noisy[:, i]] for i in range(world.length)]).prod(0)


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize(("t", "s"), [(0.9, 0.6), (0.5, 0.5), (0.3, 0.1), (0.2, 0.0)])
def test_every_position_has_the_marginal_of_time_s(name, t, s):
    step, noise = STEPS[name]
    world = world_of(SCHEDULES[noise])
    before, after = world.noisy_distribution(t), world.noisy_distribution(s)
    each = torch.einsum("z,zlv->lv", before, token_kernel(world, step, s, t))
    expected = torch.einsum("z,zlv->lv", after, F.one_hot(world.noisy).double())
    torch.testing.assert_close(each, expected, rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", few(STEPS, every=2))
def test_chains_have_the_enumerated_distribution(name):
    """Six steps from the prior and two at a fixed time, 8,000 samples."""
    step, noise = STEPS[name]
    world = world_of(SCHEDULES[noise])
    expected = world.noisy_distribution(1.0)
    plan = sampling_plan(even_times(6)[:5], step) + corrector_plan(step, 2, 1 / 3)
    for _, t, s in plan.steps:
        expected = expected @ kernel(world, step, s, t)
    samples = sampled(world, plan, 8_000).tokens
    assert chi_square_p(counts(world, samples), expected) > 1e-3


@pytest.mark.parametrize(
    ("step", "noise"), [*((Psi(), name) for name in SCHEDULES), (ReMDM(), "masked")]
)
def test_more_steps_are_closer_to_the_data(step, noise):
    """Enumerated, with the default options."""
    world, errors = world_of(SCHEDULES[noise]), []
    for num_steps in (1, 4, 16, 64):
        p = world.noisy_distribution(1.0)
        for _, t, s in sampling_plan(even_times(num_steps), step).steps:
            p = p @ kernel(world, step, s, t)
        errors.append(total_variation(p, world.data_distribution))
    assert all(after < 0.6 * before for before, after in pairwise(errors)), errors


@pytest.mark.parametrize("noise", SCHEDULES)
def test_psi_without_renoising_is_ancestral(noise):
    world = world_of(SCHEDULES[noise])
    plans = [sampling_plan(even_times(6), step) for step in (Psi(0), ancestral)]
    found, expected = (sampled(world, plan, 500).tokens for plan in plans)
    assert torch.equal(found, expected)


def test_psi_generalises_remdm():
    """Under masking noise the kernels agree for sigma = renoise (1 - alpha_s)."""
    world = world_of(MASKED)
    for t, s in ((0.8, 0.5), (0.4, 0.1)):
        psi, remdm = kernel(world, Psi(0.3), s, t), kernel(world, ReMDM(cap=0.3 * s), s, t)
        torch.testing.assert_close(psi, remdm, rtol=0, atol=1e-12)


def test_a_mistake_can_be_corrected():
    """Tokens that noise cannot have produced change under psi and remdm, not under ancestral."""
    world = world_of(MASKED)
    for step, changes in ((ancestral, False), (ReMDM(cap=0.5), True), (Psi(0.5), True)):
        state = blank_state(MASKED, 200, 3)
        state.tokens[:] = torch.tensor([0, 1, MASK])
        session = Session(tabulated(world), MASKED, batch_size=200)
        run_state(session, state, corrector_plan(step, 4, 0.4))
        assert (state.tokens[:, :2] != torch.tensor([0, 1])).any() == changes


X_THETA = torch.tensor([0.9, 0.02, 0.08, 0.0])


def remasked(tokens, step, times, protected=None):
    """The tokens after steps of a network that always predicts `X_THETA`."""
    network = FunctionNetwork(lambda z, t: X_THETA.expand(*z.shape, -1))
    plan = sampling_plan(torch.tensor(times), step)
    request = Request(tokens=tokens, plan=plan, protected=protected or (False,) * len(tokens))
    return Session(network, HYBRID).sample([request])[0].tokens


def test_suspects_become_masks_the_most_suspect_first():
    step = RemaskSuspects(suspect=0.1, max_fraction=1.0)
    assert remasked((0, 1, 2, 0), step, [0.4, 0.39]) == (0, MASK, MASK, 0)
    assert remasked((0, 1, 2, 0), RemaskSuspects(suspect=0.05), [0.4, 0.39]) == (0, MASK, 2, 0)
    assert remasked((0, 2, 1, 0), RemaskSuspects(max_fraction=0.25), [0.4, 0.39]) == (0, 2, MASK, 0)
    given = (False, True, False, False)
    assert remasked((0, 1, 2, 0), step, [0.4, 0.39], given) == (0, 1, MASK, 0)


def test_the_last_step_leaves_no_masks():
    step = RemaskSuspects(suspect=1.0, max_fraction=1.0)
    assert MASK not in remasked((0, 1, 2, None), step, [0.4, 0.3, 0.0])
    assert remasked((1, 2, 1, 2), step, [0.1, 0.0]) == (1, 2, 1, 2)


@pytest.mark.parametrize(
    ("step", "schedule", "message"),
    [
        (ReMDM(), HYBRID, "remdm .*only masks.*random tokens as well. Use .*psi"),
        (ReMDM(), UniformSchedule(VOCAB), "masks at t = 1, got 0.0%"),
        (RemaskSuspects(), MASKED, "remask_suspects .*random tokens, got masking only.*remdm"),
        (RemaskSuspects(), UniformSchedule(Vocab(4)), "masks at t = 1, got 0.0%"),
    ],
)
def test_noise_without_a_definition_is_refused(step, schedule, message):
    with pytest.raises(ConfigError, match=message):
        step.check(schedule, 1.0)
