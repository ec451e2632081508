"""Every step, corrector, processor and training loss computes on one device: the pretended one."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from support.pretended_device import move_to_pretended, pretended_cuda
from support.random_requests import FIXERS, SAMPLERS
from support.stepped_session import SteppedSession  # in the thread that pretends
from support.train_steps import run_step, step_of

from gidd.data.batch import Batch
from gidd.diffusion.schedules import (
    FirstReleaseSchedule,
    HybridSchedule,
    LinearAmount,
    MaskedSchedule,
    MixtureComponent,
    MixtureSchedule,
    PeakedAmount,
    UniformSchedule,
    mask_noise,
)
from gidd.diffusion.times import even_times
from gidd.diffusion.weighting import ClampWeighting, DynamicWeighting, TightWeighting
from gidd.models import Denoiser, DiT, DiTConfig
from gidd.sampling import (
    EpsilonCutoff,
    MinP,
    Plan,
    Request,
    Temperature,
    TopK,
    TopP,
    ban,
    blanks,
    corrector_plan,
    sampling_plan,
)
from gidd.vocab import Vocab

SIZE, LENGTH, ROWS, DEVICE = 300, 16, 2, "cuda:0"
VOCAB = Vocab(SIZE, mask_id=SIZE - 1)
UNIGRAM = F.pad(torch.arange(1, SIZE, dtype=torch.float64).reciprocal(), (0, 1))
SCHEDULES = {
    "hybrid": HybridSchedule(VOCAB, 0.2),
    "masked": MaskedSchedule(VOCAB),
    "uniform": UniformSchedule(VOCAB),
    "first_release": FirstReleaseSchedule(VOCAB, 0.2),
    "mixture": MixtureSchedule(
        VOCAB,
        (
            MixtureComponent(mask_noise(VOCAB), LinearAmount()),
            MixtureComponent(UNIGRAM / UNIGRAM.sum(), PeakedAmount(peak=0.2)),
        ),
    ),
}
STEPS = sampling_plan(even_times(2))
PLANS = {
    **{f"step {name}": sampling_plan(even_times(2), steps[-1]) for name, steps in SAMPLERS.items()},
    **{
        f"corrector {name}": STEPS + corrector_plan(steps[-1], 2, 0.1)
        for name, steps in FIXERS.items()
    },
}
PROCESSORS = (
    Temperature(0.5),
    Temperature(0.0),
    TopK(5),
    TopP(0.9),
    EpsilonCutoff(1e-4),
    MinP(0.05),
    ban(VOCAB, [3, 4]),
)
HAVE_FLOAT64_ROWS = {"mixture", "step ancestral_reference", "corrector posterior"}
"""They compute float64 numbers for every token of the vocabulary; all others do not."""

WEIGHTINGS = {"clamp": ClampWeighting, "dynamic": DynamicWeighting, "tight": TightWeighting}
LOSSES = [*product(SCHEDULES, ("clamp", "tight")), ("hybrid", "dynamic"), ("masked", "dynamic")]


def denoiser() -> Denoiser:
    torch.manual_seed(0)
    config = DiTConfig(vocab_size=SIZE, max_length=LENGTH, width=32, num_layers=1, num_heads=4)
    model = Denoiser(DiT(config), VOCAB)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.15)
    return move_to_pretended(model)


def sample(schedule, plan: Plan, processors=(), *, name="", record_frames=False) -> None:
    """Sample one request more than fits into a forward pass."""
    tokens = (5, *blanks(LENGTH - 1))
    requests = [
        Request(tokens=tokens, plan=plan, sample_index=i, processors=processors)
        for i in range(ROWS + 1)
    ]
    refuses_float64 = name not in HAVE_FLOAT64_ROWS
    with torch.no_grad(), pretended_cuda(refuses_float64=refuses_float64):
        session = SteppedSession(denoiser().eval(), schedule, batch_size=ROWS, device=DEVICE)
        samples = session.sample(requests, record_frames=record_frames)
    assert [len(made.tokens) for made in samples] == [LENGTH] * (ROWS + 1)


@pytest.mark.parametrize("noise", SCHEDULES)
def test_ancestral_sampling(noise):
    sample(SCHEDULES[noise], STEPS, name=noise)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_steps_and_correctors(name):
    sample(SCHEDULES["masked" if name == "step remdm" else "hybrid"], PLANS[name], name=name)


@pytest.mark.parametrize("processor", PROCESSORS, ids=repr)
def test_processors(processor):
    sample(SCHEDULES["hybrid"], STEPS, (processor,))


def test_frames():
    sample(SCHEDULES["hybrid"], STEPS, record_frames=True)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize(("noise", "weighting"), LOSSES)
def test_training(noise, weighting, autocast):
    schedule = SCHEDULES[noise]
    tokens = torch.arange(4 * LENGTH).view(4, LENGTH) % (SIZE - 1)
    batch = Batch(tokens, tokens >= 0, torch.arange(4))
    with pretended_cuda():
        step = step_of(
            denoiser(),
            schedule,
            WEIGHTINGS[weighting](schedule),
            token_bytes=torch.ones(SIZE, dtype=torch.int64),
        )
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            outcome = run_step(step, batch.to(DEVICE), 0, 4, 1 / tokens.numel())
        assert outcome.loss.device.type == "cuda" and outcome.loss.isfinite().item()
