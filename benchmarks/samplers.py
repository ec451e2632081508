"""Distance between samples and data against forward passes, for all samplers and correctors.

OMP_NUM_THREADS=1 python benchmarks/samplers.py --json                     # 6 minutes on one core
OMP_NUM_THREADS=1 python benchmarks/samplers.py --json --budgets 4 16 64   # 1 minute

The source is a first-order Markov chain, V = 4, L = 32, with masked, hybrid (p_u = 0.2) and uniform
noise. Samplers have even times and default options; a final corrector takes the last quarter of
the forward passes. `exact` is the exact denoiser; `perturbed` multiplies it by random factors,
fixed by the neighbouring tokens: as for a trained network, its predictions belong to no joint
distribution. The distance is the total variation of the distribution of neighbouring pairs, pooled
over 8 seeds, with the standard error of a jackknife over them. The data itself is the noise floor.
At each budget the winner is marked, and what differs from it by less than two standard errors.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from sampling_distributions import pair_distribution
from script import parser_of, size
from torch import Tensor

from gidd.diffusion.schedule import MixingSchedule
from gidd.diffusion.schedules import HybridSchedule, MaskedSchedule, UniformSchedule
from gidd.diffusion.times import even_times
from gidd.pipeline.options import SelfCorrectionOptions
from gidd.sampling import (
    FunctionNetwork,
    NetworkPredict,
    Plan,
    Rows,
    State,
    Step,
    ancestral,
    sample as run_plan,
    start,
)
from gidd.sampling.correctors import GibbsSweep
from gidd.sampling.plan import corrector_plan, sampling_plan
from gidd.sampling.steps import Confidence, Psi, RemaskSuspects, ReMDM, Threshold
from gidd.sources import MarkovSource
from gidd.vocab import Vocab

NUM_TOKENS, LENGTH, NUM_SEEDS = 4, 32, size(8, 2)
VOCAB = Vocab(NUM_TOKENS + 1, mask_id=NUM_TOKENS)
SOURCE = MarkovSource.random(NUM_TOKENS, 0.3, rng=1)
BUDGETS = size((4, 8, 16, 32, 64, 128, 256), (4, 8))
PERTURBATION = 0.5  # standard deviation of the logarithms of the factors
PlanOf = Callable[[int], Plan]  # from a number of forward passes


def steps_of(step: Step) -> PlanOf:
    """Spend all forward passes on one kind of step."""
    return lambda budget: sampling_plan(even_times(budget), step)


def with_gibbs(budget: int) -> Plan:
    """Spend the last quarter on the default final corrector."""
    corrector = corrector_plan(GibbsSweep(), budget // 4)
    return sampling_plan(even_times(budget - len(corrector))) + corrector


def with_self_correction(budget: int) -> Plan:
    """Spend the last quarter on self-correction, which takes at least two forward passes."""
    corrector = SelfCorrectionOptions(forward_passes=max(2, budget // 4)).plan()
    return sampling_plan(even_times(budget - len(corrector))) + corrector


CORRECTED: dict[str, PlanOf] = {
    "ancestral": steps_of(ancestral),
    "ancestral, Gibbs": with_gibbs,
    "ancestral, self-correction": with_self_correction,
    "psi": steps_of(Psi()),
}
FILLING = {"confidence": steps_of(Confidence()), "threshold": steps_of(Threshold())}
HYBRID = {**CORRECTED, **FILLING, "remask_suspects": steps_of(RemaskSuspects())}
# a network trained with masks alone cannot score visible tokens, so it has no corrector
MASKED = {name: CORRECTED[name] for name in ("ancestral", "psi")} | FILLING
NOISES: dict[str, tuple[MixingSchedule, dict[str, PlanOf]]] = {
    "masked": (MaskedSchedule(VOCAB), {**MASKED, "remdm": steps_of(ReMDM())}),
    "hybrid": (HybridSchedule(VOCAB, 0.2), HYBRID),
    "uniform": (UniformSchedule(VOCAB), CORRECTED),
}
DENOISERS = {"exact": ("masked", "hybrid", "uniform"), "perturbed": ("masked", "hybrid")}


def network_of(schedule: MixingSchedule, denoiser: str) -> FunctionNetwork:
    """Make the exact or the perturbed denoiser, in float32."""
    source = MarkovSource(SOURCE.initial.float(), SOURCE.transition.float())
    generator = torch.Generator().manual_seed(0)
    # by left neighbour, right neighbour and token
    factors = torch.randn(*[VOCAB.size] * 3, generator=generator).mul(PERTURBATION).exp()

    def x_theta(z: Tensor, t: Tensor) -> Tensor:
        exact = source.leave_one_out(schedule, t, z)
        if denoiser == "exact":
            return exact
        changed = exact * factors[z.roll(1, -1), z.roll(-1, -1)]
        return changed / changed.sum(-1, keepdim=True)

    return FunctionNetwork(x_theta)


def sample(
    schedule: MixingSchedule, network: FunctionNetwork, plan: Plan, num_samples: int
) -> tuple[Tensor, float]:
    """Return samples [seeds * num_samples, L] and the mean number of forward passes.

    Without the requests and logs of a session: they take longer than these networks.
    """
    seed = torch.arange(NUM_SEEDS).repeat_interleave(num_samples)
    index = torch.arange(num_samples).repeat(NUM_SEEDS)
    free = torch.ones(len(seed), LENGTH, dtype=torch.bool)
    predict = NetworkPredict(network, VOCAB.size, len(seed))
    last_read, num_passes = torch.full_like(seed, -1), torch.zeros_like(seed)

    def counted(state: State, t: Tensor, where: Tensor) -> Rows:
        is_new = where.any(-1) & (last_read != state.step_index)
        last_read[is_new] = state.step_index[is_new]
        num_passes.add_(is_new)
        return predict(state, t, where)

    state = start(schedule, free.long(), ~free, free, free, seed, index)
    state = run_plan(counted, schedule, state, plan)
    return state.tokens, float(num_passes.double().mean())


class Distance(NamedTuple):
    """Distance of samples from the source, with standard errors."""

    tv: float
    """Total variation of the distribution of neighbouring tokens, pooled over positions."""
    tv_error: float
    nats: float
    """Mean true log-likelihood minus that of data, per token: negative for unlikely samples."""
    nats_error: float


def distance(samples: Tensor) -> Distance:
    """Measure samples of all seeds; the jackknife leaves out one seed at a time."""
    pairs, expected = samples.unfold(1, 2, 1), pair_distribution(SOURCE, LENGTH)
    pair = (pairs[..., 0] * NUM_TOKENS + pairs[..., 1]).view(NUM_SEEDS, -1)
    rows = [torch.bincount(tokens, minlength=NUM_TOKENS**2) for tokens in pair]
    counts = torch.stack(rows).double()
    total = counts.sum(0)
    counts = torch.cat([total[None], total - counts])
    tv = (counts / counts.sum(-1, keepdim=True) - expected).abs().sum(-1) / 2
    log_prob = SOURCE.log_prob(samples).clamp_min(-1000).view(NUM_SEEDS, -1).mean(-1) / LENGTH
    return Distance(
        float(tv[0]),
        float(tv[1:].std(correction=0)) * (NUM_SEEDS - 1) ** 0.5,
        float(log_prob.mean()) + SOURCE.entropy(LENGTH) / LENGTH,
        float(log_prob.std()) / NUM_SEEDS**0.5,
    )


def table(distances: dict[str, dict[int, Distance]]) -> Iterator[str]:
    """Yield the rows of a table; winners are bold."""
    budgets = list(next(iter(distances.values())))
    yield "| sampler | " + " | ".join(map(str, budgets)) + " |"
    yield "|---" * (len(budgets) + 1) + "|"
    best = {budget: min(row[budget] for row in distances.values()) for budget in budgets}
    for name, by_budget in distances.items():
        cells: list[str] = []
        for budget, at in by_budget.items():
            error = (at.tv_error**2 + best[budget].tv_error ** 2) ** 0.5
            bold = "**" if at.tv - best[budget].tv <= 2 * error else ""
            cells.append(f"{bold}{at.tv:.3f} ± {at.tv_error:.3f}{bold}")
        yield f"| {name} | " + " | ".join(cells) + " |"


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--num-samples", type=int, default=size(64, 2), help="samples of each seed")
    parser.add_argument("--denoisers", nargs="+", choices=DENOISERS, default=list(DENOISERS))
    parser.add_argument("--budgets", type=int, nargs="+", default=BUDGETS)
    options = parser.parse_args()
    num_samples = NUM_SEEDS * options.num_samples
    floor = distance(SOURCE.sample(1, torch.arange(num_samples), LENGTH))
    print(f"the data itself: {floor.tv:.3f} ± {floor.tv_error:.3f}")
    results: dict[str, object] = {"data": floor._asdict()}
    for denoiser in options.denoisers:
        for noise in DENOISERS[denoiser]:
            schedule, samplers = NOISES[noise]
            network, distances = network_of(schedule, denoiser), dict[str, dict[int, Distance]]()
            for name, plan_of in samplers.items():
                for budget in options.budgets:
                    tokens, used = sample(schedule, network, plan_of(budget), options.num_samples)
                    at = distances.setdefault(name, {})[budget] = distance(tokens)
                    key = f"{denoiser}/{noise}/{name}/{budget}"
                    results[key] = {**at._asdict(), "forward_passes": used}
            print(f"\n{denoiser} denoiser, {noise} noise", *table(distances), sep="\n", flush=True)
    if options.json:
        print(json.dumps({"num_samples": num_samples, "distance": results}))


if __name__ == "__main__":
    main()
