"""The data of a training run: an existing folder of shards, or `data/` in the run's own folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gidd.common.files import read_json, write_json
from gidd.common.urls import is_url, without_credentials
from gidd.data import corpora, tokenizers
from gidd.data.batch import Batch
from gidd.data.chat import chat_texts
from gidd.data.corpora import CorpusSource
from gidd.data.loading.loader import Loader, LoaderConfig, import_grain, open_split
from gidd.data.loading.order import Pace
from gidd.data.loading.shards import ShardSet
from gidd.data.manifest import DATA_MANIFEST, DataManifest
from gidd.data.mixture import samples_per_step
from gidd.data.preparation.prepare import prepare
from gidd.data.store import local_folder
from gidd.data.tokenizers import Tokenizer
from gidd.errors import ConfigError, DataError, GiddError
from gidd.training.checkpoints.folder import steps_in
from gidd.training.config import DataConfig, RunConfig
from gidd.training.world import World

DATA_SETTINGS = "data_settings.json"
"""The settings a run's data was prepared with; written when the preparation is complete."""


def ensure_prepared(data: DataConfig, out: Path, world: World, quiet: bool = False) -> str | Path:
    """Return the folder of token shards. Rank 0 prepares it if necessary; other ranks wait."""
    if data.workers:
        import_grain()  # raises if it is not installed: before the preparation
    if data.folder is not None:
        DataManifest.read(data.folder)
        return data.folder
    folder = out / "data"

    def work() -> None:
        sources = [without_credentials(corpus.name) for corpus in corpora.corpora_of(data.sources)]
        settings: dict[str, Any] = {"sources": sources, "tokenizer": data.tokenizer}
        settings |= {"validation": data.validation, "format": data.format}
        if (folder / DATA_SETTINGS).is_file():
            _require_same_settings(settings, folder, bool(steps_in(out / "checkpoints")))
        else:
            prepare_data(data, data.sources, folder, quiet)
            write_json(folder / DATA_SETTINGS, settings)

    prepare_on_rank_zero(world, folder, work)
    return folder


def with_format(run: RunConfig) -> RunConfig:
    """Return the run with the format of the folders that are prepared already."""
    for folder in run.data.prepared:
        if not (is_url(str(folder)) or (Path(folder) / DATA_MANIFEST).is_file()):
            continue
        prepared = DataManifest.read(folder).format
        if run.data.format not in ("text", prepared):
            raise ConfigError(
                f"data.format must be {prepared}, as {folder} was prepared, got "
                f"{run.data.format}. Prepare all conversations with `gidd data prepare --format "
                "chat`, and do not mix them with texts."
            )
        run = replace(run, data=replace(run.data, format=prepared))
    return run


def prepare_on_rank_zero(world: World, folder: Path, work: Callable[[], object]) -> None:
    """Call `work`, which writes `folder`, on rank 0; other ranks wait, and raise if it fails."""
    done = "data/prepared"
    if not world.is_rank_zero:
        while not world.store.check([done]):  # may take hours, longer than other timeouts
            time.sleep(0.2)
        if message := world.store.get(done).decode():
            raise DataError(message)
        return
    try:
        work()
    except (GiddError, OSError) as error:
        if isinstance(error, OSError):
            reason = error.strerror or error
            error = DataError(f"{folder} cannot be written: {reason}. Choose another --out.")
        world.store.set(done, str(error))
        raise error
    world.store.set(done, "")


def open_data(data: DataConfig, out: Path, world: World, quiet: bool = False) -> PreparedData:
    """Return the token shards of a run; those of a mixture must exist. All ranks call this."""
    is_mixture = data.folder is None and bool(data.prepared)
    return PreparedData(
        *(data.prepared if is_mixture else [ensure_prepared(data, out, world, quiet)])
    )


def require_same_samples(before: RunConfig, now: RunConfig, step: int) -> None:
    """Refuse to resume a mixture with other weights in the steps before `step`."""
    if now.data.folder is None and now.data.prepared:
        batch, runs = now.train.global_batch, (before, now)
        past, given = (
            [item for item in samples_per_step(run.data.sources, batch).items() if item[0] < step]
            for run in runs
        )
        if past != given:
            raise ConfigError(
                f"data.sources: weights may change from step {step} on, as in NAME*3,{step}:1; "
                f"until then they must be those of the run: {' '.join(before.data.sources)}."
            )


class PreparedData:
    """Token shards: a prepared folder, the run's own `data/`, or the folders of a mixture."""

    def __init__(self, *folders: str | Path) -> None:
        self.folders, self.tokenizer = folders, Tokenizer.load(local_folder(folders[0]))
        self._manifests = [DataManifest.read(folder) for folder in folders]
        for folder, manifest in zip(folders, self._manifests, strict=True):
            manifest.require_tokenizer(self.tokenizer, f"{folder}: the tokenizer of {folders[0]}")

    def batches(self, run: RunConfig, world: World, start: int) -> Loader:
        """Return this rank's batches, from step `start` on."""
        config, batch = loader_config(run, self.tokenizer), run.train.global_batch
        is_mixture = run.data.folder is None and bool(run.data.prepared)
        counts = samples_per_step(run.data.sources, batch) if is_mixture else {0: (batch,)}
        return Loader(
            [open_split(folder) for folder in self.folders],
            config,
            paces=[
                Pace(tuple((step, samples[source]) for step, samples in counts.items()))
                for source in range(len(self.folders))
            ],
            rank=world.rank,
            num_ranks=world.size,
            start=start,
            num_workers=run.data.workers,
        )

    def validation_split(self) -> ShardSet:
        """Return the validation splits, or the training text if there is none."""
        name = "train" if self.warnings() else "validation"
        splits = [
            open_split(folder, name)
            for folder, manifest in zip(self.folders, self._manifests, strict=True)
            if name in manifest.splits
        ]
        return ShardSet([shard for split in splits for shard in split.shards])

    def warnings(self) -> list[str]:
        """Return warnings about the data that affect how to read the metrics."""
        if any("validation" in manifest.splits for manifest in self._manifests):
            return []
        return [
            "no validation split: validation metrics are computed on training text. Hold out N "
            "documents with --data.validation N, or `gidd data prepare --validation N`"
        ]


class TokenStream:
    """Batches of tokens from Python, without a validation split."""

    def __init__(
        self, batches: Iterable[Tensor | tuple[Tensor, Tensor]], tokenizer: Tokenizer
    ) -> None:
        """`batches` are int64 [global batch, length], the same on all ranks in the same order.

        A pair also has the tokens that are given: bool, of the same shape.
        """
        self._batches, self.tokenizer = batches, tokenizer

    def batches(self, run: RunConfig, world: World, start: int) -> Generator[Batch]:
        """Yield this rank's rows of each batch; the first `start` batches are skipped."""
        expected, vocab = [run.train.global_batch, run.data.length], self.tokenizer.vocab
        for step, batch in enumerate(self._batches):
            if step < start:
                continue
            tokens, given = (batch, None) if isinstance(batch, Tensor) else batch
            if tokens.dtype != torch.int64 or list(tokens.shape) != expected:
                got = f"{tokens.dtype} of shape {list(tokens.shape)}"
                raise DataError(f"batch {step} must be int64 of shape {expected}, got {got}.")
            if not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab.size:
                raise DataError(f"batch {step} has token ids outside [0, {vocab.size}).")
            index = step * len(tokens) + torch.arange(len(tokens))
            valid = torch.ones_like(tokens, dtype=torch.bool)
            if given is not None and (given.dtype, given.shape) != (torch.bool, tokens.shape):
                raise DataError(f"batch {step}: given must be bool of shape {expected}.")
            scored = tokens if given is None else tokens[~given]
            if vocab.mask_id is not None and (scored == vocab.mask_id).any():
                raise DataError(f"batch {step} has the mask {vocab.mask_id}: text must be clean.")
            whole = Batch(tokens.cpu(), valid, index, None if given is None else given.cpu())
            yield whole.map(lambda part: part[world.rank :: world.size])
        last = run.train.steps
        raise DataError(f"the data ended before step {last}. Give more batches, or fewer steps.")

    def validation_split(self) -> None:
        """Return None: there is no held-out text."""

    def warnings(self) -> list[str]:
        """Return a warning that nothing is held out."""
        return ["no validation split: a stream of batches is not evaluated"]


def loader_config(run: RunConfig, tokenizer: Tokenizer) -> LoaderConfig:
    """Return the settings of the loader that turns the documents of a run into batches."""
    vocab = tokenizer.vocab
    return LoaderConfig(
        global_batch=run.train.global_batch,
        length=run.data.length,
        pad_id=tokenizer.end_id if vocab.pad_id is None else vocab.pad_id,
        vocab_size=vocab.size,
        seed=run.train.seed,
        packing=run.data.packing,
        shuffle=run.data.shuffle,
    )


def _require_same_settings(settings: dict[str, Any], folder: Path, has_checkpoints: bool) -> None:
    """Refuse shards that were prepared with other settings.

    The shards of a run with checkpoints are needed to resume it: never recommend to delete them.
    """
    remedy = "use another --out for a new run"
    if not has_checkpoints:
        remedy = f"delete {folder} to prepare again, or {remedy}"
    prepared = read_json(folder / DATA_SETTINGS, f"Restore the file, or {remedy}.", DataError)
    prepared = {"format": "text"} | prepared  # older versions had no other
    if changed := "".join(
        f"\n  data.{name}: {prepared.get(name)} -> {value}"
        for name, value in settings.items()
        if prepared.get(name) != value and value is not None  # not given: as it was prepared
    ):
        problem = f"{folder} was prepared with other settings:{changed}"
        raise DataError(f"{problem}\nUse the same settings, or {remedy}.")


def prepare_data(
    data: DataConfig, sources: Sequence[CorpusSource], folder: Path, quiet: bool
) -> None:
    """Tokenize the documents of some sources as `data` says."""
    tokenizer = corpora.corpora_of(sources)[-1].tokenizer()
    if tokenizer is None:  # only exact sources have their own
        texts = chat_texts if data.format == "chat" else corpora.texts
        tokenizer = tokenizers.tokenizer_for(texts(sources), data.tokenizer)
    validation = "auto" if data.validation is None else data.validation
    prepare(sources, tokenizer, folder, validation=validation, format=data.format, quiet=quiet)
