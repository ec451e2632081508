"""Distance between samples and data, for a known source with its exact denoiser.

python benchmarks/sampling_distributions.py --json                      # 10^5 samples, 40 minutes
python benchmarks/sampling_distributions.py --json --num-samples 10000  # 4 minutes

Times are on one core. The source is a first-order Markov chain, V = 50, L = 64. Ancestral sampling
(hybrid noise, p_u = 0.2, even times) is compared with the same number of forward passes (NFE) of
which the last quarter redraws every other position at t = 0. All samplers, on a smaller source:
`samplers.py`.

Three metrics: total variation of the distribution of neighbouring pairs, the fraction of pairs that
are almost impossible under the source, and nats per token between the mean true log-likelihood and
the source's entropy. The first row is the noise floor: the same number of samples of the data.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

import torch
from script import parser_of, size
from torch import Tensor

from gidd.diffusion.schedules import HybridSchedule
from gidd.diffusion.times import even_times
from gidd.sampling import (
    FunctionNetwork,
    Gibbs,
    Plan,
    Request,
    Session,
    blanks,
    corrector_plan,
    sampling_plan,
)
from gidd.sources import MarkovSource
from gidd.vocab import Vocab

NUM_TOKENS, LENGTH = 50, size(64, 8)
VOCAB = Vocab(NUM_TOKENS + 1, mask_id=NUM_TOKENS)
HYBRID = HybridSchedule(VOCAB, 0.2)
SOURCE = MarkovSource.random(NUM_TOKENS, 0.3, rng=0)
RARE = 1e-4
"""A pair with a lower conditional probability counts as forbidden."""


class Distance(NamedTuple):
    """Distance of samples from the source."""

    bigram_tv: float
    """Total variation of the distribution of neighbouring tokens, pooled over positions."""

    forbidden: float
    """Fraction of neighbouring pairs with a conditional probability below `RARE`."""

    nats: float
    """|mean true log-likelihood + entropy| per token; likelihoods floored at -1000."""


def distance(samples: Tensor) -> Distance:
    """Measure samples [B, L]."""
    pairs = samples.unfold(1, 2, 1)
    pair = (pairs[..., 0] * NUM_TOKENS + pairs[..., 1]).flatten()
    frequency = torch.bincount(pair, minlength=NUM_TOKENS**2).double() / pair.numel()
    probability = SOURCE.transition[pairs[..., 0], pairs[..., 1]]
    log_prob = torch.cat([SOURCE.log_prob(part) for part in samples.split(2000)])
    nats = log_prob.clamp_min(-1000).mean() + SOURCE.entropy(LENGTH)
    return Distance(
        float((frequency - pair_distribution(SOURCE, LENGTH)).abs().sum() / 2),
        float((probability < RARE).double().mean()),
        float(nats.abs()) / LENGTH,
    )


def pair_distribution(source: MarkovSource, length: int) -> Tensor:
    """Compute a source's distribution of neighbouring pairs, averaged over positions."""
    unigram, total = source.initial, torch.zeros_like(source.transition)
    for _ in range(length - 1):
        total += unigram[:, None] * source.transition
        unigram = unigram @ source.transition
    return total.flatten() / (length - 1)


class Sampler(NamedTuple):
    """A plan, with its number of forward passes."""

    name: str
    forward_passes: int
    plan: Plan


def equal_forward_passes() -> Iterator[Sampler]:
    """Yield ancestral sampling without and with a final Gibbs phase."""
    for forward_passes in (16, 32, 64):
        last = forward_passes // 4
        yield Sampler("ancestral", forward_passes, sampling_plan(even_times(forward_passes)))
        plan = sampling_plan(even_times(forward_passes - last)) + corrector_plan(Gibbs(), last)
        yield Sampler("last quarter Gibbs", forward_passes, plan)


def sample(sampler: Sampler, num_samples: int) -> Tensor:
    """Sample with the exact denoiser, in float32."""
    source = MarkovSource(SOURCE.initial.float(), SOURCE.transition.float())
    network = FunctionNetwork(lambda z, t: source.leave_one_out(HYBRID, t, z))
    samples: list[Tensor] = []
    for start in range(0, num_samples, 1000):
        requests = [
            Request(tokens=blanks(LENGTH), plan=sampler.plan, sample_index=index)
            for index in range(start, min(start + 1000, num_samples))
        ]
        results = Session(network, HYBRID, batch_size=len(requests)).sample(requests)
        samples.append(torch.tensor([sample.tokens for sample in results]))
    return torch.cat(samples)


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--num-samples", type=int, default=size(100_000, 4))
    options = parser.parse_args()
    data = distance(SOURCE.sample(1, torch.arange(options.num_samples), LENGTH))
    results = {"data": data._asdict()}
    print("| NFE | sampler | bigram TV | forbidden pairs | nats per token from the data |")
    print("|---|---|---|---|---|")
    print(f"| - | data | {data.bigram_tv:.4f} | {data.forbidden:.5f} | {data.nats:.4f} |")
    for sampler in equal_forward_passes():
        measured = distance(sample(sampler, options.num_samples))
        results[f"{sampler.name}/{sampler.forward_passes}"] = measured._asdict()
        figures = f"{measured.bigram_tv:.4f} | {measured.forbidden:.5f} | {measured.nats:.4f}"
        print(f"| {sampler.forward_passes} | {sampler.name} | {figures} |", flush=True)
    if options.json:
        print(json.dumps({"num_samples": options.num_samples, "distance": results}))


if __name__ == "__main__":
    main()
