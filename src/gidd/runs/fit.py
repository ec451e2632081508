"""A training run from its configuration to its last checkpoint.

The body of `fit` is the library's diagram: data, model and state, checkpoints, batches, report,
loop. `out` holds `data/` (if it was prepared here), `checkpoints/`, `metrics.jsonl` and
`tensorboard/`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import torch

from gidd.common.codec import from_plain, require_same_training, to_yaml
from gidd.data import tokenizers
from gidd.data.batch import Batch
from gidd.data.loading.loader import BatchSource, Loader, LoaderConfig, open_split
from gidd.data.loading.shards import ShardSet
from gidd.data.manifest import DataManifest
from gidd.data.tokenizers import Tokenizer
from gidd.diffusion.times import even_mesh
from gidd.errors import CheckpointError, ConfigError, DataError
from gidd.runs.data import ensure_prepared
from gidd.runs.evaluate import unigram_entropy, validate
from gidd.sampling import Engine, Request, blanks, sampling_plan
from gidd.training.build import build_state
from gidd.training.checkpoints.checkpoints import Checkpoints
from gidd.training.checkpoints.folder import read_record
from gidd.training.config import Diffusion, RunConfig
from gidd.training.loop import Evaluation, train
from gidd.training.objective import DiffusionObjective
from gidd.training.parallel import unsharded
from gidd.training.reporting.report import Report
from gidd.training.reporting.speed import Speed, matmul_rate, training_flops_per_token
from gidd.training.reporting.trackers import Tracker
from gidd.training.state import TrainState
from gidd.training.watchdog import Watchdog
from gidd.training.world import World

TEXT_LENGTH = 128
TEXT_STEPS = 32
"""Of the texts that are written at an evaluation: enough to see what the model has learnt."""

Trackers = tuple[Sequence[Tracker], Sequence[str]]
"""What else gets the numbers, and what to say about it."""


def fit(
    run: RunConfig,
    out: Path,
    world: World,
    *,
    quiet: bool = False,
    trackers: Callable[[int], Trackers] = lambda start: ((), ()),
) -> bool:
    """Train, from the newest checkpoint in `out` if there is one. All ranks enter.

    Args:
        run: What to train.
        out: The run's folder; ranks on other machines must see the same one.
        world: The processes.
        quiet: Show nothing; `metrics.jsonl` is written all the same.
        trackers: Makes what else gets the numbers, given the step that the run begins at.

    Returns:
        Whether the run is complete; if not, it was asked to stop and has been saved.
    """
    run.check(world.size)
    folder = ensure_prepared(run.data, out, world, quiet)
    tokenizer = Tokenizer.load(folder)
    with (
        Watchdog(world, run.train.timeout).on() as watchdog,
        Checkpoints(
            out / "checkpoints", world, keep=run.train.keep, keep_every=run.train.keep_every
        ) as checkpoints,
    ):
        state = build_state(run, tokenizer.vocab, world, token_bytes(tokenizer))
        notes = restore(run, state, checkpoints, tokenizer)
        loader = Loader(
            open_split(folder),
            loader_config(run, tokenizer),
            rank=world.rank,
            num_ranks=world.size,
            start=state.step,
            num_workers=run.data.workers,
        )
        evaluate = evaluation(run, folder, tokenizer, world, watchdog)
        also, said = trackers(state.step) if world.is_rank_zero else ((), ())
        with (
            closing(loader),
            Report(
                out,
                num_steps=run.train.steps,
                start=state.step,
                first=world.is_rank_zero,
                quiet=quiet,
                trackers=also,
            ) as report,
        ):
            for note in (*notes, *said, *data_warnings(folder)):
                report.note(note)
            return train(
                run,
                world,
                state,
                loader,
                evaluate,
                checkpoints,
                report,
                watchdog,
                speed(run, tokenizer, world),
                files(run, folder),
            )


def restore(
    run: RunConfig, state: TrainState, checkpoints: Checkpoints, tokenizer: Tokenizer
) -> list[str]:
    """Go on from the newest whole checkpoint, if there is one; return what to say about it."""
    try:
        restored = checkpoints.restore(state.tensors())
    except CheckpointError:
        if saved := saved_run(checkpoints):  # settings say more than the tensors they lead to
            require_same_training(saved, run)
        raise
    if restored is None:
        return []
    changed = require_same_training(from_plain(RunConfig, restored.record["run"]), run)
    require_same_tokenizer(checkpoints.path(restored.step), tokenizer)
    state.restore(restored.record)
    return [*restored.notes, *changed, f"continued from step {state.step}"]


def saved_run(checkpoints: Checkpoints) -> RunConfig | None:
    """The settings of the newest checkpoint, if they can be read."""
    try:
        return from_plain(RunConfig, read_record(checkpoints.path(checkpoints.steps()[-1]))["run"])
    except (IndexError, KeyError, OSError, ValueError, ConfigError):
        return None


def require_same_tokenizer(checkpoint: Path, tokenizer: Tokenizer) -> None:
    """Refuse data whose ids mean something else than those that the model has learnt."""
    learnt = Tokenizer.load(checkpoint)
    if (learnt.fingerprint, learnt.vocab) != (tokenizer.fingerprint, tokenizer.vocab):
        raise DataError(
            f"the data was made with the tokenizer {tokenizer.fingerprint[:12]}, and {checkpoint} "
            f"learnt from data that was made with {learnt.fingerprint[:12]}. Prepare the data with "
            f"the {tokenizers.FILE} of the checkpoint, or give another --out to begin a new run."
        )


def loader_config(run: RunConfig, tokenizer: Tokenizer) -> LoaderConfig:
    """How documents become batches in this run."""
    vocab = tokenizer.vocab
    return LoaderConfig(
        global_batch=run.train.global_batch,
        length=run.data.length,
        pad_id=tokenizer.end_id if vocab.pad_id is None else vocab.pad_id,
        vocab_size=vocab.size,
        seed=run.train.seed,
    )


def token_bytes(tokenizer: Tokenizer) -> torch.Tensor | None:
    """Bytes of text of each id; None if the tokenizer does not know."""
    sizes = torch.tensor(tokenizer.num_bytes())
    return sizes if sizes.any() else None


def data_warnings(folder: Path) -> list[str]:
    """What a person should know of the data before believing the numbers."""
    if "validation" in DataManifest.read(folder).splits:
        return []
    return [
        "nothing is held out: what is called validation is training text; --data.validation N "
        "holds out N documents (for a --data.folder: `gidd data prepare --validation N`)"
    ]


def evaluation(
    run: RunConfig, folder: Path, tokenizer: Tokenizer, world: World, watchdog: Watchdog
) -> Callable[[TrainState], Evaluation]:
    """What is looked at every now and then: held-out text."""
    split = "validation" if "validation" in DataManifest.read(folder).splits else "train"
    shards, config = open_split(folder, split), loader_config(run, tokenizer)
    num_samples = run.train.evaluate_samples
    baseline = unigram_entropy(shards, tokenizer.vocab.size)

    def evaluate(state: TrainState) -> Evaluation:
        def batches() -> Iterator[Batch]:
            for batch in held_out(shards, config, num_samples, run.train.accumulate, world):
                watchdog.phase(state.step, "evaluation")
                yield batch

        state.objective.eval()
        with state.ema_weights():
            metrics = validate(
                state.objective, batches(), num_samples, world, autocast=run.train.autocast
            )
            texts = write_texts(run, state, tokenizer, world, watchdog)
        state.objective.train()
        return Evaluation(metrics | {"unigram_entropy": baseline}, texts)

    return evaluate


def write_texts(
    run: RunConfig, state: TrainState, tokenizer: Tokenizer, world: World, watchdog: Watchdog
) -> list[str]:
    """A few texts by the model as it is, always from the same noise. All ranks write the same."""
    objective = state.objective
    if not isinstance(objective, DiffusionObjective) or not run.train.generate_samples:
        return []
    length = min(run.data.length, TEXT_LENGTH)
    plan, stop = sampling_plan(even_mesh(TEXT_STEPS)), tuple(sorted(tokenizer.terminator_ids))
    requests = [
        Request(tokens=blanks(length), plan=plan, sample_index=number, stop=stop)
        for number in range(run.train.generate_samples)
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


def held_out(
    shards: ShardSet, config: LoaderConfig, num_samples: int, accumulate: int, world: World
) -> Iterator[Batch]:
    """This rank's part of the first samples of a split, about as many at a time as in training.

    All ranks get as many batches, though not as many samples: where they share a model, each call
    of one waits for a call of all others. So no rank may have more batches than the emptiest one
    has samples; a batch can then hold one sample more than in training.
    """
    whole = replace(config, global_batch=num_samples)
    arrays = BatchSource(shards, whole, world.rank, world.size)[0]
    batch = Batch(*(torch.from_numpy(arrays[name]) for name in Batch._fields))
    largest = max(1, config.global_batch // world.size // accumulate)
    fullest, emptiest = -(-num_samples // world.size), num_samples // world.size
    yield from batch.split(min(-(-fullest // largest), emptiest))


def speed(run: RunConfig, tokenizer: Tokenizer, world: World) -> Speed:
    """The clock, and what the machine could do."""
    sizes = run.model.build(tokenizer.vocab.size, run.data.length)
    dtype = torch.bfloat16 if run.train.autocast else torch.float32
    return Speed(
        tokens_per_step=run.train.global_batch * run.data.length,
        flops_per_token=training_flops_per_token(
            sizes, run.data.length, timed=isinstance(run.objective, Diffusion)
        ),
        peak=matmul_rate(world.device, dtype) * world.size,
    )


def files(run: RunConfig, folder: Path) -> dict[str, str]:
    """What lies beside the tensors of every checkpoint: the configuration and the tokenizer."""
    names = (tokenizers.FILE, tokenizers.SETTINGS)
    texts = {name: (folder / name).read_text(encoding="utf-8") for name in names}
    return texts | {"run.yaml": to_yaml(run)}
