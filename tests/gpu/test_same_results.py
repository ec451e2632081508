"""What is computed for a GPU is what is computed on the CPU."""

import pytest
import torch
import torch.nn.functional as F

from gidd.common.devices import acting_as
from gidd.diffusion.loss import fused_cross_entropy, fused_loss
from gidd.diffusion.process import noise
from gidd.diffusion.randomness import Stream, random_integers
from gidd.diffusion.schedules import (
    HybridSchedule,
    LinearAmount,
    MaskedSchedule,
    MixtureComponent,
    MixtureSchedule,
    PeakedAmount,
    UniformSchedule,
    mask_noise,
    uniform_noise,
)
from gidd.diffusion.weighting import TightWeighting
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
            MixtureComponent(mask_noise(VOCAB), LinearAmount()),
            MixtureComponent(ZIPF / ZIPF.sum(), PeakedAmount(0.2)),
        ),
    ),
}


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
