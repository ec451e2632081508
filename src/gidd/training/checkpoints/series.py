"""The folder with all checkpoints of a run: how one becomes visible, and which of them stay.

Only one process at a time changes it: the first rank. Nothing here waits for others.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from gidd.common.files import TEMPORARY, file_lock, fsync_directory, write_text
from gidd.errors import CheckpointError, ConfigError
from gidd.training.checkpoints.folder import (
    CheckpointManifest,
    entry,
    folder_name,
    missing_tensors,
    steps_in,
    visible,
    write_manifest,
)

TRASH = ".trash-"
"""How the name of a checkpoint begins that is being deleted."""

LOCK = "lock"
"""File that the run which may change the folder holds."""


@final
@dataclass(frozen=True, kw_only=True)
class Series:
    """Checkpoints `step-000000123`, each of which is whole or not there."""

    folder: Path
    keep: int
    """How many of the newest stay."""

    keep_every: int | None
    """Steps divisible by this stay as well."""

    def __post_init__(self) -> None:
        if self.keep < 1 or (self.keep_every is not None and self.keep_every < 1):
            raise ConfigError(
                f"keep and keep_every must be at least 1, got {self.keep} and {self.keep_every}. "
                "They say how many of the newest checkpoints stay, and every which step."
            )

    def steps(self) -> list[int]:
        """Steps of which there is a checkpoint, in order."""
        return steps_in(self.folder)

    def path(self, step: int) -> Path:
        """Folder of the checkpoint of a step."""
        return self.folder / folder_name(step)

    def temporary(self, step: int) -> Path:
        """Folder that the checkpoint of a step is written to."""
        return self.folder / f".{folder_name(step)}{TEMPORARY}"

    @contextmanager
    def lock(self) -> Generator[None]:
        """Keep other runs out until the block ends, and delete what killed ones left."""
        self.folder.mkdir(parents=True, exist_ok=True)
        busy = CheckpointError(
            f"{self.folder} is being written by another run. Wait for it or end it, "
            "or name another folder to begin anew."
        )
        with file_lock(self.folder / LOCK, busy):
            self._clean()
            yield

    def begin(self, step: int) -> None:
        """Make an empty folder to write to."""
        shutil.rmtree(self.temporary(step), ignore_errors=True)
        self.temporary(step).mkdir(parents=True)

    def commit(
        self,
        step: int,
        tensors: Mapping[str, str],
        shards: Mapping[str, Mapping[str, Any]],
        texts: Mapping[str, str],
    ) -> None:
        """Make visible what all ranks wrote aside.

        Args:
            step: The step.
            tensors: Type and shape of every tensor.
            shards: What the manifest says about the files of all ranks.
            texts: Further files.
        """
        temporary = self.temporary(step)
        for name, text in texts.items():
            write_text(temporary / name, text)
        files = {**shards, **{name: entry(temporary / name) for name in texts}}
        there = visible(temporary)
        if there != files.keys():
            raise CheckpointError(
                f"{temporary} must hold the files of all ranks, but differs in "
                f"{', '.join(sorted(there ^ files.keys()))}; is it on a disk that all ranks share?"
            )
        if lack := missing_tensors(temporary, tensors, files):
            raise CheckpointError(f"{lack}, as if another process had deleted files there")
        # the last file: with it the names of all are forced to disk
        write_manifest(temporary, CheckpointManifest(step=step, tensors=tensors, files=files))
        if self.path(step).exists():  # damaged, or of a run that this one did not continue
            self._hide([step])
        temporary.rename(self.path(step))
        fsync_directory(self.folder)

    def expire(self, newest: int, damaged: Collection[int]) -> None:
        """Delete what need not stay now that `newest` is visible.

        Later steps are left alone: they are of a run that this one did not continue.
        """
        old = [step for step in self.steps() if step <= newest]
        whole = [step for step in old if step not in damaged]
        every = self.keep_every
        stay = {*whole[-self.keep :], *(step for step in whole if every and step % every == 0)}
        self._hide([step for step in old if step not in stay])
        self._empty_trash()

    def _hide(self, steps: list[int]) -> None:
        """Rename checkpoints before they are deleted, so that none is ever seen in part."""
        for step in steps:
            self.path(step).rename(
                self.folder / f"{TRASH}{folder_name(step)}-{uuid.uuid4().hex[:12]}"
            )
        if steps:
            fsync_directory(self.folder)

    def _empty_trash(self) -> None:
        """Delete what can be deleted; a file that someone still reads goes the next time."""
        for path in self.folder.glob(f"{TRASH}*"):
            shutil.rmtree(path, ignore_errors=True)

    def _clean(self) -> None:
        """Delete what killed runs left."""
        for path in self.folder.glob(f".step-*{TEMPORARY}"):
            shutil.rmtree(path, ignore_errors=True)
        self._empty_trash()
