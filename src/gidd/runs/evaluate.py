"""The loss of held-out text."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from gidd.data.batch import Batch
from gidd.data.loading.shards import ShardSet
from gidd.training.objective import Metrics, Objective
from gidd.training.parallel import reshard
from gidd.training.world import World


@torch.no_grad()
def validate(
    objective: Objective,
    batches: Iterable[Batch],
    num_samples: int,
    world: World,
    *,
    autocast: bool = False,
) -> Metrics:
    """What the objective says of held-out samples. All ranks enter, each with its own batches.

    Times are stratified over all `num_samples` together, and times and noise belong to the
    samples: two evaluations differ by the weights alone. A NELBO is the integral over
    [eps, 1 - eps] of the objective, estimated with one time per sample; the ends are left out.
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


def unigram_entropy(shards: ShardSet, vocab_size: int, max_tokens: int = 1 << 24) -> float:
    """Entropy of single tokens, in nats: what a model that sees no context could reach.

    It is that of the first tokens of the shards, hence a little below what any model could know.
    """
    counts, left = np.zeros(vocab_size, dtype=np.int64), max_tokens
    for shard in shards.shards:
        counts += np.bincount(shard.tokens[:left], minlength=vocab_size)
        left -= min(left, len(shard.tokens))
    p = counts[counts > 0] / counts.sum()
    return float(-(p * np.log(p)).sum())
