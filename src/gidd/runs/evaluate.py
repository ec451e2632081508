"""Evaluation during training: the loss of held-out text, and samples of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np
import torch

from gidd.data.batch import Batch
from gidd.data.loading.loader import BatchSource, LoaderConfig
from gidd.data.loading.shards import ShardSet, invalid_tokens
from gidd.data.tokenizers import Tokenizer
from gidd.diffusion.times import even_mesh
from gidd.runs.data import loader_config
from gidd.sampling import Engine, Request, blanks, sampling_plan
from gidd.training.config import RunConfig
from gidd.training.loop import Evaluation
from gidd.training.objective import DiffusionObjective, Metrics, Objective
from gidd.training.parallel import reshard, unsharded
from gidd.training.state import TrainState
from gidd.training.watchdog import Watchdog
from gidd.training.world import World

SAMPLE_LENGTH = 128
SAMPLE_STEPS = 32
"""Of the samples generated at an evaluation: short, to take little time."""


def build_evaluation(
    run: RunConfig,
    shards: ShardSet | None,
    tokenizer: Tokenizer,
    world: World,
    watchdog: Watchdog,
) -> Callable[[TrainState], Evaluation]:
    """Return the function that evaluates a state on held-out text. All ranks call it.

    Without shards it generates samples only.
    """
    if shards is None:
        return lambda state: Evaluation({}, _samples(run, state, tokenizer, world, watchdog))
    config = loader_config(run, tokenizer)
    train, num_samples = run.train, run.train.evaluate_samples
    baseline = unigram_entropy(shards, tokenizer.vocab.size)

    def evaluate(state: TrainState) -> Evaluation:
        def batches() -> Iterator[Batch]:
            for batch in validation_batches(shards, config, num_samples, train.accumulate, world):
                watchdog.phase(state.step, "evaluation")
                yield batch

        with state.ema_weights():
            metrics = validate(
                state.objective, batches(), num_samples, world, autocast=train.autocast
            )
        samples = _samples(run, state, tokenizer, world, watchdog)
        return Evaluation(metrics | {"unigram_entropy": baseline}, samples)

    return evaluate


def _samples(
    run: RunConfig, state: TrainState, tokenizer: Tokenizer, world: World, watchdog: Watchdog
) -> list[str]:
    state.objective.eval()
    with state.ema_weights():
        samples = generate_samples(run, state, tokenizer, world, watchdog)
    state.objective.train()
    return samples


@torch.no_grad()
def validate(
    objective: Objective,
    batches: Iterable[Batch],
    num_samples: int,
    world: World,
    *,
    autocast: bool = False,
) -> Metrics:
    """Return the metrics of held-out samples. All ranks call this, each with its own batches.

    Times are stratified over all `num_samples` together, and times and noise are functions of the
    sample: two evaluations differ by the weights alone. The NELBO is the integral of the objective
    over [eps, 1 - eps], estimated with one time per sample; the ends are left out.
    """
    was_training = objective.training
    objective.eval()
    sums = torch.zeros(len(objective.names), device=world.device)
    for batch in batches:
        with torch.autocast(world.device.type, torch.bfloat16, enabled=autocast):
            sums += objective(batch.to(world.device), 0, num_samples, 1.0).sums
    reshard(objective)
    objective.train(was_training)
    totals = world.sum(sums.tolist())
    return objective.summary(dict(zip(objective.names, totals, strict=True)))


def generate_samples(
    run: RunConfig, state: TrainState, tokenizer: Tokenizer, world: World, watchdog: Watchdog
) -> list[str]:
    """Generate a few samples, always from the same noise. All ranks generate the same ones."""
    objective = state.objective
    if not isinstance(objective, DiffusionObjective) or not run.train.generate_samples:
        return []
    length = min(run.data.length, SAMPLE_LENGTH)
    plan, stop = sampling_plan(even_mesh(SAMPLE_STEPS)), tuple(sorted(tokenizer.terminator_ids))
    requests = [
        Request(tokens=blanks(length), plan=plan, sample_index=i, stop=stop)
        for i in range(run.train.generate_samples)
    ]
    engine = Engine(objective.denoiser, objective.schedule, device=world.device)
    with (
        unsharded(objective),
        torch.autocast(world.device.type, torch.bfloat16, enabled=run.train.autocast),
    ):
        samples = engine.sample(
            requests, on_step=lambda event: watchdog.phase(state.step, "evaluation")
        )
    return [tokenizer.decode(sample.text) for sample in samples]


def validation_batches(
    shards: ShardSet, config: LoaderConfig, num_samples: int, accumulate: int, world: World
) -> Iterator[Batch]:
    """Yield this rank's part of the first samples of a split, in batches of about training size.

    All ranks get the same number of batches: with a sharded model a forward pass of one rank waits
    for those of all others. Hence the number of batches is at most the smallest number of samples
    on any rank, and a batch can hold one sample more than in training.
    """
    everything = replace(config, global_batch=num_samples)
    arrays = BatchSource(shards, everything, world.rank, world.size)[0]
    batch = Batch(*(torch.from_numpy(arrays[name]) for name in Batch._fields))
    batch_size = max(1, config.global_batch // world.size // accumulate)
    most, fewest = -(-num_samples // world.size), num_samples // world.size
    yield from batch.split(min(-(-most // batch_size), fewest))


def unigram_entropy(shards: ShardSet, vocab_size: int, max_tokens: int = 1 << 24) -> float:
    """Return the entropy of single tokens in nats: the best NLL of a model without context.

    It is computed on the first tokens of the shards, hence slightly below that of the source.
    """
    counts, left = np.zeros(vocab_size, dtype=np.int64), max_tokens
    for shard in shards.shards:
        tokens = shard.tokens[:left]
        if len(tokens) and not 0 <= tokens.min() <= tokens.max() < vocab_size:
            raise invalid_tokens(shard.file, vocab_size)
        counts += np.bincount(tokens, minlength=vocab_size)
        left -= min(left, len(shard.tokens))
    p = counts[counts > 0] / counts.sum()
    return float(-(p * np.log(p)).sum())
