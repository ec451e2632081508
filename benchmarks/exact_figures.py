"""Every figure of docs/figures/exact.md, computed exactly, with nothing sampled.

python benchmarks/exact_figures.py           # tables in Markdown, about two minutes on two cores
python benchmarks/exact_figures.py --json    # the same as one JSON object on the last line
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
import torch
from script import parser_of, size
from torch import Tensor

from gidd.diffusion.process import marginal_at
from gidd.diffusion.schedule import MixingSchedule
from gidd.diffusion.schedules import (
    Cosine,
    FunctionalSchedule,
    FunctionAmount,
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
from gidd.diffusion.times import even_times, paper_nodes, sine_midpoints, sine_times
from gidd.diffusion.weighting import (
    ClampWeighting,
    DynamicWeighting,
    ElboWeighting,
    TightWeighting,
)
from gidd.sources import MarkovSource
from gidd.sources.enumeration import (
    DenoiserFunction,
    SmallWorld,
    block_worlds,
    exact_nodes,
    total_variation,
    unigram_nelbo,
)
from gidd.vocab import Vocab

VOCAB = Vocab(4, mask_id=3)
LARGE = size(50258, 300)
NODES = size(128, 4)
Table = list[dict[str, object]]


def frequency_mixture() -> MixtureSchedule:
    """Masking, with uniform noise and noise by rank frequency on the way."""
    zipf = uniform_noise(VOCAB) / torch.arange(1, VOCAB.size + 1, dtype=torch.float64)
    components = (
        MixtureComponent(mask_noise(VOCAB), LinearAmount()),
        MixtureComponent(uniform_noise(VOCAB), PeakedAmount(0.24, 1.1)),
        MixtureComponent(zipf / zipf.sum(), FunctionAmount(lambda t: 0.7 * t.square())),
    )
    return MixtureSchedule(VOCAB, components)


def drifting_noise() -> FunctionalSchedule:
    """Noise that drifts from uniform towards the mask as t grows."""

    def beta_pi(t: Tensor) -> Tensor:
        drift = (0.6 * t)[:, None]
        noise = (1 - drift) * uniform_noise(VOCAB, t) + drift * mask_noise(VOCAB, t)
        return t[:, None] * noise

    return FunctionalSchedule(VOCAB, lambda t: 1 - t, beta_pi)


def leave_one_out() -> Table:
    """NELBO minus entropy, of the leave-one-out and of the ordinary posterior (V = 3, L = 3)."""
    schedules: dict[str, MixingSchedule] = {
        "masked, linear": MaskedSchedule(VOCAB),
        "masked, cosine": MaskedSchedule(VOCAB, Cosine()),
        "uniform": UniformSchedule(Vocab(3)),
        "hybrid, p_u = 0.1": HybridSchedule(VOCAB, 0.1),
        "hybrid, p_u = 0.3": HybridSchedule(VOCAB, 0.3),
        "hybrid, p_u = 0.2, gamma = 0.5": HybridSchedule(VOCAB, 0.2, 0.5),
        "mask + uniform + frequencies": frequency_mixture(),
        "functional (drifting noise)": drifting_noise(),
    }
    rows: Table = []
    for name, schedule in schedules.items():
        world = SmallWorld(MarkovSource.random(3, 0.5), schedule, length=3)
        gap = world.nelbo(world.leave_one_out, exact_nodes(NODES)) - world.entropy
        rows.append(
            {
                "schedule": name,
                "entropy": world.entropy,
                "gap, leave-one-out": gap,
                "gap, posterior": world.nelbo(world.posterior, exact_nodes(NODES)) - world.entropy,
            }
        )
    return rows


def blocks() -> Table:
    """Sum of the NELBOs of blocks minus entropy, by block length (V = 3, L = 4).

    The denoisers are the optimal one, and its distributions squared: one too sure of itself.
    """
    source = MarkovSource.random(3, 0.5)
    rows: Table = []
    for name, schedule in {
        "masked": MaskedSchedule(VOCAB),
        "hybrid, p_u = 0.2": HybridSchedule(VOCAB, 0.2),
        "uniform": UniformSchedule(Vocab(3)),
    }.items():
        entropy = SmallWorld(source, schedule, 4).entropy
        for kind in (_optimal, _squared):
            row: dict[str, object] = {"schedule": name, "denoiser": kind.__name__.strip("_")}
            for length in (1, 2, 4):
                worlds = block_worlds(source, schedule, 4, length)
                nelbos = [world.nelbo(kind(world), exact_nodes(NODES)) for world in worlds]
                row[f"blocks of {length}"] = math.fsum(nelbos) - entropy
            rows.append(row)
    return rows


def _optimal(world: SmallWorld) -> DenoiserFunction:
    return world.leave_one_out


def _squared(world: SmallWorld) -> DenoiserFunction:
    def denoiser(z: Tensor, t: Tensor) -> Tensor:
        p = world.leave_one_out(z, t).square()
        total = p.sum(-1, keepdim=True)
        return p / total.masked_fill(total == 0, 1)

    return denoiser


def reweighting() -> Table:
    """True NELBO of the exact minimiser of each reweighted loss (L = 3)."""
    rng = np.random.default_rng(0)
    rows: Table = []
    for num_tokens, p_uniform in ((3, 0.1), (3, 0.2), (6, 0.2)):
        schedule = HybridSchedule(Vocab(num_tokens + 1, mask_id=num_tokens), p_uniform)
        world = SmallWorld(MarkovSource.random(num_tokens, 0.3, rng), schedule, length=3)
        row: dict[str, object] = {
            "V": num_tokens,
            "p_u": p_uniform,
            "entropy": world.entropy,
        }
        for weighting in (ElboWeighting, TightWeighting, DynamicWeighting, ClampWeighting):
            minimiser = world.minimiser(weighting(schedule))
            name = weighting.__name__.removesuffix("Weighting").lower()
            row[name] = world.nelbo(minimiser, exact_nodes(2 * NODES))
        row["all equal"] = world.nelbo(world.posterior, exact_nodes(NODES))
        rows.append(row)
    return rows


def odds_boost() -> Table:
    """Odds boost of the visible token by each weighting; 1 is right (N = 50,258, p_u = 0.2)."""
    schedule = HybridSchedule(Vocab(50258, mask_id=50257), 0.2)
    z, x = torch.tensor([[7, 7]]), torch.tensor([[7, 8]])
    rows: Table = []
    for time in (1e-4, 0.01, 0.1, 0.5, 0.9):
        t = torch.tensor([time], dtype=torch.float64)
        q = marginal_at(schedule, t, z, (x == z).double())
        row: dict[str, object] = {"t": time}
        for weighting in (ElboWeighting, TightWeighting, DynamicWeighting, ClampWeighting):
            kept, replaced = (q * weighting(schedule)(t, x, z))[0]
            name = weighting.__name__.removesuffix("Weighting").lower()
            row[name] = float(kept / replaced)
        rows.append(row)
    return rows


def reverse_chain() -> Table:
    """Total variation to the data of the whole reverse chain, exact denoiser (V = 3, L = 3)."""
    schedules: dict[str, MixingSchedule] = {
        "masked": MaskedSchedule(VOCAB),
        "uniform": UniformSchedule(Vocab(3)),
        "hybrid, p_u = 0.1": HybridSchedule(VOCAB, 0.1),
        "hybrid, p_u = 0.2": HybridSchedule(VOCAB, 0.2),
        "hybrid, p_u = 0.5": HybridSchedule(VOCAB, 0.5),
    }
    steps = size((8, 32, 128, 512), (2, 4, 8, 16))
    rows: Table = []
    for name, schedule in schedules.items():
        world = SmallWorld(MarkovSource.random(3, 0.3, rng=1), schedule, length=3)

        def error(times: Tensor, world: SmallWorld = world) -> float:
            return total_variation(
                world.reverse_distribution(world.leave_one_out, times), world.data_distribution
            )

        for spacing in (even_times, sine_times):
            errors = [error(spacing(num_steps)) for num_steps in steps]
            to_eps = torch.cat([spacing(32)[:-1], torch.tensor([1e-4], dtype=torch.float64)])
            row: dict[str, object] = {
                "schedule": name,
                "times": spacing.__name__.removesuffix("_times"),
            }
            row |= {f"T = {n}": e for n, e in zip(steps, errors, strict=True)}
            row["order"] = math.log2(errors[0] / errors[-1]) / 6
            row["T = 32, ending at eps"] = error(to_eps)
            rows.append(row)
    return rows


def gibbs() -> Table:
    """Largest change of the distribution of Z_t by a Gibbs redraw, over positions and times."""
    rows: Table = []
    for p_uniform in (0.0, 0.1, 0.2, 0.5):
        world = SmallWorld(MarkovSource.random(3, 0.3, rng=1), HybridSchedule(VOCAB, p_uniform), 3)
        changes: list[float] = []
        for time in (0.0, 0.01, 0.2, 0.5, 0.9, 1.0):
            noisy = world.noisy_distribution(time)
            for position in range(3):
                redrawn = noisy @ world.gibbs_kernel(world.leave_one_out, time, position)
                changes.append(float((redrawn - noisy).abs().max()))
        rows.append({"p_u": p_uniform, "largest change": max(changes)})
    return rows


def likelihood_nodes() -> Table:
    """Error of 128-node likelihoods of one Zipf token, exact denoiser, V = 50,258, in nats."""
    eps = 1e-4
    rows: Table = []
    for exponent in (1.6, 1.0):
        zipf = torch.arange(1, LARGE + 1, dtype=torch.float64) ** -exponent
        zipf[-1] = 0  # the mask
        zipf = zipf / zipf.sum()
        entropy = float(torch.special.entr(zipf).sum())
        for p_uniform in (0.1, 0.2, 0.5):
            schedule = HybridSchedule(Vocab(LARGE, mask_id=LARGE - 1), p_uniform)
            below = unigram_nelbo(schedule, zipf, exact_nodes(NODES, 0, eps))
            above = unigram_nelbo(schedule, zipf, exact_nodes(NODES, 1 - eps, 1))
            rows.append(
                {
                    "Zipf exponent": exponent,
                    "entropy": entropy,
                    "p_u": p_uniform,
                    "below eps": below,
                    "above 1 - eps": above,
                    "error, sine midpoints": unigram_nelbo(schedule, zipf, sine_midpoints())
                    + below
                    + above
                    - entropy,
                    "error, even grid": unigram_nelbo(schedule, zipf, paper_nodes())
                    + below
                    + above
                    - entropy,
                }
            )
    return rows


TABLES: tuple[Callable[[], Table], ...] = (
    leave_one_out,
    blocks,
    reweighting,
    odds_boost,
    reverse_chain,
    gibbs,
    likelihood_nodes,
)


def markdown(rows: Table) -> str:
    """Format rows as a Markdown table."""
    head = list(rows[0])
    cells = ([_cell(row[name]) for name in head] for row in rows)
    lines = [head, ["---"] * len(head), *cells]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(value: object) -> str:
    """Format with five digits; two for values that are only rounding errors."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.1e}" if abs(value) < 1e-3 else f"{value:.5g}"


def main() -> None:
    """Print all tables."""
    parser = parser_of(__doc__)
    as_json = parser.parse_args().json
    results: dict[str, Table] = {}
    for table in TABLES:
        results[table.__name__] = table()
        print(f"## {table.__doc__}\n\n{markdown(results[table.__name__])}\n", flush=True)
    if as_json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
