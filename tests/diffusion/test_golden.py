"""The golden figures: rtol 1e-9 in float64, 2e-5 in float32.

float32 cannot hold t = 0.9999 well enough for 1 - t to have more than four digits, so float32 is
compared with float64 at the same float32 time, after float64 has been compared with the figures.
"""

import json
from collections.abc import Callable
from pathlib import Path

import mpmath
import numpy as np
import pytest
import torch
from support.autoregressive import ar_nll
from support.cases import few
from torch import Tensor

from gidd.diffusion.categorical import cut_below
from gidd.diffusion.constants import PAPER_CEILING
from gidd.diffusion.elbo import ElboTerms, elbo_terms, elbo_weight, mdm_loss
from gidd.diffusion.process import marginal_at, posterior, transition
from gidd.diffusion.schedules import FirstReleaseSchedule, HybridSchedule, MaskedSchedule
from gidd.diffusion.schedules.curves import value_and_slope
from gidd.diffusion.times import stratify
from gidd.diffusion.weighting import ClampWeighting, DynamicWeighting
from gidd.vocab import Vocab

GOLDEN = Path(__file__).parents[1] / "golden"
SCHEDULE = np.load(GOLDEN / "schedule.npz")
LOSS = np.load(GOLDEN / "loss_tokens.npz")
POSTERIOR = np.load(GOLDEN / "posterior.npz")
REF_LOSS = np.load(GOLDEN / "ref_loss.npz")
MISC = json.loads((GOLDEN / "misc.json").read_text())

GAMMAS = list(enumerate(SCHEDULE["gamma"].tolist()))
P_UNIFORMS = list(enumerate(SCHEDULE["p_u"].tolist()))
VOCABS = [(i, Vocab(n, mask_id=n - 1)) for i, n in enumerate(SCHEDULE["N"].tolist())]
GRID = few(GAMMAS, P_UNIFORMS, VOCABS, every=5)
RTOL64, RTOL32 = 1e-9, 2e-5


def assert_matches(actual: Tensor, expected: Tensor, rtol: float, atol: float = 0.0) -> None:
    torch.testing.assert_close(actual.cpu().double(), expected.cpu().double(), rtol=rtol, atol=atol)


# ---------------------------------------------------------------------------- schedules and weights


def schedule_quantities(schedule: HybridSchedule, t: Tensor) -> dict[str, Tensor]:
    """Every array of schedule.npz that has a time axis, from the library's functions."""
    vocab, ones = schedule.vocab, torch.ones_like(t, dtype=torch.long)[:, None]
    m, x, u = ones * vocab.mask_id, ones * 0, ones * 1
    beta_pi, inflow = schedule.beta_pi(t), schedule.inflow(t)
    beta = beta_pi.sum(-1)

    def at_classes(function: Callable[..., Tensor], name: str) -> dict[str, Tensor]:
        # class u does not exist at p_u = 0: its weight is a limit there, of an event that never is
        classes = {"m": m, "x": x} | ({"u": u} if schedule.p_uniform > 0 else {})
        return {f"{name}_{c}": function(t, x, z).squeeze(-1) for c, z in classes.items()}

    def elbo(t: Tensor, x: Tensor, z: Tensor) -> Tensor:
        return elbo_weight(schedule, t, x, z)

    clamps = {
        f"{name}_clamp{label}": weight
        for label, w_max in (("1", 1.0), ("1e4", PAPER_CEILING))
        for name, weight in at_classes(ClampWeighting(schedule, w_max), "w").items()
    }
    return {
        "c": schedule.c.value(t),
        "C": 1 + schedule.c.value(t),
        "c_prime": value_and_slope(schedule.c.value, t)[1],
        "alpha": schedule.alpha(t),
        "beta": beta,
        "betapi_mask": beta_pi[:, vocab.mask_id],
        "betapi_unif": beta_pi[:, 1],
        "betapi_unif_total": beta_pi[:, :-1].sum(-1),
        "alpha_ratio": -inflow.sum(-1),
        "rate_mask": inflow[:, vocab.mask_id],
        "rate_unif": inflow[:, 1],
        "rate_unif_total": inflow[:, :-1].sum(-1),
        "q_x": marginal_at(schedule, t, x, torch.ones_like(t)[:, None]).squeeze(-1),
        "q_u": marginal_at(schedule, t, u, torch.zeros_like(t)[:, None]).squeeze(-1),
        "snr": schedule.alpha(t) / beta,
        **at_classes(elbo, "w"),
        **clamps,
        **at_classes(DynamicWeighting(schedule), "dyn"),
    }


def golden_schedule(name: str, gamma: int, p_uniform: int, vocab: int) -> Tensor:
    array = np.exp(SCHEDULE["log_snr"]) if name == "snr" else SCHEDULE[name]
    array = array[gamma, p_uniform]
    return torch.from_numpy(array[vocab] if array.ndim == 2 else array)


@pytest.mark.slow
@pytest.mark.parametrize(("at_gamma", "at_p_uniform", "at_vocab"), GRID)
def test_golden_schedule_arrays(at_gamma, at_p_uniform, at_vocab, device):
    """schedule.npz: N = 5, 258, 50,258, t from 1e-4 to 1 - 1e-4."""
    (g, gamma), (p, p_uniform), (v, vocab) = at_gamma, at_p_uniform, at_vocab
    schedule = HybridSchedule(vocab, p_uniform, gamma)
    assert pytest.approx(SCHEDULE["B"][g, p], rel=1e-15) == schedule.c.B
    t = torch.from_numpy(SCHEDULE["t"])
    for name, value in schedule_quantities(schedule, t).items():
        assert_matches(value, golden_schedule(name, g, p, v), RTOL64)

    t32 = t.float()
    exact = schedule_quantities(schedule, t32.double())
    for name, value in schedule_quantities(schedule, t32.to(device)).items():
        assert_matches(value, exact[name], RTOL32)


@pytest.mark.slow
@pytest.mark.parametrize(("at_gamma", "at_p_uniform", "at_vocab"), GRID)
def test_golden_transitions(at_gamma, at_p_uniform, at_vocab, device):
    """schedule.npz: alpha_{t|s} and beta_{t|s} pi_{t|s}."""
    (g, gamma), (p, p_uniform), (v, vocab) = at_gamma, at_p_uniform, at_vocab
    schedule = HybridSchedule(vocab, p_uniform, gamma)
    s, t = torch.from_numpy(SCHEDULE["st_pairs"]).unbind(-1)
    step = transition(schedule, s, t)
    assert_matches(step.alpha, golden_schedule("alpha_ts", g, p, v), RTOL64)
    beta = step.beta_pi.sum(-1)
    assert_matches(beta, golden_schedule("beta_ts", g, p, v), RTOL64, atol=1e-15)
    mask, unif = step.beta_pi[:, vocab.mask_id], step.beta_pi[:, 1]
    assert_matches(mask, golden_schedule("betapi_ts_mask", g, p, v), RTOL64)
    assert_matches(unif, golden_schedule("betapi_ts_unif", g, p, v), RTOL64)
    total = golden_schedule("betapi_ts_unif_total", g, p, v)
    assert_matches(unif * (vocab.size - 1), total, RTOL64)

    s32, t32 = s.float(), t.float()
    exact = transition(schedule, s32.double(), t32.double())
    rough = transition(schedule, s32.to(device), t32.to(device))
    assert_matches(rough.alpha, exact.alpha, RTOL32)
    assert_matches(rough.beta_pi, exact.beta_pi, RTOL32)


# ----------------------------------------------------------------------------------- the loss terms


def golden_loss_inputs(
    prefix: str, dtype: torch.dtype
) -> tuple[Vocab, Tensor, Tensor, Tensor, Tensor]:
    x, z = (torch.from_numpy(LOSS[f"{prefix}_{name}"]) for name in ("x", "z"))
    t = torch.from_numpy(LOSS[f"{prefix}_t"]).to(dtype)
    logits = large_logits(x) if prefix == "n50258" else torch.from_numpy(LOSS[f"{prefix}_logits"])
    vocab = Vocab(logits.shape[-1], mask_id=logits.shape[-1] - 1)
    return vocab, t, x, z, logits.to(dtype)


def large_logits(x: Tensor) -> Tensor:
    """The logits for N = 50,258, which are given by integer arithmetic instead of a file."""
    b, length, k = torch.arange(2)[:, None, None], torch.arange(6)[:, None], torch.arange(50258)
    logits = ((7919 * k + 104729 * length + 15485863 * b) % 10007).double() / 10007 * 8 - 4
    boost = torch.from_numpy(LOSS["n50258_boost"])
    return logits.scatter_add(-1, x[..., None], boost[..., None])


def softmax_without_mask(logits: Tensor) -> Tensor:
    mask = torch.zeros(logits.shape[-1], dtype=torch.bool, device=logits.device)
    mask[-1] = True
    return logits.masked_fill(mask, -torch.inf).softmax(-1)


def loss_quantities(
    schedule: HybridSchedule, t: Tensor, x: Tensor, z: Tensor, logits: Tensor
) -> tuple[dict[str, Tensor], ElboTerms]:
    x_theta = softmax_without_mask(logits)
    terms = elbo_terms(schedule, t, x, z, x_theta)
    keeps = (z == x).to(t.dtype)
    quantities = {
        "q_zt_x": marginal_at(schedule, t, z, keeps),
        "q_zt_th": marginal_at(schedule, t, z, x_theta.gather(-1, z[..., None]).squeeze(-1)),
        "kl": terms.kl,
        "is": terms.itakura_saito,
        "w": terms.weight,
        "elbo": terms.weight * terms.divergence,
    }
    weightings = {
        "clamp1": ClampWeighting(schedule, 1.0),
        "clamp1e4": ClampWeighting(schedule, PAPER_CEILING),
        "dyn": DynamicWeighting(schedule),
    }
    for name, weighting in weightings.items():
        weight = weighting(t, x, z)
        quantities[f"w_{name}"] = weight
        quantities[f"loss_{name}"] = weight * terms.divergence
    return quantities, terms


# The figures were summed in float64 without cancelling the first-order terms, so a divergence is
# right to about 2e-16 of the probabilities, not of itself; test_fifty_digits settles the rest.
GOLDEN_NOISE = 2e-15

LOSS_CASES = [
    (prefix, g, gamma, p, p_uniform)
    for prefix, gammas, p_uniforms in (
        ("n5", LOSS["gamma"], LOSS["p_u"]),
        ("n258", LOSS["gamma"], LOSS["p_u"]),
        ("n50258", LOSS["n50258_gamma"], LOSS["n50258_p_u"]),
    )
    for g, gamma in enumerate(gammas.tolist())
    for p, p_uniform in enumerate(p_uniforms.tolist())
]


@pytest.mark.parametrize(("prefix", "g", "gamma", "p", "p_uniform"), LOSS_CASES)
def test_golden_loss_terms(prefix, g, gamma, p, p_uniform, device):
    """loss_tokens.npz: every per-token term, and the same numbers in float32."""
    vocab, t, x, z, logits = golden_loss_inputs(prefix, torch.float64)
    schedule = HybridSchedule(vocab, p_uniform, gamma)
    possible = (z == x) | (z == vocab.mask_id) | (p_uniform > 0)
    actual, terms = loss_quantities(schedule, t, x, z, logits)
    for name, value in actual.items():
        golden = LOSS[f"{prefix}_{name}"]
        expected = torch.from_numpy(golden[p] if prefix == "n50258" else golden[g, p])
        weight = actual.get(name.replace("loss", "w").replace("elbo", "w"), torch.ones_like(t))
        noise = (
            0.0 if name.startswith(("w", "q")) else GOLDEN_NOISE * float(weight.max().clamp_min(1))
        )
        assert_matches(value[possible], expected[possible], RTOL64, atol=noise)

    vocab, t, x, z, logits = golden_loss_inputs(prefix, torch.float32)
    exact, _ = loss_quantities(schedule, t.double(), x, z, logits.double())
    rough, _ = loss_quantities(schedule, *(tensor.to(device) for tensor in (t, x, z, logits)))
    for name, value in rough.items():
        assert_matches(value.cpu()[possible], exact[name][possible], RTOL32)


@pytest.mark.parametrize("p", range(3))
def test_golden_loss_terms_at_float32_times(p):
    """ref_loss.npz: the brute force's terms at times that float32 holds exactly."""
    p_uniform = [np.exp(-20.0), 0.1, 0.2][p]
    vocab, _, x, z, logits = golden_loss_inputs("n258", torch.float64)
    schedule = HybridSchedule(vocab, p_uniform)
    t = torch.from_numpy(REF_LOSS["t_f32"])
    for dtype, rtol in ((torch.float64, RTOL64), (torch.float32, RTOL32)):
        actual, _ = loss_quantities(schedule, t.to(dtype), x, z, logits.to(dtype))
        for name in ("kl", "is", "w", "elbo", "w_dyn", "w_clamp1", "loss_dyn", "loss_clamp1"):
            expected = torch.from_numpy(REF_LOSS[f"oracle_{name}"][p])
            weight = actual.get(name.replace("loss", "w").replace("elbo", "w"), torch.ones(1))
            noise = 0.0 if name.startswith("w") else GOLDEN_NOISE * float(weight.max().clamp_min(1))
            assert_matches(actual[name], expected, rtol, atol=noise)


def test_fifty_digits():
    """Where the float64 figures have lost their digits, 50-digit arithmetic has not."""
    vocab, t, x, z, logits = golden_loss_inputs("n5", torch.float64)
    schedule = HybridSchedule(vocab, 0.5, 0.5)  # the smallest divergences of all, down to 1e-15
    terms = elbo_terms(schedule, t, x, z, softmax_without_mask(logits))
    with mpmath.workdps(50):
        for b, i in np.ndindex(*x.shape):
            kl, itakura_saito = fifty_digit_divergences(t[b], x[b, i], z[b, i], logits[b, i])
            assert float(terms.kl[b, i]) == pytest.approx(kl, rel=RTOL64, abs=0)
            assert float(terms.itakura_saito[b, i]) == pytest.approx(
                itakura_saito, rel=RTOL64, abs=0
            )


def fifty_digit_divergences(t: Tensor, x: Tensor, z: Tensor, logits: Tensor) -> tuple[float, float]:
    """KL and IS of the hybrid schedule with p_u = 1/2, gamma = 1/2, from Eqs. 14 and 18."""
    size = len(logits)
    exponentials = [mpmath.exp(v) for v in logits.tolist()[:-1]] + [mpmath.mpf(0)]
    x_theta = [e / sum(exponentials) for e in exponentials]
    t = mpmath.mpf(t.item())
    c = mpmath.sqrt(2) * (t * (1 - t)) ** mpmath.mpf("0.25")
    noise = [c / (size - 1)] * (size - 1) + [t]
    q = [((1 - t) * int(v == x) + noise[v]) / (1 + c) for v in range(size)]
    p = [((1 - t) * x_theta[v] + noise[v]) / (1 + c) for v in range(size)]
    kl = sum(q[v] * mpmath.log(q[v] / p[v]) for v in range(size))
    ratio = q[int(z)] / p[int(z)]
    return float(kl), float(ratio - mpmath.log(ratio) - 1)


@pytest.mark.slow
@pytest.mark.parametrize(("prefix", "g", "gamma", "p", "p_uniform"), LOSS_CASES)
def test_golden_gradients(prefix, g, gamma, p, p_uniform):
    """loss_tokens.npz: the gradient of KL + IS in the logits."""
    if prefix == "n258" and (gamma, p_uniform) != (1.0, 0.2):
        return  # the file holds this one case for N = 258
    vocab, t, x, z, logits = golden_loss_inputs(prefix, torch.float64)
    schedule = HybridSchedule(vocab, p_uniform, gamma)
    logits.requires_grad_()
    terms = elbo_terms(schedule, t, x, z, softmax_without_mask(logits))
    (gradient,) = torch.autograd.grad(terms.divergence.sum(), logits)
    possible = (z == x) | (z == vocab.mask_id) | (p_uniform > 0)
    if prefix == "n50258":
        ids = torch.stack([x, z, torch.full_like(x, 1), torch.full_like(x, 12345)], dim=-1)
        selected = torch.from_numpy(LOSS["n50258_grad_sel"][p])
        assert_matches(gradient.gather(-1, ids)[possible], selected[possible], 1e-9, atol=1e-15)
        norm = torch.from_numpy(LOSS["n50258_grad_l2"][p])
        assert_matches(gradient.norm(dim=-1)[possible], norm[possible], 1e-9)
        assert (gradient.sum(-1).abs() < 1e-12 * norm)[possible].all()
    else:
        golden = LOSS["n5_grad_klis"][g, p] if prefix == "n5" else LOSS["n258_grad_klis_g1_pu02"]
        expected = torch.from_numpy(golden)
        scale = float(expected[possible].abs().max())
        assert_matches(gradient[possible], expected[possible], 1e-9, atol=1e-13 * scale)


def test_golden_mdm_and_autoregressive_losses():
    """loss_tokens.npz: the masked-diffusion and the next-token loss."""
    vocab, t, x, z, logits = golden_loss_inputs("n258", torch.float64)
    loss = mdm_loss(MaskedSchedule(vocab), t, x, z, softmax_without_mask(logits))
    assert_matches(loss, torch.from_numpy(LOSS["mdm_loss"]), RTOL64)

    nll = ar_nll(logits, x)
    assert_matches(nll, torch.from_numpy(LOSS["ar_nll"]), RTOL64)
    label_is_real = torch.from_numpy(LOSS["ar_attention_mask"])[:, 1:].bool()
    assert float(nll[label_is_real].mean()) == pytest.approx(
        float(LOSS["ar_loss_labelmask"]), rel=RTOL64
    )


# -------------------------------------------------------------------------- the reverse step, times


@pytest.mark.parametrize("config", range(5))
@pytest.mark.parametrize("prefix", ["n5", "n258"])
def test_golden_posteriors(prefix, config, device):
    """posterior.npz: p_theta(z_s | z_t) in full, with s = 0 and s = t among the pairs."""
    gamma, p_uniform = POSTERIOR[f"{prefix}_cfg_gamma_pu"][config]
    logits = torch.from_numpy(POSTERIOR[f"{prefix}_logits"])
    vocab = Vocab(logits.shape[-1], mask_id=logits.shape[-1] - 1)
    schedule = HybridSchedule(vocab, float(p_uniform), float(gamma))
    t, s = torch.from_numpy(POSTERIOR[f"{prefix}_ts_pairs"]).unbind(-1)
    z = torch.from_numpy(POSTERIOR[f"{prefix}_zt"]).expand(len(t), -1)
    x_theta = softmax_without_mask(logits.double()).expand(len(t), -1, -1)
    expected = torch.from_numpy(POSTERIOR[f"{prefix}_post"][config])
    known = ~expected.isnan()
    actual = posterior(schedule, s, t, z, x_theta)
    assert_matches(actual[known], expected[known], RTOL64, atol=1e-15)
    assert_matches(actual.sum(-1), torch.ones_like(actual[..., 0]), 1e-12)

    s32, t32 = s.float(), t.float()
    x_theta32 = x_theta.float()
    exact = posterior(schedule, s32.double(), t32.double(), z, x_theta32.double())
    rough = posterior(schedule, *(v.to(device) for v in (s32, t32, z.contiguous(), x_theta32)))
    # a difference of float32 times is exact, a difference of beta_pi at those times is not
    assert_matches(rough, exact, RTOL32)

    if prefix == "n258" and config == 2:
        cut = cut_below(actual[1], float(POSTERIOR["n258_minp_value"]))
        assert_matches(cut, torch.from_numpy(POSTERIOR["n258_minp_post"]), RTOL64)


@pytest.mark.parametrize("case", MISC["low_discrepancy"])
def test_golden_stratified_times(case):
    """misc.json: evenly spaced times under one shift."""
    slot = torch.arange(case["B"], dtype=torch.float64)
    t = stratify(case["u"], slot, case["B"], case["eps"])
    assert_matches(t, torch.tensor(case["t"], dtype=torch.float64), RTOL64)


FIRST_RELEASE = json.loads((GOLDEN / "schedule_v1.0.0.json").read_text())


@pytest.mark.parametrize("p_uniform", FIRST_RELEASE["p_u"])
def test_golden_schedule_of_the_published_checkpoints(p_uniform):
    """schedule_v1.0.0.json: another constant B, of one token and not of all together."""
    vocab, rows = Vocab(50258, mask_id=50257), FIRST_RELEASE["p_u"][p_uniform]
    schedule = FirstReleaseSchedule(vocab, float(p_uniform))
    np.testing.assert_allclose(schedule.B, np.exp(rows[0]["log_B"]), rtol=1e-12)
    t = torch.tensor(FIRST_RELEASE["t"], dtype=torch.float64)
    for name, actual in (
        ("alpha", schedule.alpha(t)),
        ("betapi_mask", schedule.beta_pi(t)[:, vocab.mask_id]),
        ("betapi_other", schedule.beta_pi(t)[:, 0]),
        ("unif_total", schedule.beta_pi(t)[:, 1:-1].sum(-1)),  # all but the mask and x = 0
    ):
        expected = torch.tensor([row[name] for row in rows], dtype=torch.float64)
        assert_matches(actual, expected, RTOL64)
