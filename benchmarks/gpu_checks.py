"""Kernels against their definitions, on a device: a part of `gpu.py`.

The reference is computed on the CPU, from the same rounded inputs: terms and gradients of the loss
by `token_terms` in float64, random bits and tokens by the functions in torch. On the CPU the
operators run their definitions, in float64 as well: that tests this file, not the kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gidd.common.devices import acting_as
from gidd.diffusion.categorical import draw, draw_flat, flat_entries
from gidd.diffusion.loss import HEAD_ROWS
from gidd.diffusion.loss.token_terms import LossTokens, loss_rows, token_terms
from gidd.diffusion.process import noise
from gidd.diffusion.randomness import Stream, random_integers
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

MAX_TERM_ERROR = 1e-5
"""Of KL and IS, relative; absolute below `SMALL_TERM`, in units of it."""

SMALL_TERM = 1e-6
MAX_GRADIENT_ERROR = 5e-6
"""Relative to the largest entry of a row."""

BF16_ROUNDING = 2.0**-8
"""Relative error of a stored bf16 number, which is not counted as an error of the gradient."""

TIMES = (1e-4, 0.3, 0.7, 0.9999)
DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16}


class Check(NamedTuple):
    """An error and the largest that is allowed."""

    error: float
    bound: float

    @property
    def passed(self) -> bool:
        """Whether the error is within its bound; NaN is not."""
        return self.error <= self.bound


def kernel_checks(
    vocab: Vocab, device: torch.device, num_rows: int = 64
) -> Iterator[tuple[str, Check]]:
    """Yield name and result of every check, with `num_rows` rows of logits each."""
    yield "random_integers: bits that differ", _check_random_integers(device)
    for name, schedule in _schedules(vocab).items():
        yield f"draw_flat, {name}: tokens that differ", _check_draw_flat(schedule, device)
        for precision, dtype in DTYPES.items():
            errors = _check_loss_rows(schedule, dtype, device, num_rows)
            for term, check in errors.items():
                yield f"loss_rows, {name}, {precision}: {term}", check


def _on_gpu_path(device: torch.device) -> AbstractContextManager[None]:
    """Let a CPU run the operators as well."""
    return nullcontext() if device.type == "cuda" else acting_as("cuda")


def _schedules(vocab: Vocab) -> dict[str, MixingSchedule]:
    rank = torch.arange(1, vocab.size + 1, dtype=torch.float64)
    unigram = uniform_noise(vocab) / rank
    components = (
        MixtureComponent(mask_noise(vocab), LinearAmount()),
        MixtureComponent(unigram / unigram.sum(), PeakedAmount(0.2)),
    )
    return {
        "hybrid": HybridSchedule(vocab, 0.1),
        "masked": MaskedSchedule(vocab),
        "uniform": UniformSchedule(vocab),
        "unigram": MixtureSchedule(vocab, components),
    }


def _check_random_integers(device: torch.device) -> Check:
    """Compare bits at large and small addresses, with one seed and with one per sample."""
    sample, position = torch.tensor([0, 5, 2**33 + 9, 2**40, 3]), torch.arange(1000)
    seeds, steps = torch.tensor([0, 1, 2**31 - 1, 2**62 + 5, 7]), torch.arange(5) * 1000
    different = 0
    for seed, step in ((12345, 7), (seeds, steps)):
        expected = random_integers(seed, Stream.TOKEN, step, sample, position)
        with _on_gpu_path(device):
            computed = random_integers(
                seed if isinstance(seed, int) else seed.to(device),
                Stream.TOKEN,
                step if isinstance(step, int) else step.to(device),
                sample.to(device),
                position.to(device),
            )
        different += int((computed.cpu() != expected).sum())
    return Check(different, 0)


def _check_draw_flat(schedule: MixingSchedule, device: torch.device) -> Check:
    """Compare with `draw` from complete rows; other noise than flat is always drawn so."""
    t = torch.tensor(TIMES)
    u = random_integers(1, Stream.NOISE, 0, torch.arange(len(t)), torch.arange(4096))
    flat, alpha = schedule.flat_beta_pi(t), schedule.alpha(t)
    rows = torch.cat([alpha[:, None], schedule.beta_pi(t)], dim=-1)
    expected = draw(rows, u)
    if flat is None:
        return Check(int((draw(rows.to(device), u.to(device)).cpu() != expected).sum()), 0)
    other = None if flat.other is None else flat.other.to(device)
    numbers = alpha.to(device), flat.mask.to(device), other
    with _on_gpu_path(device):
        entries = flat_entries(*numbers)
        computed = draw_flat(entries, schedule.vocab.size, flat.mask_id, u.to(device))
    return Check(int((computed.cpu() != expected).sum()), 0)


def _check_loss_rows(
    schedule: MixingSchedule, dtype: torch.dtype, device: torch.device, num_rows: int
) -> dict[str, Check]:
    """Return the errors of KL, IS and gradient; the worst of flat and of peaked predictions."""
    errors = {"KL": 0.0, "IS": 0.0, "gradient": 0.0, "gradient of padding": 0.0}
    for scale in (1.0, 6.0):
        logits, tokens = _loss_inputs(schedule, dtype, num_rows, scale)
        exact = _mapped(tokens, lambda part: part.double() if part.is_floating_point() else part)
        expected = token_terms(logits.double(), exact.gathered(), True)
        overwritten = logits.to(device, copy=True)
        on_device = exact if device.type == "cpu" else _mapped(tokens, lambda part: part.to(device))
        terms = loss_rows(overwritten, on_device, True)
        gradient, size = overwritten.cpu().double(), schedule.vocab.size
        computed = {
            "KL": _term_error(terms[0], expected.kl),
            "IS": _term_error(terms[1], expected.itakura_saito),
            "gradient": _gradient_error(gradient[:, :size], expected.gradient[:, :size], dtype),
            "gradient of padding": float(gradient[:, size:].abs().sum()),
        }
        errors = {name: _worst(error, computed[name]) for name, error in errors.items()}
    bounds = {"KL": MAX_TERM_ERROR, "IS": MAX_TERM_ERROR, "gradient": MAX_GRADIENT_ERROR}
    return {name: Check(error, bounds.get(name, 0.0)) for name, error in errors.items()}


def _loss_inputs(
    schedule: MixingSchedule, dtype: torch.dtype, num_rows: int, scale: float
) -> tuple[Tensor, LossTokens]:
    """Make padded logits that favour x, and tokens of which some are kept, some replaced."""
    generator, vocab = torch.Generator().manual_seed(0), schedule.vocab
    t, num_data = torch.tensor(TIMES), vocab.size - 1
    shape = len(t), -(-num_rows // len(t))
    x = torch.randint(num_data, shape, generator=generator)
    u = random_integers(0, Stream.NOISE, 0, torch.arange(shape[0]), torch.arange(shape[1]))
    z = noise(schedule, t, x, u)
    z[:, 0] = x[:, 0]
    if schedule.beta_pi(t)[0, 0] > 0:
        z[:, 1] = (x[:, 1] + 7) % num_data
    logits = scale * torch.randn(x.numel(), vocab.size, generator=generator)
    logits[torch.arange(x.numel()), x.flatten()] += 8
    logits[:, vocab.mask_id] = -math.inf
    logits = F.pad(logits, (0, -vocab.size % HEAD_ROWS), value=-math.inf).to(dtype)
    weight = torch.rand(shape, generator=generator)
    row = torch.arange(x.numel())
    return logits, LossTokens.of(schedule, t, x, z, weight, row, logits.shape[1])


def _mapped(tokens: LossTokens, function: Callable[[Tensor], Tensor]) -> LossTokens:
    parts: list[Any] = [None if part is None else function(part) for part in tokens]
    return LossTokens(*parts)


def _term_error(computed: Tensor, expected: Tensor) -> float:
    difference = (computed.cpu().double() - expected).abs()
    return float((difference / expected.abs().clamp_min(SMALL_TERM)).max())


def _gradient_error(computed: Tensor, expected: Tensor, dtype: torch.dtype) -> float:
    difference = (computed - expected).abs()
    if dtype == torch.bfloat16:
        difference = (difference - BF16_ROUNDING * expected.abs()).clamp_min(0)
    return float((difference.amax(-1) / expected.abs().amax(-1).clamp_min(1e-30)).max())


def _worst(a: float, b: float) -> float:
    return max(a, b) if a == a and b == b else math.nan
