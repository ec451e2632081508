"""float32 is finite and close to float64 near t = 0 and t = 1, at full size, for any logits."""

import pytest
import torch
from support.cases import few
from support.strategies import WEIGHTING_TYPES, default_weighting, schedule_from_unit_cube

from gidd.diffusion.elbo import (
    elbo_terms,
    full_itakura_saito,
    mdm_loss,
    prior_kl,
    reconstruction,
    step_kl,
)
from gidd.diffusion.process import backward_rates, forward_rate, marginal, posterior, transition
from gidd.diffusion.schedules import (
    Cosine,
    FunctionalSchedule,
    HybridSchedule,
    LinearAmount,
    MaskedSchedule,
    MixtureComponent,
    MixtureSchedule,
    UniformSchedule,
    uniform_noise,
)
from gidd.errors import ScheduleError
from gidd.vocab import Vocab

GPT2 = Vocab(50258, mask_id=50257)
TIMES = [1e-6, 1e-4, 0.01, 0.5, 0.99, 1 - 1e-4, 1 - 1e-6]
SCHEDULES = {
    "masked": MaskedSchedule(GPT2),
    "masked cosine": MaskedSchedule(GPT2, Cosine()),
    "uniform": UniformSchedule(GPT2),
    "hybrid 0": HybridSchedule(GPT2, 0.0),
    "hybrid 0.2": HybridSchedule(GPT2, 0.2),
    "hybrid 0.2, gamma 2": HybridSchedule(GPT2, 0.2, 2.0),
    "hybrid 0.9, gamma 0.5": HybridSchedule(GPT2, 0.9, 0.5),
    "mixture": schedule_from_unit_cube(MixtureSchedule, GPT2, (0.3, 0.5, 0.7)),
    "uniform as a mixture": MixtureSchedule(
        GPT2, (MixtureComponent(uniform_noise(GPT2), LinearAmount()),)
    ),
    "functional": schedule_from_unit_cube(FunctionalSchedule, GPT2, (0.1, 0.6, 0.5)),
}
TOKENS = torch.tensor([[0, 0, 0, 31337, 31337, 7]])
NOISY = torch.tensor([[50257, 0, 7, 31337, 50256, 50257]])


def logits_of(kind: str) -> torch.Tensor:
    """[1, 6, V] with entries up to +-80 that make x_theta underflow in every way it can."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.empty(1, 6, GPT2.size).uniform_(-80, 80, generator=generator)
    if kind == "confident and right":
        logits = torch.full_like(logits, -80).scatter(-1, TOKENS[..., None], 80.0)
    elif kind == "confident and wrong":
        logits = torch.full_like(logits, -80)
        logits[..., 12345] = 80
    elif kind == "uniform":
        logits = torch.zeros_like(logits)
    logits[..., GPT2.mask_id] = -torch.inf
    return logits


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name"),
    few(["confident and wrong", "random", "confident and right", "uniform"], SCHEDULES, every=7),
)
def test_everything_is_finite(name, kind, device):
    """Values and gradients: no NaN, no infinity, for t in [1e-6, 1 - 1e-6]."""
    schedule = SCHEDULES[name]
    x, z = TOKENS.to(device), NOISY.to(device)
    for time in TIMES:
        t = torch.tensor([time], device=device)
        s = t * 0.9
        logits = logits_of(kind).to(device).requires_grad_()
        x_theta = logits.softmax(-1)
        terms = elbo_terms(schedule, t, x, z, x_theta)
        loss = terms.weight * terms.divergence
        (gradient,) = torch.autograd.grad(loss.sum(), logits, retain_graph=True)
        values = {
            "alpha": schedule.alpha(t),
            "beta_pi": schedule.beta_pi(t),
            "inflow": schedule.inflow(t),
            "weight": terms.weight,
            "kl": terms.kl,
            "itakura_saito": terms.itakura_saito,
            "loss": loss,
            "gradient": gradient[..., : GPT2.mask_id],
            "marginal": marginal(schedule, t, x_theta),
            "transition": transition(schedule, s, t).beta_pi,
            "forward_rate": forward_rate(schedule, t, x, z),
            "backward_rates": backward_rates(schedule, t, z, x_theta),
            "posterior": posterior(schedule, s, t, z, x_theta),
            "first posterior": posterior(schedule, t, torch.ones_like(t), z, x_theta),
            "last posterior": posterior(schedule, torch.zeros_like(t), t, z, x_theta),
            "reconstruction": reconstruction(schedule, t, x, z, x_theta),
            "prior_kl": prior_kl(schedule, t, x, x_theta),
            "step_kl": step_kl(schedule, s, t, x, z, x_theta),
        }
        if name in ("masked", "masked cosine", "hybrid 0"):
            values["mdm_loss"] = mdm_loss(schedule, t, x, z, x_theta)
        else:
            values["full_itakura_saito"] = full_itakura_saito(schedule, t, x, x_theta)
        for weighting in WEIGHTING_TYPES:
            try:
                values[weighting.__name__] = default_weighting(weighting, schedule)(t, x, z)
            except ScheduleError:
                continue  # dynamic weights, where they are not defined
        for what, value in values.items():
            assert value.isfinite().all(), f"{what} at t = {time}: {value}"


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEDULES)
def test_float32_agrees_with_float64(name, device):
    """At full size and the ends of time: loss terms to 2e-5 of their float64 values."""
    schedule = SCHEDULES[name]
    logits = logits_of("random") / 16  # a network's range: +-5
    for time in TIMES:
        t = torch.tensor([time])
        possible = schedule.beta_pi(t.double())[0, NOISY] > 0
        possible |= NOISY == TOKENS
        x_theta = logits.softmax(-1)
        exact = elbo_terms(schedule, t.double(), TOKENS, NOISY, logits.double().softmax(-1))
        rough = elbo_terms(schedule, *(v.to(device) for v in (t, TOKENS, NOISY, x_theta)))
        for actual, expected in zip(rough, exact, strict=True):
            actual = actual.cpu().double()
            torch.testing.assert_close(actual[possible], expected[possible], rtol=2e-5, atol=0)
