"""The loss kernel against `token_terms` in float64."""

from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from support.interpreted import interpret, needs_triton
from torch import Tensor

from gidd.diffusion.loss.token_terms import LossTokens, TokenTerms, token_terms
from gidd.diffusion.schedule import MixingSchedule
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
from gidd.vocab import Vocab

pytestmark = needs_triton

TERMS, GRADIENT = 1e-5, 5e-6
"""Largest relative error of KL and IS, and of the gradient as a fraction of the row's maximum."""

ROUNDING = {"float32": (0.0, 0.0), "bfloat16": (2.0**-7, 0.0), "float16": (2.0**-11, 2.0**-25)}
"""Relative and absolute error of storing a gradient; the interpreter truncates bf16, GPUs round."""


def schedule_of(noise: str, vocab: Vocab) -> MixingSchedule:
    match noise.split():
        case ["hybrid", p_uniform]:
            return HybridSchedule(vocab, float(p_uniform))
        case ["masked"]:
            return MaskedSchedule(vocab)
        case ["uniform"]:
            return UniformSchedule(vocab)
        case _:
            zipf = uniform_noise(vocab) / torch.arange(1, vocab.size + 1, dtype=torch.float64)
            unigram = MixtureComponent(zipf / zipf.sum(), PeakedAmount(0.2))
            return MixtureSchedule(
                vocab, (MixtureComponent(mask_noise(vocab), LinearAmount()), unigram)
            )


class Problem(NamedTuple):
    """Logits and tokens: kept ones, masks and replaced ones, at early and late times."""

    logits: Tensor
    tokens: LossTokens
    noise_rows: Tensor

    @classmethod
    def of(cls, noise: str, vocab_size: int, dtype: str, scale: float) -> "Problem":
        vocab = Vocab(vocab_size, mask_id=vocab_size - 1)
        schedule, width = schedule_of(noise, vocab), -(-vocab_size // 64) * 64 + 64
        t = torch.tensor([1e-4, 0.5, 0.9999])
        if vocab_size < 9999:
            # KL is a small difference of float32 sums where noise has no masks and alpha < b
            t = torch.tensor([1e-4, 0.99 if noise == "uniform" else 0.9999])
        generator = torch.Generator().manual_seed(0)
        x = torch.randint(0, vocab_size - 1, (len(t), 3), generator=generator)
        z = x.clone()
        if noise != "uniform":
            z[:, 1] = vocab_size - 1
        if noise != "masked":
            z[:, 2] = (x[:, 2] + 7) % (vocab_size - 1)
        logits = torch.randn(x.numel(), vocab_size, generator=generator) * scale
        logits[torch.arange(len(logits)), x.flatten()] += 8  # of a network that is often right
        logits[:, -1] = -torch.inf
        logits = F.pad(logits, (0, width - vocab_size), value=-torch.inf)
        weight = torch.rand(x.shape, generator=generator)
        tokens = LossTokens.of(schedule, t, x, z, weight, torch.arange(len(logits)), width)
        rows = F.pad(schedule.beta_pi(t), (0, width - vocab_size))
        return cls(logits.to(getattr(torch, dtype)), tokens, rows)

    def expected(self) -> TokenTerms:
        parts = (p.double() if p is not None and p.is_floating_point() else p for p in self.tokens)
        return token_terms(self.logits.double(), LossTokens(*parts).gathered(), True)

    def computed(self, with_rows: bool, with_gradient: bool = True) -> TokenTerms:
        """Call the kernel; `with_rows`: as if the noise were not flat."""
        from gidd.diffusion.kernels import loss

        if self.logits.shape[1] < 9999:
            loss.TILE_BYTES = 512 * self.logits.element_size()  # several in a row
        noise, sample = self.tokens.noise, self.tokens.sample
        if with_rows:
            noise, sample = self.noise_rows, torch.arange(len(self.noise_rows)).repeat_interleave(3)
        elif noise is not None and sample is None:
            noise = noise.squeeze(-1).contiguous()
        logits, parts = self.logits.clone(), self.tokens[1:-2]
        terms = loss.launch_loss_rows(logits, *parts, noise, sample, with_gradient)
        return TokenTerms(*(term.double() for term in (*terms, logits)))


def relative(value: Tensor, expected: Tensor) -> float:
    return ((value - expected).abs() / expected.abs().clamp_min(1e-9)).max().item()


def gradient_error(found: TokenTerms, expected: TokenTerms, dtype: str = "float32") -> float:
    """Return the largest error beyond that of the storage, as a fraction of the row's maximum."""
    error, (ratio, least) = (found.gradient - expected.gradient).abs(), ROUNDING[dtype]
    error -= ratio * expected.gradient.abs() + least
    return (error.amax(-1) / expected.gradient.abs().amax(-1)).max().item()


def errors(noise: str, vocab_size: int, dtype: str, scale: float, with_rows: bool) -> list[float]:
    """Return the errors of KL, IS and gradient, and the largest gradient of a padding column."""
    problem = Problem.of(noise, vocab_size, dtype, scale)
    found, expected = problem.computed(with_rows), problem.expected()
    return [
        relative(found.kl, expected.kl),
        relative(found.itakura_saito, expected.itakura_saito),
        gradient_error(found, expected, dtype),
        found.gradient[:, vocab_size:].abs().max().item(),
    ]


Case = tuple[str, int, str, float, bool]


def all_errors(cases: list[Case]) -> list[list[float]]:
    return [errors(*case) for case in cases]


def require_small(cases: list[Case]) -> None:
    for case, found in zip(cases, interpret(all_errors, cases), strict=True):
        print(*case, *(f"{error:.1e}" for error in found))
        kl, itakura_saito, gradient, padding = found
        assert max(kl, itakura_saito) <= TERMS, case
        assert gradient <= GRADIENT, case
        assert padding == 0, case


NOISES = ["hybrid 0.2", "hybrid 0.01", "hybrid 1e-5", "masked", "uniform", "unigram"]
"""At 1e-5 the products of four logits would overflow."""


@pytest.mark.slow
def test_terms_and_gradients_are_those_of_the_definition():
    noises = [noise for noise in NOISES if noise != "hybrid 0.01"]
    cases: list[Case] = [(noise, 2000, "float32", 1.0, False) for noise in noises]
    require_small([*cases, ("hybrid 0.2", 2000, "bfloat16", 1.0, False)])


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_with_the_vocabulary_of_gpt2(dtype: str):
    require_small([(noise, 50_258, dtype, 6.0, False) for noise in NOISES])


@pytest.mark.long
def test_other_types_and_flat_noise_as_rows():
    float16: list[Case] = [(noise, 2000, "float16", 1.0, False) for noise in NOISES]
    require_small(float16 + [(noise, 2000, "float32", 1.0, True) for noise in NOISES])


def other_uses() -> dict[str, bool]:
    """Return which of the kernel's other uses are right."""
    problem = Problem.of("hybrid 0.2", 500, "float32", 1.0)
    few = slice(2, 5)
    problem = problem._replace(logits=problem.logits[few], tokens=problem.tokens.rows(few))
    full, terms = problem.computed(False), problem.computed(False, with_gradient=False)
    clean = problem._replace(tokens=LossTokens.clean(problem.tokens.x, problem.tokens.loss_weight))
    nll, expected = clean.computed(False), clean.expected()
    broken = problem._replace(logits=problem.logits.clone())
    broken.logits[1, 17] = torch.nan
    found = broken.computed(False)
    is_nan = torch.stack([found.kl, found.itakura_saito, found.gradient.sum(-1)]).isnan()
    return {
        "without gradient": torch.equal(terms.kl, full.kl)
        and torch.equal(terms.itakura_saito, full.itakura_saito)
        and torch.equal(terms.gradient, problem.logits.double()),
        "cross-entropy": relative(nll.kl, expected.kl) <= TERMS and not nll.itakura_saito.any(),
        "its gradient": gradient_error(nll, expected) <= GRADIENT,
        "NaN in one row alone": torch.equal(is_nan, (torch.arange(3) == 1).expand(3, 3)),
    }


@pytest.mark.slow
def test_without_gradient_without_noise_and_with_nan():
    found = interpret(other_uses)
    assert all(found.values()), found
