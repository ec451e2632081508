"""What is computed for a GPU is what is computed on the CPU."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from support.cases import few
from support.pretended_device import move_to_pretended, pretended_cuda

from gidd.common.devices import acting_as
from gidd.diffusion.loss import fused_cross_entropy, fused_loss
from gidd.diffusion.process import noise
from gidd.diffusion.randomness import Stream, random_integers
from gidd.diffusion.schedules import (
    Component,
    HybridSchedule,
    LinearAmount,
    MaskedSchedule,
    MixtureSchedule,
    PeakedAmount,
    UniformSchedule,
    mask_noise,
    uniform_noise,
)
from gidd.diffusion.times import even_times
from gidd.diffusion.weighting import TightWeighting
from gidd.models import Denoiser, DiT, DiTConfig
from gidd.sampling import (
    Choices,
    Confidence,
    EpsilonCutoff,
    Gibbs,
    Greedy,
    Guidance,
    PosteriorCorrection,
    Psi,
    RemaskSuspects,
    ReMDM,
    Renoise,
    Request,
    SelfCorrectionStep,
    Session,
    Temperature,
    Threshold,
    TopK,
    ancestral,
    corrector_plan,
    sampling_plan,
)
from gidd.vocab import Vocab

V, L = 130, 24
VOCAB = Vocab(V, mask_id=V - 1)
RANKS = torch.arange(1, V + 1, dtype=torch.float64)
ZIPF = uniform_noise(VOCAB) / RANKS
SCHEDULES = {
    "hybrid": HybridSchedule(VOCAB, 0.3),
    "masked": MaskedSchedule(VOCAB),
    "uniform": UniformSchedule(VOCAB),
    "unigram": MixtureSchedule(
        VOCAB,
        (
            Component(mask_noise(VOCAB), LinearAmount()),
            Component(ZIPF / ZIPF.sum(), PeakedAmount(0.2)),
        ),
    ),
}


def denoiser(num_rows: int = 192) -> Denoiser:
    torch.manual_seed(0)
    config = DiTConfig(vocab_size=num_rows, max_length=L, width=32, num_layers=1, num_heads=4)
    model = Denoiser(DiT(config), VOCAB).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.25)
    return model


@pytest.mark.parametrize("has_triton", [True, False], ids=["kernel", "torch"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_loss_and_gradients(name, has_triton, monkeypatch):
    """Whole chunks, all tokens and a padded head, against blocks, touched tokens and none."""
    schedule = SCHEDULES[name]
    if not has_triton:
        monkeypatch.setattr("gidd.diffusion.loss.fused.has_kernels", lambda _: False)
    torch.manual_seed(1)
    t = torch.tensor([1e-4, 0.3, 0.8, 0.9999])
    x = torch.randint(0, V - 1, (4, L))
    z = noise(schedule, t, x, random_integers(0, Stream.NOISE, 0, torch.arange(4), torch.arange(L)))
    weight = TightWeighting(schedule)(t, x, z) / x.numel()
    scored = torch.rand(4, L) < 0.8
    hidden = torch.randn(4, L, 16)
    head, bias = torch.randn(V, 16), torch.randn(V)
    bias[-1] = -torch.inf

    def computed():
        inputs = [tensor.clone().requires_grad_() for tensor in (hidden, head, bias)]
        found = fused_loss(schedule, t, x, z, *inputs, weight, chunk_tokens=40, scored=scored)
        found.loss.backward()
        finite = inputs[2].grad[:-1]  # the mask's has no effect
        return (*found[1:], found.loss.detach(), inputs[0].grad, inputs[1].grad, finite)

    expected = computed()
    with acting_as("cuda"):
        actual = computed()
    for ours, theirs in zip(actual, expected, strict=True):
        scale = theirs.abs().max().clamp_min(1e-30)
        torch.testing.assert_close(ours / scale, theirs / scale, rtol=1e-5, atol=2e-6)


STEPS = {
    "ancestral": ancestral,
    "confidence": Confidence(),
    "greedy": Greedy(),
    "threshold": Threshold(fill=0.3),
    "remask_suspects": RemaskSuspects(suspect=0.3),
    "psi": Psi(renoise=0.5),
    "renoise": Renoise(entropy_bound=2.0),
}
CORRECTORS = {
    "gibbs": Gibbs(),
    "self-correction": SelfCorrectionStep(num_tokens=2),
    "greedy self-correction": SelfCorrectionStep(temperature=0.0),
    "posterior": PosteriorCorrection(),
}


def samples(device: str, schedule, plans, processors=(), lengths=range(L, 0, -1), change=None):
    model = denoiser()
    requests = [
        Request(
            tokens=(None,) * lengths[index],
            plan=plan,
            sample_index=index,
            processors=processors if index % 2 else (),
        )
        for index, plan in enumerate(plans)
    ]
    requests = requests if change is None else [change(request) for request in requests]
    if device == "cpu":
        found = Session(model, schedule, batch_size=4).sample(requests)
    else:
        move_to_pretended(model)
        with pretended_cuda(refuses_float64=False):
            session = Session(model, schedule, batch_size=4, device=torch.device("cuda:0"))
            found = session.sample(requests)
    return [
        (sample.tokens, [edit[:6] for edit in sample.edits], sample.forward_passes)
        for sample in found
    ]


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("name", few(SCHEDULES, every=3))
def test_ancestral_samples_of_every_noise(name):
    plans = [sampling_plan(even_times(6))] * 5
    assert samples("cuda", SCHEDULES[name], plans) == samples("cpu", SCHEDULES[name], plans)


@pytest.mark.long
@torch.no_grad()
@pytest.mark.parametrize("step", STEPS)
def test_samples_of_every_step(step):
    plans = [sampling_plan(even_times(6), STEPS[step])] * 5
    assert samples("cuda", SCHEDULES["hybrid"], plans) == samples("cpu", SCHEDULES["hybrid"], plans)


@pytest.mark.slow
@torch.no_grad()
def test_samples_of_a_step_for_masking_noise():
    plans = [sampling_plan(even_times(6), ReMDM(cap=0.5))] * 5
    assert samples("cuda", SCHEDULES["masked"], plans) == samples("cpu", SCHEDULES["masked"], plans)


@pytest.mark.slow
@torch.no_grad()
def test_samples_of_all_correctors_at_once():
    correctors = [corrector_plan(corrector, 5, 0.01) for corrector in CORRECTORS.values()]
    plans = [sampling_plan(even_times(4)) + corrector for corrector in correctors]
    assert samples("cuda", SCHEDULES["hybrid"], plans) == samples("cpu", SCHEDULES["hybrid"], plans)


@pytest.mark.long
@torch.no_grad()
@pytest.mark.parametrize("corrector", CORRECTORS)
def test_samples_of_every_corrector(corrector):
    plans = [sampling_plan(even_times(4)) + corrector_plan(CORRECTORS[corrector], 5, 0.01)] * 3
    assert samples("cuda", SCHEDULES["hybrid"], plans) == samples("cpu", SCHEDULES["hybrid"], plans)


@pytest.mark.slow
@torch.no_grad()
def test_samples_of_several_steps_and_processors_at_once():
    plans = [sampling_plan(even_times(6), step) for step in STEPS.values()]
    processors = (Temperature(0.7), TopK(9), EpsilonCutoff(1e-3))
    expected = samples("cpu", SCHEDULES["hybrid"], plans, processors)
    assert samples("cuda", SCHEDULES["hybrid"], plans, processors) == expected


def guided(request: Request) -> Request:
    """The request with two given tokens, guided by its index."""
    index, others = request.sample_index, request.tokens[2:]
    guidance = Guidance(0.5 * index, (VOCAB.mask_id, 7, *others))
    return replace(request, tokens=(index, 5, *others), guidance=guidance)


def with_choices(request: Request) -> Request:
    """The request with a slot, a larger one for even indices."""
    slots = Choices(3, ((4,), (9,))), Choices(2, ((1, 2), (3, 4), (3, 5)))
    return replace(request, choices=(slots[request.sample_index % 2],))


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("lengths", few([range(L, 0, -1), [L] * len(STEPS)], every=2))
@pytest.mark.parametrize("change", [guided, with_choices])
def test_samples_with_guidance_or_choices(change, lengths):
    plans = [sampling_plan(even_times(6), step) for step in STEPS.values()]
    options = {"processors": (TopK(9),), "lengths": lengths, "change": change}
    options |= {"schedule": SCHEDULES["hybrid"], "plans": plans}
    assert samples("cuda", **options) == samples("cpu", **options)


@torch.no_grad()
def test_a_step_that_reads_more_than_expected_is_repeated(monkeypatch):
    """Tiles are of 32 positions here, and each step expects to read none."""
    monkeypatch.setattr("gidd.sampling.fixed_shapes.GPU_TILE_ENTRIES", 0)
    monkeypatch.setattr("gidd.sampling.length_bucket.CAPACITY", 0)
    plans = [sampling_plan(even_times(2))] * 4  # the second step reads about half of 96 positions
    options = {"schedule": SCHEDULES["hybrid"], "plans": plans, "lengths": [L] * 4}
    assert samples("cuda", **options) == samples("cpu", **options)


@pytest.mark.parametrize("has_bias", [True, False])
def test_cross_entropy_and_its_gradients(has_bias):
    torch.manual_seed(1)
    labels, hidden, head = torch.randint(0, V, (90,)), torch.randn(90, 16), torch.randn(V, 16)
    bias = torch.randn(V) if has_bias else None

    def computed(function):
        inputs = [t.clone().requires_grad_() for t in (hidden, head, bias) if t is not None]
        loss, nll = function(inputs[0], inputs[1], inputs[2] if has_bias else None)
        loss.backward()
        return loss.detach(), nll.detach(), *(tensor.grad for tensor in inputs)

    def definition(states, weight, bias):
        nll = F.cross_entropy(F.linear(states, weight, bias), labels, reduction="none")
        return 0.1 * nll.sum(), nll

    def fused(states, weight, bias):
        return fused_cross_entropy(labels, states, weight, bias, 0.1, chunk_tokens=40)

    expected = computed(definition)
    on_cpu = computed(fused)
    with acting_as("cuda"):
        on_gpu = computed(fused)
    for theirs, *ours in zip(expected, on_cpu, on_gpu, strict=True):
        for value in ours:
            torch.testing.assert_close(value, theirs, rtol=1e-5, atol=1e-6)
