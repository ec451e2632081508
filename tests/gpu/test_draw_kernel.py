"""The kernel that draws tokens from logits, against `temper`, `draw` and `scaled_log_odds`."""

import pytest
import torch
from support.interpreted import interpret, needs_triton
from torch import Tensor

from gidd.diffusion.randomness import UNIT_BITS, Stream, random_integers
from gidd.sampling.processors import temper
from gidd.sampling.row_sampler import DenseSampler

pytestmark = needs_triton

NUM_ROWS = 6
NAMES = ("token", "p_token", "p_current", "top", "p_top", "log_odds")


def rows_of_logits(vocab_size: int, width: int) -> Tensor:
    """Return rows with impossible tokens; some have one likely token or equal largest logits."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.full((NUM_ROWS, width), -torch.inf)
    logits[:, :vocab_size] = torch.randn(NUM_ROWS, vocab_size, generator=generator) * 3
    logits[:2, vocab_size // 2] += 20
    logits[2, [vocab_size // 3, vocab_size // 2, 9]] = logits[2].max() + 1
    logits[:, :7] = -torch.inf
    return logits


def launch(logits: Tensor, current: Tensor, u: Tensor, temperature: float, odds: bool):
    from gidd.diffusion.kernels import rows

    if logits.shape[1] < 9999:
        rows.TILE = 512  # so that a row has several tiles
    integers, numbers = torch.empty(2, len(u), dtype=torch.int64), torch.empty(4, len(u))
    outputs = integers[0], numbers[0], numbers[1], integers[1], numbers[2], numbers[3]
    rows.launch_draw_rows(logits, current, u, temperature, odds, outputs)
    return dict(zip(NAMES, outputs, strict=True))


def distance_to_next(p: Tensor, u: Tensor) -> float:
    """Return the least distance of a uniform to one that gives another token."""
    edges = p.cumsum(-1) / p.sum(-1, keepdim=True)
    return (edges - u[:, None] / 2**UNIT_BITS).abs().min().item()


def errors(vocab_size: int, temperature: float) -> dict[str, float]:
    """Return the largest error of each output, and the margin of the uniforms."""
    logits = rows_of_logits(vocab_size, -(-vocab_size // 64) * 64)
    current = torch.arange(NUM_ROWS) * 50 + 7
    u = random_integers(3, Stream.TOKEN, 0, torch.arange(1), torch.arange(NUM_ROWS))[0]
    p = logits.double().softmax(-1)
    draws = DenseSampler(p, current, u, temperature)
    token, probability = draws.draw()
    odds = draws.log_odds(token, torch.ones_like(token, dtype=torch.bool))
    wanted = token, probability, draws.current, draws.top, draws.top_probability, odds
    found = launch(logits, current, u, temperature, True)
    result = {"margin": distance_to_next(temper(p, temperature), u)}
    for (name, value), expected in zip(found.items(), wanted, strict=True):
        error = (value - expected).abs()
        result[name] = (error / expected if name.startswith("p_") else error).max().item()
    return result


def all_errors(vocab_size: int, temperatures: list[float]) -> list[dict[str, float]]:
    return [errors(vocab_size, temperature) for temperature in temperatures]


def require_small(temperatures: list[float], all_found: list[dict[str, float]]) -> None:
    for temperature, found in zip(temperatures, all_found, strict=True):
        print(temperature, {name: f"{error:.1e}" for name, error in found.items()})
        assert found["token"] == found["top"] == 0
        assert found["margin"] > 1e-6 or temperature == 0  # more than float32 is off
        assert max(found["p_token"], found["p_current"], found["p_top"]) <= 5e-6
        assert found["log_odds"] <= 1e-5


@pytest.mark.long
def test_with_the_vocabulary_of_gpt2():
    temperatures = [1.0, 0.5, 0.0]
    require_small(temperatures, interpret(all_errors, 50_258, temperatures))


@pytest.mark.long
def test_at_a_high_temperature():
    require_small([3.0], interpret(all_errors, 2000, [3.0]))


def special_rows() -> dict[str, bool]:
    """Return which properties of special uniforms and rows hold."""
    logits = rows_of_logits(1000, 1024)
    u = torch.tensor([0, 2**UNIT_BITS - 1]).repeat(NUM_ROWS // 2)
    current = torch.arange(NUM_ROWS) + 7
    found = launch(logits, current, u, 1.0, False)
    result = {
        "first token": bool((found["token"][::2] == 7).all()),
        "possible tokens": bool(logits.isfinite().gather(1, found["token"][:, None]).all()),
        "no odds": not found["log_odds"].any(),
    }
    logits[1, 300], logits[4] = torch.nan, torch.nan
    for temperature in (0.1, 0.0):
        found = launch(logits, current, u, temperature, True)
        numbers = torch.stack([found[name] for name in NAMES if name not in ("token", "top")])
        is_nan = torch.tensor([1, 4]) == torch.arange(NUM_ROWS)[:, None]
        is_right = torch.equal(numbers.isnan(), is_nan.any(-1).expand(4, NUM_ROWS))
        result[f"NaN where it belongs at {temperature}"] = is_right
        tokens = torch.stack([found["token"], found["top"]])
        result[f"valid tokens at {temperature}"] = bool(((tokens >= 0) & (tokens < 1000)).all())
    return result


def everything(vocab_size: int, temperatures: list[float]) -> tuple[object, object]:
    return all_errors(vocab_size, temperatures), special_rows()


@pytest.mark.slow
def test_rows_are_drawn_as_defined_with_extreme_uniforms_and_nan():
    temperatures = [1.0, 0.1, 0.0]
    found, special = interpret(everything, 2000, temperatures)
    require_small(temperatures, found)
    assert all(special.values()), special
