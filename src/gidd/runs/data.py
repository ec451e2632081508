"""The data of a training run: an existing folder of shards, or `data/` in the run's own folder."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from gidd.common.files import read_json, write_json
from gidd.common.urls import without_credentials
from gidd.data import corpora, tokenizers
from gidd.data.loading.loader import LoaderConfig, import_grain
from gidd.data.manifest import DataManifest
from gidd.data.preparation.prepare import prepare
from gidd.data.tokenizers import Tokenizer
from gidd.errors import DataError, GiddError
from gidd.training.checkpoints.folder import steps_in
from gidd.training.config import DataConfig, RunConfig
from gidd.training.world import World

DATA_SETTINGS = "data_settings.json"
"""The settings a run's data was prepared with; written when the preparation is complete."""


def ensure_prepared(data: DataConfig, out: Path, world: World, quiet: bool = False) -> Path:
    """Return the folder of token shards. Rank 0 prepares it if necessary; other ranks wait."""
    if data.workers:
        import_grain()  # raises if it is not installed: before the preparation
    if data.folder is not None:
        DataManifest.read(data.folder)
        return data.folder
    folder, done = out / "data", "data/prepared"
    if not world.is_rank_zero:
        while not world.store.check([done]):  # may take hours, longer than other timeouts
            time.sleep(0.2)
        if message := world.store.get(done).decode():
            raise DataError(message)
        return folder
    try:
        settings = _data_settings(data)
        if (folder / DATA_SETTINGS).is_file():
            _require_same_settings(settings, folder, bool(steps_in(out / "checkpoints")))
        else:
            _prepare(data, folder, quiet)
            write_json(folder / DATA_SETTINGS, settings)
    except (GiddError, OSError) as error:
        if isinstance(error, OSError):
            reason = error.strerror or error
            error = DataError(f"{folder} cannot be written: {reason}. Choose another --out.")
        world.store.set(done, str(error))
        raise error
    world.store.set(done, "")
    return folder


def loader_config(run: RunConfig, tokenizer: Tokenizer) -> LoaderConfig:
    """Return the settings of the loader that turns the documents of a run into batches."""
    vocab = tokenizer.vocab
    return LoaderConfig(
        global_batch=run.train.global_batch,
        length=run.data.length,
        pad_id=tokenizer.end_id if vocab.pad_id is None else vocab.pad_id,
        vocab_size=vocab.size,
        seed=run.train.seed,
    )


def data_warnings(folder: Path) -> list[str]:
    """Return warnings about the data that affect how to read the metrics."""
    if "validation" in DataManifest.read(folder).splits:
        return []
    return [
        "no validation split: validation metrics are computed on training text. Hold out N "
        "documents with --data.validation N (for a --data.folder: `gidd data prepare "
        "--validation N`)"
    ]


def _data_settings(data: DataConfig) -> dict[str, Any]:
    sources = [without_credentials(corpus.name) for corpus in corpora.corpora_of(data.sources)]
    return {"sources": sources, "tokenizer": data.tokenizer, "validation": data.validation}


def _require_same_settings(settings: dict[str, Any], folder: Path, has_checkpoints: bool) -> None:
    """Refuse shards that were prepared with other settings.

    The shards of a run with checkpoints are needed to resume it: never recommend to delete them.
    """
    remedy = "use another --out for a new run"
    if not has_checkpoints:
        remedy = f"delete {folder} to prepare again, or {remedy}"
    prepared = read_json(folder / DATA_SETTINGS, f"Restore the file, or {remedy}.", DataError)
    if changed := [
        f"data.{name}: {_format(prepared.get(name))} -> {_format(value)}"
        for name, value in settings.items()
        if prepared.get(name) != value
    ]:
        raise DataError(
            f"{folder} was prepared with other settings:\n  "
            + "\n  ".join(changed)
            + f"\nUse the same settings, or {remedy}."
        )


def _format(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _prepare(data: DataConfig, folder: Path, quiet: bool) -> None:
    choice, tokenizer = data.tokenizer, corpora.corpora_of(data.sources)[-1].tokenizer()
    if tokenizer is None:  # only exact sources have their own
        tokenizer = (
            tokenizers.train_tokenizer(corpora.texts(data.sources), choice)
            if isinstance(choice, int)
            else tokenizers.tokenizer_by_name(choice)
        )
    prepare(data.sources, tokenizer, folder, validation=data.validation, quiet=quiet)
