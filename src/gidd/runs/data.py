"""The data of a training run: a folder that was given, or `data/` in the run's own folder."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from gidd.common.files import read_json, write_json
from gidd.data import corpora, tokenizers
from gidd.data.corpora.remote import without_credentials
from gidd.data.manifest import DataManifest
from gidd.data.preparation.prepare import prepare
from gidd.errors import DataError, GiddError
from gidd.training.config import DataConfig
from gidd.training.world import World

DATA_SETTINGS = "data_settings.json"
"""The settings that a run has prepared its data with; written when it is done."""


def ensure_prepared(data: DataConfig, out: Path, world: World, quiet: bool = False) -> Path:
    """The folder of token shards. The first rank makes it if need be, the others wait for that."""
    if data.folder is not None:
        DataManifest.read(data.folder)
        return data.folder
    folder, done = out / "data", "data/prepared"
    if not world.is_rank_zero:
        while not world.store.check([done]):  # hours, perhaps: longer than ranks wait elsewhere
            time.sleep(0.2)
        if message := world.store.get(done).decode():
            raise DataError(message)
        return folder
    try:
        asked = _asked(data)
        if (folder / DATA_SETTINGS).is_file():
            _require_same(asked, folder)
        else:
            _prepare(data, folder, quiet)
            write_json(folder / DATA_SETTINGS, asked)
    except GiddError as error:
        world.store.set(done, str(error))
        raise
    world.store.set(done, "")
    return folder


def _asked(data: DataConfig) -> dict[str, Any]:
    return {
        "sources": [
            without_credentials(corpus.name) for corpus in corpora.corpora_of(data.sources)
        ],
        "tokenizer": data.tokenizer,
        "validation": data.validation,
    }


def _require_same(asked: dict[str, Any], folder: Path) -> None:
    """Refuse shards that were made from other sources or in another way."""
    made = read_json(folder / DATA_SETTINGS, f"Delete {folder} to prepare anew.", DataError)
    if changed := [
        f"data.{name}: {_plain(made.get(name))} -> {_plain(value)}"
        for name, value in asked.items()
        if made.get(name) != value
    ]:
        raise DataError(
            f"{folder} was prepared with other settings:\n  "
            + "\n  ".join(changed)
            + f"\nGive the same settings, delete {folder} to prepare anew, or give another --out."
        )


def _plain(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _prepare(data: DataConfig, folder: Path, quiet: bool) -> None:
    wanted, tokenizer = data.tokenizer, corpora.resolve(data.sources).tokenizer
    if tokenizer is None:  # true of all but the exact sources
        tokenizer = (
            tokenizers.train_tokenizer(corpora.texts(data.sources), wanted)
            if isinstance(wanted, int)
            else tokenizers.named(wanted)
        )
    prepare(data.sources, tokenizer, folder, validation=data.validation, quiet=quiet)
