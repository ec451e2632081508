"""The fused head and loss against the definition: values, gradients, memory, skipped tokens."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support.cases import few
from support.strategies import (
    SCHEDULE_TYPES,
    WEIGHTING_TYPES,
    default_weighting,
    schedule_from_unit_cube,
    unit,
)
from test_golden import large_logits
from torch import Tensor

from gidd.common.devices import has_bf16
from gidd.diffusion.elbo import elbo_terms
from gidd.diffusion.loss import fused_cross_entropy, fused_loss
from gidd.diffusion.process import noise
from gidd.diffusion.randomness import Stream, random_integers
from gidd.diffusion.schedule import MixingSchedule
from gidd.diffusion.schedules import HybridSchedule, MaskedSchedule
from gidd.diffusion.weighting import ElboWeighting, TightWeighting
from gidd.errors import ConfigError, ScheduleError
from gidd.vocab import Vocab

VOCAB = Vocab(13, mask_id=12)
ROOT = Path(__file__).parents[2]
LOSS = np.load(ROOT / "tests" / "golden" / "loss_tokens.npz")


class Case:
    """A batch, hidden states and a head, in one precision on one device."""

    def __init__(self, schedule: MixingSchedule, dtype=torch.float64, device="cpu", seed=0):
        generator = torch.Generator().manual_seed(seed)
        batch, length, width, size = 3, 9, 6, schedule.vocab.size
        self.schedule = schedule
        self.t = torch.tensor([0.02, 0.5, 0.97], dtype=dtype, device=device)
        self.x = torch.randint(size - 1, (batch, length), generator=generator).to(device)
        u = random_integers(seed, Stream.NOISE, 0, torch.arange(3), torch.arange(length))
        self.z = noise(schedule, self.t, self.x, u.to(device))
        self.hidden = torch.randn(batch, length, width, generator=generator).to(device, dtype)
        self.weight = torch.randn(size, width, generator=generator).to(device, dtype)
        self.bias = torch.randn(size, generator=generator).to(device, dtype)
        self.inputs = [v.requires_grad_() for v in (self.hidden, self.weight, self.bias)]
        self.impossible = torch.arange(size, device=device) == schedule.vocab.mask_id

    def by_definition(self, loss_weight: Tensor):
        logits = self.hidden @ self.weight.T + self.bias
        x_theta = logits.masked_fill(self.impossible, -torch.inf).softmax(-1)
        terms = elbo_terms(self.schedule, self.t, self.x, self.z, x_theta)
        return (loss_weight * terms.divergence).sum(), terms

    def fused(self, loss_weight: Tensor, **options):
        bias = self.bias.masked_fill(self.impossible, -torch.inf)
        return fused_loss(
            self.schedule, self.t, self.x, self.z, self.hidden, self.weight, bias, loss_weight,
            **options,
        )  # fmt: skip


def relative(actual: Tensor, expected: Tensor) -> float:
    """Largest difference, relative to the largest entry."""
    expected = expected.detach().double().cpu()
    difference = (actual.detach().double().cpu() - expected).abs().max()
    return float(difference / expected.abs().max().clamp_min(1e-30))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule_type", "weighting"), few(SCHEDULE_TYPES, WEIGHTING_TYPES, every=3)
)
@given(cube=st.tuples(unit, unit, unit), seed=st.integers(0, 99))
def test_values_and_gradients_are_those_of_the_definition(schedule_type, weighting, cube, seed):
    """float64 to 1e-10, for every schedule and weighting."""
    schedule = schedule_from_unit_cube(schedule_type, VOCAB, cube)
    try:
        weights = default_weighting(weighting, schedule)
    except ScheduleError:
        return  # dynamic weights, where they are not defined
    case = Case(schedule, seed=seed)
    loss_weight = weights(case.t, case.x, case.z) / case.x.numel()
    expected, terms = case.by_definition(loss_weight)
    actual = case.fused(loss_weight, chunk_tokens=5)
    assert relative(actual.loss, expected) < 1e-10
    assert torch.equal(actual.weight, terms.weight)
    touched = (loss_weight != 0) | (terms.weight != 0)
    torch.testing.assert_close(actual.kl[touched], terms.kl[touched], rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(
        actual.itakura_saito[touched], terms.itakura_saito[touched], rtol=1e-8, atol=1e-12
    )
    for ours, definition in zip(
        torch.autograd.grad(actual.loss, case.inputs),
        torch.autograd.grad(expected, case.inputs),
        strict=True,
    ):
        assert relative(ours, definition) < 1e-10


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("weighting", WEIGHTING_TYPES)
@pytest.mark.parametrize("schedule_type", SCHEDULE_TYPES)
def test_float32_and_bf16(schedule_type, weighting, compiled, device):
    """Against float64 on the same numbers: float32 to 1e-5, bf16 hidden states to 1e-2."""
    schedule = schedule_from_unit_cube(schedule_type, VOCAB, (0.3, 0.5, 0.7))
    try:
        weights = default_weighting(weighting, schedule)
    except ScheduleError:
        return
    for hidden_dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 1e-2)):
        case = Case(schedule, torch.float32, device)
        # hidden states and head that bf16 represents exactly: only the arithmetic is tested
        case.inputs = [v.detach().to(hidden_dtype).requires_grad_() for v in case.inputs]
        case.hidden, case.weight, case.bias = case.inputs
        loss_weight = weights(case.t, case.x, case.z) / case.x.numel()
        actual = case.fused(loss_weight, compiled=compiled)
        assert actual.loss.dtype == torch.float32
        gradients = torch.autograd.grad(actual.loss, case.inputs)

        exact = Case(schedule, torch.float64)
        exact.inputs = [v.detach().cpu().double().requires_grad_() for v in case.inputs]
        exact.hidden, exact.weight, exact.bias = exact.inputs
        exact.z = case.z.cpu()
        expected, _ = exact.by_definition(loss_weight.cpu().double())
        assert relative(actual.loss, expected) < tolerance
        for ours, definition in zip(
            gradients, torch.autograd.grad(expected, exact.inputs), strict=True
        ):
            assert ours.dtype == hidden_dtype
            assert relative(ours, definition) < tolerance


def test_float32_head_under_bf16_states():
    """As under autocast: bf16 states, a float32 head, and a float32 gradient for it."""
    case = Case(HybridSchedule(VOCAB, 0.2), torch.float32)
    case.hidden = case.hidden.detach().bfloat16().requires_grad_()
    loss_weight = torch.ones_like(case.x, dtype=torch.float32)
    case.fused(loss_weight).loss.backward()
    assert case.hidden.grad.dtype == torch.bfloat16
    assert case.weight.grad.dtype == torch.float32


@pytest.mark.parametrize("which", ["hidden", "head", "autocast", "cross entropy"])
def test_training_in_float16_is_refused(which):
    """The gradients would be rounded before a scaler multiplies them: finite, and wrong by 20%."""
    case = Case(HybridSchedule(VOCAB, 0.2), torch.float32)
    if which == "hidden":
        case.hidden = case.hidden.detach().half()  # the head alone is trained
    elif which == "head":
        case.weight = case.weight.detach().half().requires_grad_()
    is_autocast = which in ("autocast", "cross entropy")
    weight = torch.ones_like(case.x, dtype=torch.float32)

    def loss():
        if which == "cross entropy":
            parts = case.x.flatten(), case.hidden.flatten(0, 1), case.weight
            return fused_cross_entropy(*parts, None, 1.0)[0]
        return case.fused(weight).loss

    with torch.autocast("cpu", torch.float16, enabled=is_autocast):
        with pytest.raises(ConfigError, match=r"must not be float16 .*Use bfloat16"):
            loss()
        with torch.no_grad():  # an evaluation has no gradient to lose
            assert loss().isfinite()


@pytest.mark.parametrize("schedule_type", SCHEDULE_TYPES)
def test_chunks_change_nothing(schedule_type):
    schedule = schedule_from_unit_cube(schedule_type, VOCAB, (0.3, 0.5, 0.7))
    case = Case(schedule)
    loss_weight = TightWeighting(schedule)(case.t, case.x, case.z)
    full = case.fused(loss_weight)
    gradients = torch.autograd.grad(full.loss, case.inputs)
    for chunk_tokens in (1, 2, 7, 26, 27, 1000):
        part = case.fused(loss_weight, chunk_tokens=chunk_tokens)
        torch.testing.assert_close(part.loss, full.loss, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(part.kl, full.kl, rtol=1e-12, atol=1e-14)
        for ours, reference in zip(
            torch.autograd.grad(part.loss, case.inputs), gradients, strict=True
        ):
            torch.testing.assert_close(ours, reference, rtol=1e-10, atol=1e-13)


def test_mask_only_noise_never_runs_the_head_on_visible_tokens():
    """Hidden states of visible tokens may be anything, even not a number."""
    schedule = MaskedSchedule(VOCAB)
    case = Case(schedule)
    visible = case.z != VOCAB.mask_id
    assert visible.any() and (~visible).any()
    loss_weight = ElboWeighting(schedule)(case.t, case.x, case.z)
    expected, _ = case.by_definition(loss_weight)
    with torch.no_grad():
        case.hidden[visible] = torch.nan
    actual = case.fused(loss_weight)
    torch.testing.assert_close(actual.loss, expected, rtol=1e-12, atol=0)
    actual.loss.backward()
    assert (case.hidden.grad[visible] == 0).all()
    assert case.weight.grad.isfinite().all()


def test_a_batch_without_any_loss():
    """All tokens visible under mask-only noise: zero loss, zero gradients."""
    case = Case(MaskedSchedule(VOCAB))
    case.z = case.x
    result = case.fused(torch.zeros_like(case.x, dtype=torch.float64))
    result.loss.backward()
    assert float(result.loss.detach()) == 0
    assert all(float(v.grad.abs().max()) == 0 for v in case.inputs)


@pytest.mark.parametrize("scale", [0.0, 1.0, 80.0])
@pytest.mark.parametrize("schedule_type", SCHEDULE_TYPES)
@pytest.mark.parametrize("time", [1e-6, 0.5, 1 - 1e-6])
def test_extreme_logits_stay_finite(schedule_type, scale, time):
    """float32, logits up to +-80 and beyond what a softmax can hold."""
    schedule = schedule_from_unit_cube(schedule_type, VOCAB, (0.3, 0.5, 0.7))
    case = Case(schedule, torch.float32)
    case.t = torch.full_like(case.t, time)
    with torch.no_grad():
        case.weight.mul_(scale / case.weight.abs().max())
        case.hidden.sign_()
    loss_weight = ElboWeighting(schedule)(case.t, case.x, case.z)
    result = case.fused(loss_weight)
    result.loss.backward()
    assert result.loss.isfinite()
    assert all(v.grad.isfinite().all() for v in case.inputs)


def test_a_second_backward_is_an_error():
    case = Case(HybridSchedule(VOCAB, 0.1))
    loss = case.fused(torch.ones_like(case.x, dtype=torch.float64)).loss
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="second time.*elbo_terms"):
        loss.backward()


def test_the_gradient_from_above_is_applied():
    case = Case(HybridSchedule(VOCAB, 0.1))
    ones = torch.ones_like(case.x, dtype=torch.float64)
    plain = torch.autograd.grad(case.fused(ones).loss, case.inputs)
    scaled = torch.autograd.grad(-3 * case.fused(ones).loss, case.inputs)
    for a, b in zip(plain, scaled, strict=True):
        torch.testing.assert_close(b, -3 * a)


def test_chunk_tokens_must_be_positive():
    with pytest.raises(ConfigError, match="chunk_tokens .* got 0"):
        case = Case(HybridSchedule(VOCAB, 0.1))
        case.fused(torch.ones_like(case.x, dtype=torch.float64), chunk_tokens=0)


GOLDEN_CASES = [
    *(("n5", g, p) for g in range(3) for p in range(4)),
    ("n258", 1, 2),  # gamma = 1, p_u = 0.2: the one case that the file holds
    *(("n50258", 0, p) for p in range(3)),
]


@pytest.mark.parametrize(("prefix", "g", "p"), GOLDEN_CASES)
def test_golden_gradients(prefix, g, p):
    """loss_tokens.npz, through a head whose columns are the logits and states that pick them."""
    large = prefix == "n50258"
    x, z = (torch.from_numpy(LOSS[f"{prefix}_{name}"]) for name in ("x", "z"))
    t = torch.from_numpy(LOSS[f"{prefix}_t"])
    gamma = float(LOSS["n50258_gamma" if large else "gamma"][g])
    p_uniform = float(LOSS["n50258_p_u" if large else "p_u"][p])
    logits = large_logits(x) if large else torch.from_numpy(LOSS[f"{prefix}_logits"]).double()
    size = logits.shape[-1]
    schedule = HybridSchedule(Vocab(size, mask_id=size - 1), p_uniform, gamma)
    weight = logits.flatten(0, 1).T.contiguous().requires_grad_()  # [V, tokens]
    hidden = torch.eye(x.numel(), dtype=torch.float64).view(*x.shape, -1)
    bias = torch.zeros(size, dtype=torch.float64)
    bias[-1] = -torch.inf
    possible = (z == x) | (z == size - 1) | (p_uniform > 0)
    result = fused_loss(schedule, t, x, z, hidden, weight, bias, possible.double())
    result.loss.backward()
    gradient = weight.grad.T.view(*x.shape, size)

    def golden(name: str) -> Tensor:
        array = LOSS[f"{prefix}_{name}"]
        return torch.from_numpy(array[p] if large else array[g, p])

    # elbo.py cancels analytically what is summed here: correct to 1e-9 of the probabilities
    torch.testing.assert_close(result.kl[possible], golden("kl")[possible], rtol=1e-9, atol=1e-14)
    if large:
        ids = torch.stack([x, z, torch.full_like(x, 1), torch.full_like(x, 12345)], dim=-1)
        gradient, expected = gradient.gather(-1, ids), golden("grad_sel")
    elif prefix == "n258":
        expected = torch.from_numpy(LOSS["n258_grad_klis_g1_pu02"])
    else:
        expected = golden("grad_klis")
    scale = float(expected[possible].abs().max())
    torch.testing.assert_close(
        gradient[possible], expected[possible], rtol=1e-9, atol=1e-13 * scale
    )


@pytest.mark.perf
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_at_full_size(dtype):
    """4,096 tokens, V = 50,258, d = 768: 0.35 of one [4096, V] float32 tensor beyond gradients."""
    if dtype == torch.bfloat16 and not has_bf16(torch.device("cpu")):
        pytest.skip("without bf16 instructions torch multiplies float32 copies")
    spec = importlib.util.spec_from_file_location("loss", ROOT / "benchmarks" / "loss.py")
    benchmark = importlib.util.module_from_spec(spec)
    sys.modules["loss"] = benchmark  # the measuring process imports it by this name
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        spec.loader.exec_module(benchmark)
        assert benchmark.memory(dtype, "fused") <= 0.35
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))
        del sys.modules["loss"]


@pytest.mark.parametrize("p_uniform", [0.0, 0.2])
def test_terms_without_gradients_are_those_of_training(p_uniform):
    """Blocks of several samples, tokens that are not scored, and no gradients."""
    torch.manual_seed(0)
    schedule = HybridSchedule(Vocab(13, mask_id=12), p_uniform)
    t = torch.tensor([0.05, 0.4, 0.9])
    x = torch.randint(12, (3, 7))
    z = torch.where(torch.rand(3, 7) < 0.5, x, torch.tensor(12))
    hidden, weight = torch.randn(3, 7, 4), torch.randn(13, 4, requires_grad=True)
    bias = torch.zeros(13).index_fill(0, torch.tensor([12]), -torch.inf)
    arguments = schedule, t, x, z, hidden, weight, bias, torch.ones(3, 7)
    expected = fused_loss(*arguments)
    scored = torch.rand(3, 7) < 0.6
    with torch.no_grad():
        found = fused_loss(*arguments)
        some = fused_loss(*arguments, scored=scored)
    assert expected.loss.requires_grad and not found.loss.requires_grad
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-6, atol=1e-6)
    assert not some.kl[~scored].any() and not some.itakura_saito[~scored].any()
    torch.testing.assert_close(some.kl[scored], found.kl[scored], rtol=1e-6, atol=1e-6)
