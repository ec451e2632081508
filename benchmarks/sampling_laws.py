"""How far samplers are from the data, on exactly known text with an exact denoiser.

python benchmarks/sampling_laws.py --json                         # 10^5 texts; 40 minutes on a core
python benchmarks/sampling_laws.py --json --texts 10000           # four minutes
python benchmarks/sampling_laws.py --json --table convergence     # 55 minutes

The text is first-order Markov, V = 50, L = 64. `equal-calls` is ancestral sampling (hybrid noise,
p_u = 0.2, even mesh) against the same number of network calls of which the last quarter redraws
every other position at t = 0. `convergence` is every step that samples, with more and more calls:
those that fill masks in an order with mask noise, for which they are meant.

Three measures: total variation of the law of neighbouring pairs, the share of pairs that the source
all but forbids, and nats per token between the mean true log-likelihood and the source's entropy.
The first row measures as many texts of the data themselves: nothing can be told apart below it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from gidd.diffusion.schedule import MixingSchedule
from gidd.diffusion.schedules import HybridSchedule, MaskedSchedule
from gidd.diffusion.times import even_mesh
from gidd.sampling import (
    Canvas,
    Engine,
    FunctionNetwork,
    Plan,
    corrector_plan,
    gibbs,
    sampling_plan,
)
from gidd.sampling.steps import MASK_FILLING_STEPS, SAMPLING_STEPS
from gidd.sources import MarkovSource
from gidd.vocab import Vocab

NUM_TOKENS, LENGTH = 50, 64
VOCAB = Vocab(NUM_TOKENS + 1, mask_id=NUM_TOKENS)
HYBRID, MASKED = HybridSchedule(VOCAB, 0.2), MaskedSchedule(VOCAB)
SOURCE = MarkovSource.random(NUM_TOKENS, 0.3, rng=0)
RARE = 1e-4
"""A pair less likely than this is counted as forbidden."""


class Distance(NamedTuple):
    """How far texts are from the source."""

    bigram_tv: float
    """Total variation of the law of neighbouring tokens, all positions together."""

    forbidden: float
    """Share of neighbouring pairs with a conditional probability below `RARE`."""

    nats: float
    """|mean true log-likelihood + entropy| per token; likelihoods floored at -1000."""


def distance(texts: Tensor) -> Distance:
    """Measured on texts [B, L]."""
    pairs = texts.unfold(1, 2, 1)
    pair = (pairs[..., 0] * NUM_TOKENS + pairs[..., 1]).flatten()
    law = torch.bincount(pair, minlength=NUM_TOKENS**2).double() / pair.numel()
    chance = SOURCE.transition[pairs[..., 0], pairs[..., 1]]
    log_prob = torch.cat([SOURCE.log_prob(part) for part in texts.split(2000)])
    nats = log_prob.clamp_min(-1000).mean() + SOURCE.entropy(LENGTH)
    return Distance(
        float((law - pair_law()).abs().sum() / 2),
        float((chance < RARE).double().mean()),
        float(nats.abs()) / LENGTH,
    )


def pair_law() -> Tensor:
    """The source's own law of neighbouring pairs, averaged over positions."""
    law, total = SOURCE.initial, torch.zeros(NUM_TOKENS, NUM_TOKENS).double()
    for _ in range(LENGTH - 1):
        total += law[:, None] * SOURCE.transition
        law = law @ SOURCE.transition
    return total.flatten() / (LENGTH - 1)


class Sampler(NamedTuple):
    """What makes texts."""

    name: str
    calls: int
    schedule: MixingSchedule
    plan: Plan


def equal_calls() -> Iterator[Sampler]:
    """Ancestral steps alone, and with a final Gibbs phase."""
    for calls in (16, 32, 64):
        last = calls // 4
        yield Sampler("ancestral", calls, HYBRID, sampling_plan(even_mesh(calls)))
        plan = sampling_plan(even_mesh(calls - last)) + corrector_plan(gibbs, last)
        yield Sampler("last quarter Gibbs", calls, HYBRID, plan)


def convergence() -> Iterator[Sampler]:
    """Every step that samples, with more and more calls."""
    for step in SAMPLING_STEPS:
        schedule = MASKED if step in MASK_FILLING_STEPS else HYBRID
        for calls in (4, 16, 64):
            yield Sampler(step.__name__, calls, schedule, sampling_plan(even_mesh(calls), step))


TABLES = {"equal-calls": equal_calls, "convergence": convergence}


def sample(sampler: Sampler, num_texts: int) -> Tensor:
    """Texts of the exact denoiser, in float32."""
    source = MarkovSource(SOURCE.initial.float(), SOURCE.transition.float())
    schedule = sampler.schedule
    network = FunctionNetwork(lambda z, t: source.leave_one_out(schedule, t, z))
    texts: list[Tensor] = []
    for start in range(0, num_texts, 1000):
        canvas = Canvas.blank(schedule, min(1000, num_texts - start), LENGTH)
        canvas.request += start
        Engine(network, schedule, rows_per_call=len(canvas.tokens)).run(canvas, sampler.plan)
        texts.append(canvas.tokens)
    return torch.cat(texts)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    parser.add_argument("--texts", type=int, default=100_000)
    parser.add_argument("--table", choices=list(TABLES), default="equal-calls")
    options = parser.parse_args()
    data = distance(SOURCE.sample(1, torch.arange(options.texts), LENGTH))
    results = {"data": data._asdict()}
    print("| calls | sampler | bigram TV | forbidden pairs | nats a token from the data |")
    print("|---|---|---|---|---|")
    print(f"| - | data | {data.bigram_tv:.4f} | {data.forbidden:.5f} | {data.nats:.4f} |")
    for sampler in TABLES[options.table]():
        found = distance(sample(sampler, options.texts))
        results[f"{sampler.name}/{sampler.calls}"] = found._asdict()
        figures = f"{found.bigram_tv:.4f} | {found.forbidden:.5f} | {found.nats:.4f}"
        print(f"| {sampler.calls} | {sampler.name} | {figures} |", flush=True)
    if options.json:
        print(json.dumps({"texts": options.texts, "distance": results}))


if __name__ == "__main__":
    main()
