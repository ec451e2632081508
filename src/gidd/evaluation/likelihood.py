"""The loss of held-out text."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from gidd.data.batch import Batch
from gidd.training.objective import Metrics, Objective
from gidd.training.parallel import let_go
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
    let_go(objective)
    objective.train(was_training)
    totals = world.sum(sums.tolist())
    return objective.summary(dict(zip(objective.names, totals, strict=True)))


def unigram_entropy(batches: Iterable[Batch], vocab_size: int, world: World) -> float:
    """Entropy of single tokens of text, in nats: what a model that sees no context could reach.

    It is that of the very tokens given, hence a little below what any model could know. All ranks
    enter.
    """
    counts = torch.zeros(vocab_size, dtype=torch.int64)
    for batch in batches:
        counts += batch.tokens[batch.valid].bincount(minlength=vocab_size)
    return entropy(torch.tensor(world.sum(counts.tolist()), dtype=torch.float64))


def entropy(counts: Tensor) -> float:
    """Of a distribution given by counts, in nats."""
    p = counts / counts.sum()
    return -torch.xlogy(p, p).sum().item()
