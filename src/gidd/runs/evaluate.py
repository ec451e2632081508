"""Evaluation during training: the loss of held-out text, and samples of the model."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from gidd.data.batch import Batch
from gidd.data.loading.loader import BatchSource, LoaderConfig
from gidd.data.loading.shards import ShardSet, invalid_tokens
from gidd.data.tokenizers import Tokenizer
from gidd.diffusion.likelihood import NelboEstimator, ScoredText
from gidd.diffusion.times import even_times
from gidd.runs.data import loader_config
from gidd.sampling import Request, Session, blanks, gather, run_sync, sample_blocks, sampling_plan
from gidd.training.config import RunConfig
from gidd.training.loop import Evaluation
from gidd.training.metrics import Metrics, per_unit
from gidd.training.parallel import is_sharded, unsharded
from gidd.training.state import TrainState, TrainStep
from gidd.training.watchdog import Watchdog
from gidd.training.world import World

SAMPLE_LENGTH, SAMPLE_STEPS = 128, 32  # of samples at an evaluation: short, to take little time
_MIN_BATCHES = 8
_ENDS_EVERY = 8  # samples for one with the costs of both ends: small, and they take forward passes


def build_evaluation(
    run: RunConfig, shards: ShardSet | None, tokenizer: Tokenizer, world: World, watchdog: Watchdog
) -> Callable[[TrainState], Evaluation]:
    """Return the function that evaluates a state on held-out text. All ranks call it.

    Without shards it generates samples only.
    """
    config, train = loader_config(run, tokenizer), run.train
    baseline = dict[str, float]()
    if shards is not None:
        baseline["unigram_entropy"] = unigram_entropy(shards, tokenizer.vocab.size)

    def evaluate(state: TrainState) -> Evaluation:
        metrics: Metrics = {}
        if shards is not None:
            samples, documents = validation_samples(shards, config, train.evaluate_samples)
            with state.ema_weights():
                metrics = validate(
                    state,
                    samples,
                    world,
                    documents=documents,
                    batch_size=max(1, config.global_batch // world.size // train.accumulate),
                    autocast=bool(train.autocast),
                    on_batch=lambda: watchdog.phase(state.step, "evaluation"),
                )
        texts = generate_samples(run, state, tokenizer, world, watchdog)
        return Evaluation(metrics | baseline, texts)

    return evaluate


@torch.no_grad()
def validate(
    state: TrainState | TrainStep,
    samples: Batch,
    world: World,
    *,
    documents: Tensor | None = None,
    batch_size: int = 8,
    autocast: bool = False,
    on_batch: Callable[[], None] = lambda: None,
) -> Metrics:
    """Return the likelihood of held-out samples with its standard error. All ranks call this.

    `samples` are the same on all ranks, and so is the result; ranks share the forward passes.
    `documents` has the document of each, which may repeat: only different ones are independent.
    Times and noise are functions of the sample: two evaluations differ by the weights alone. The
    NELBO is estimated with one time per sample; the times of all samples are evenly spaced.
    """
    model, device, was_training = state.model, world.device, state.model.training
    model.eval()
    if is_sharded(model):  # FSDP2 must run the whole module once before parts of it
        first = samples.map(lambda part: part[:1]).to(device)
        model(state.objective, state.corrupt(first, 0, 1, 1.0))
    documents = torch.arange(len(samples.tokens)) if documents is None else documents
    with unsharded(model), torch.autocast(device.type, torch.bfloat16, enabled=autocast):
        metrics = _likelihood(state, samples, documents, world, batch_size, on_batch)
    model.train(was_training)
    return metrics


def _likelihood(
    state: TrainState | TrainStep,
    samples: Batch,
    documents: Tensor,
    world: World,
    batch_size: int,
    on_batch: Callable[[], None],
) -> Metrics:
    corrupt = state.corrupt
    texts = [_scored_text(samples, n, corrupt.hides_padding) for n in range(len(samples.tokens))]
    estimator = NelboEstimator(
        state.model.denoiser,
        corrupt.schedule,
        nodes=1,
        seed=corrupt.seed,
        tokens_per_batch=batch_size * samples.tokens.shape[1],
        ranks=world,
        device=world.device,
        strata=len(texts),
        block_length=next(iter(corrupt.block_lengths), None),
    )
    sizes, some = samples.scored.sum(-1).double(), slice(None, None, _ENDS_EVERY)

    def count(_: int) -> None:
        on_batch()

    parts = [
        ratio_of_sums(estimator.integral(texts, 0, count), sizes, documents),
        ratio_of_sums(
            estimator.reconstruction(texts[some], 0, count), sizes[some], documents[some]
        ),
        ratio_of_sums(estimator.prior(texts[some], count), sizes[some], documents[some]),
    ]
    nelbo, tokens = sum(value for value, _ in parts), float(samples.scored.sum())
    metrics = {"nelbo": nelbo, "reconstruction": parts[1][0], "prior": parts[2][0]}
    if parts[0][1] is not None:
        metrics["nelbo_se"] = math.hypot(*(error or 0.0 for _, error in parts))
    size = float((state.metrics.bytes_of(samples.tokens) * samples.scored).sum())
    return metrics | per_unit(nelbo * tokens, tokens, size)


def _scored_text(samples: Batch, row: int, hides_padding: bool) -> ScoredText:
    """Return a sample as a text to score, without padding if the network does not read it."""
    tokens, valid = samples.tokens[row], samples.valid[row]
    given = None if samples.given is None else samples.given[row]
    if hides_padding:
        length = int(valid.sum())
        tokens, valid = tokens[:length], None
        given = None if given is None else given[:length]
    return ScoredText(tokens, row, given, valid)


def ratio_of_sums(values: Tensor, sizes: Tensor, documents: Tensor) -> tuple[float, float | None]:
    """Return sum(values) / sum(sizes), and its standard error over documents by the delta method.

    Samples of one document are not independent: their sum is one observation.
    """
    total = math.fsum(sizes.tolist())
    if not total:
        return math.nan, None
    ratio = math.fsum(values.tolist()) / total
    unique, document = documents.unique(return_inverse=True)
    count, residuals = len(unique), values.double().cpu() - ratio * sizes.double()
    sums = residuals.new_zeros(count).index_add_(0, document, residuals)
    squares = math.fsum(sums.square().tolist())
    return ratio, math.sqrt(squares * count / (count - 1)) / total if count > 1 else None


def generate_samples(
    run: RunConfig, state: TrainState, tokenizer: Tokenizer, world: World, watchdog: Watchdog
) -> list[str]:
    """Generate a few samples, always from the same noise. All ranks generate the same ones."""
    if not run.train.generate_samples:
        return []
    model = state.model
    length = min(run.data.length, SAMPLE_LENGTH)
    plan, stop = sampling_plan(even_times(SAMPLE_STEPS)), tuple(sorted(tokenizer.terminator_ids))
    requests = [
        Request(tokens=blanks(length), plan=plan, sample_index=i, stop=stop)
        for i in range(run.train.generate_samples)
    ]
    # a GPU computes all of them at once
    rows = 1 if world.device.type == "cpu" else run.train.generate_samples
    model.eval()
    with (
        state.ema_weights(),
        unsharded(model),
        torch.autocast(world.device.type, torch.bfloat16, enabled=bool(run.train.autocast)),
    ):
        parts = model.denoiser, state.corrupt.schedule
        lengths = run.objective.block_lengths
        session = Session(
            *parts,
            batch_size=rows,
            device=world.device,
            max_length=run.max_length,
            block_lengths=lengths,
        )

        def report(_: object) -> None:
            watchdog.phase(state.step, "evaluation")

        if lengths:
            texts = (sample_blocks(session, request, lengths[0]) for request in requests)
            samples = run_sync(gather(texts))
        else:
            samples = session.sample(requests, on_step=report)
    model.train()
    return [tokenizer.decode(sample.text) for sample in samples]


def validation_samples(
    shards: ShardSet, config: LoaderConfig, num_samples: int
) -> tuple[Batch, Tensor]:
    """Return the first samples of a split, the same on all ranks, and the document of each.

    A split with fewer documents than `num_samples` repeats them, with other windows.
    """
    source = BatchSource(shards, replace(config, global_batch=num_samples, packing=False))
    arrays = source[0]
    _, documents, _ = source.documents(0)
    batch = Batch(**{name: torch.from_numpy(array) for name, array in arrays.items()})
    return batch, torch.from_numpy(documents)


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
