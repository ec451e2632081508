"""From hidden states to a distribution over clean tokens."""

import pytest
import torch
from torch import nn

from gidd.diffusion.elbo import elbo_terms
from gidd.diffusion.loss import fused_loss
from gidd.diffusion.schedules import HybridSchedule, UniformSchedule
from gidd.diffusion.weighting import TightWeighting
from gidd.errors import ConfigError
from gidd.models import Denoiser, DiT, DiTConfig
from gidd.vocab import Vocab

VOCAB = Vocab(11, mask_id=4)


def denoiser(vocab: Vocab = VOCAB, rows: int = 16) -> Denoiser:
    """A random model with some padding rows."""
    torch.manual_seed(0)
    config = DiTConfig(
        vocab_size=rows, max_length=8, width=32, num_layers=1, num_heads=2, time_width=16
    )
    model = Denoiser(DiT(config), vocab).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


@pytest.fixture
def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(11, (3, 8), generator=torch.Generator().manual_seed(1)), torch.rand(3)


def test_the_mask_has_probability_zero_and_the_rest_sums_to_one(inputs):
    x_theta = denoiser()(*inputs)
    assert x_theta.shape == (3, 8, 11)
    assert (x_theta[..., 4] == 0).all()
    assert (x_theta[..., [v for v in range(11) if v != 4]] > 0).all()
    torch.testing.assert_close(x_theta.sum(-1), torch.ones(3, 8), rtol=0, atol=1e-6)


def test_it_is_the_softmax_of_the_other_logits(inputs):
    """The logits of the mask and of the padding rows have no effect."""
    model = denoiser()
    others = [v for v in range(11) if v != 4]
    expected = model.backbone(*inputs)[..., others].softmax(-1)
    torch.testing.assert_close(model(*inputs)[..., others], expected)
    with torch.no_grad():
        model.backbone.head.bias[[4, 11, 15]] = 1e4
    torch.testing.assert_close(model(*inputs)[..., others], expected)


def test_without_a_mask_every_token_is_possible(inputs):
    assert (denoiser(Vocab(11))(*inputs) > 0).all()


def test_distribution_of_some_positions_equals_the_whole(inputs):
    model = denoiser()
    hidden, x_theta = model.hidden(*inputs), model(*inputs)
    torch.testing.assert_close(model.distribution(hidden), x_theta, rtol=0, atol=0)
    chosen = torch.tensor([[0, 3], [2, 7]])
    torch.testing.assert_close(
        model.distribution(hidden[chosen[:, 0], chosen[:, 1]]), x_theta[chosen[:, 0], chosen[:, 1]]
    )
    assert model.distribution(hidden[0, 0]).shape == (11,)


@pytest.mark.parametrize("autocast", [True, False])
def test_output_is_float32(inputs, autocast):
    """Also for bf16 weights; the softmax of bf16 hidden states is not rounded again."""
    model = denoiser()
    if not autocast:
        model = model.bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        hidden, x_theta = model.hidden(*inputs), model(*inputs)
    assert x_theta.dtype == torch.float32
    weight, bias = (part.double() for part in model.head())
    exact = (hidden.double() @ weight.T + bias).softmax(-1)
    torch.testing.assert_close(x_theta.double(), exact, rtol=1e-5, atol=1e-9)


def test_nothing_of_the_caller_is_changed(inputs):
    model = denoiser()
    z, t = inputs
    hidden = model.hidden(z, t).detach()
    owned = [z, t, hidden, *model.parameters()]
    copies = [tensor.detach().clone() for tensor in owned]
    model(z, t)
    model.distribution(hidden)
    model.head().bias.detach().zero_()
    for tensor, copy in zip(owned, copies, strict=True):
        assert torch.equal(tensor, copy)


@pytest.mark.parametrize("schedule", [HybridSchedule(VOCAB, 0.2), UniformSchedule(VOCAB)])
def test_gradients_are_finite_and_zero_for_impossible_tokens(inputs, schedule):
    z, t = inputs
    model = denoiser()
    x = torch.where(z == 4, 0, z)
    if isinstance(schedule, UniformSchedule):
        z = x
    elbo_terms(schedule, t, x, z, model(z, t)).divergence.mean().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    head = model.backbone.head
    for impossible in (4, 11, 15):
        assert head.bias.grad[impossible] == 0 and (head.weight.grad[impossible] == 0).all()
    assert head.bias.grad[0] != 0 and model.backbone.embedding.weight.grad.any()


def test_head_is_what_distribution_uses(inputs):
    model = denoiser()
    weight, bias = model.head()
    assert weight.shape == (11, 32) and bias.shape == (11,)
    assert bias[4] == -torch.inf and bias.isinf().sum() == 1
    logits = model.hidden(*inputs) @ weight.T + bias
    torch.testing.assert_close(logits.softmax(-1), model(*inputs))


class Bag(nn.Module):
    """The smallest backbone: an embedding, no time; its head has no bias."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.head = nn.Linear(6, 11, bias=False)

    def hidden(self, z, t):
        return self.embedding(z)


def test_any_backbone_works(inputs):
    x_theta = Denoiser(Bag(), VOCAB)(*inputs)
    assert (x_theta[..., 4] == 0).all()
    torch.testing.assert_close(x_theta.sum(-1), torch.ones(3, 8))


def test_backbones_get_float32_times(inputs):
    """Samplers compute with float64 times, which not every layer accepts."""
    z, t = inputs
    seen = []

    class Timed(Bag):
        def hidden(self, z, t):
            seen.append((z.dtype, t.dtype, t.shape))
            return super().hidden(z, t)

    Denoiser(Timed(), VOCAB)(z, t.double())
    assert seen == [(torch.int64, torch.float32, (3,))]
    model = denoiser()
    assert torch.equal(model(z, t.double()), model(z, t))


def test_a_head_that_is_too_small_is_refused():
    with pytest.raises(ConfigError, match=r"head .* 12 rows, got 11"):
        Denoiser(Bag(), Vocab(12))


def test_the_fused_loss_trains_a_network_as_the_definition_does(inputs):
    """Same loss, same gradient of every parameter of a DiT, padding rows of the head included."""
    z, _ = inputs
    x = (z + 1) % 11
    x = torch.where(x == VOCAB.mask_id, 0, x)
    t = torch.tensor([0.1, 0.5, 0.9])
    schedule = HybridSchedule(VOCAB, 0.2)
    weights = TightWeighting(schedule)(t, x, z) / x.numel()

    model = denoiser()
    terms = elbo_terms(schedule, t, x, z, model(z, t))
    expected = (weights * terms.divergence).sum()
    expected.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()

    head = model.head()
    result = fused_loss(
        schedule, t, x, z, model.hidden(z, t), head.weight, head.bias, weights, chunk_tokens=5
    )
    torch.testing.assert_close(result.loss, expected, rtol=1e-5, atol=0)
    result.loss.backward()
    for name, parameter in model.named_parameters():
        scale = float(gradients[name].abs().max())
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-3, atol=1e-5 * scale)
    assert (model.backbone.head.weight.grad[11:] == 0).all()
    assert (model.backbone.head.bias.grad[VOCAB.mask_id] == 0).all()
