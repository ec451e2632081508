"""The EMA of the weights: it forgets the initial ones, and can be resumed."""

import pytest
import torch
from torch import nn

from gidd.training.optim import OptimConfig, adamw
from gidd.training.state import EMA, TrainState


def weight(value):
    return nn.Parameter(torch.full((3,), value))


def state_of(decay):
    """A state whose model is one weight, before the first step."""
    model = nn.Linear(3, 1, bias=False)
    model.weight.data.zero_()
    return TrainState(
        model=model,
        module=model,
        corrupt=None,
        objective=None,
        metrics=None,
        optimizers=(adamw(model, OptimConfig()),),
        ema=EMA(model.named_parameters(), decay),
    )


def advance(state, values):
    for value in values:
        state.model.weight.data.fill_(value)
        state.ema.update(state.model.named_parameters())
        state.step += 1


def test_a_short_run_forgets_its_first_weights():
    """With a decay of 0.9999 from the first step on, 97% of what is left would be the start."""
    ema = EMA([("w", weight(0.0))], 0.9999)
    for _ in range(300):
        ema.update([("w", weight(1.0))])
    torch.testing.assert_close(ema.values["w"], torch.ones(3), atol=1e-6, rtol=0)


def test_a_long_run_has_the_given_decay():
    ema = EMA([("w", weight(0.0))], 0.9)
    for _ in range(100):  # (1 + n) / (10 + n) is above 0.9 from n = 80 on
        ema.update([("w", weight(1.0))])
    before = 1 - ema.values["w"].double()
    ema.values["w"].zero_()
    ema.update([("w", weight(1.0))])
    assert before.abs().max() < 1e-6
    torch.testing.assert_close(1 - ema.values["w"], torch.full((3,), 0.9))


@pytest.mark.parametrize("at", [1, 7, 200])
def test_an_ema_is_resumed_to_the_last_bit(at):
    values = torch.linspace(-1, 2, 250).tolist()
    whole, first, second = (state_of(0.99) for _ in range(3))
    advance(whole, values)
    advance(first, values[:at])
    for name, tensor in second.tensors().items():
        tensor.copy_(first.tensors()[name])
    second.restore(first.record())
    advance(second, values[at:])
    assert torch.equal(second.ema.values["weight"], whole.ema.values["weight"])


@pytest.mark.parametrize("dtypes", [(torch.float32,), (torch.float32, torch.bfloat16)], ids=str)
def test_an_update_has_the_bits_of_one_tensor_after_the_other(dtypes):
    torch.manual_seed(0)
    shapes = [(), (3,), (7, 5), (0, 4), (2, 3, 1)]
    weights = [
        (f"{dtype} {shape}", nn.Parameter(torch.randn(shape, dtype=dtype)))
        for dtype in dtypes
        for shape in shapes
    ]
    ema = EMA(weights, 0.99)
    expected = {name: torch.randn_like(value) for name, value in ema.values.items()}
    for name, value in ema.values.items():
        value.copy_(expected[name])
    for n in range(100):
        decay = min(0.99, (1 + n) / (10 + n))
        for name, weight in weights:
            weight.data.normal_()
            expected[name].lerp_(weight.detach(), 1 - decay)
        ema.update(weights)
    for name, value in ema.values.items():
        assert torch.equal(value, expected[name]), name
