"""The folder with all checkpoints of a run: how one becomes visible, and which ones are kept.

Only rank 0 changes it. Nothing here communicates with other ranks.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Collection, Generator, Mapping
from contextlib import ExitStack, contextmanager
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
"""Prefix of checkpoints that are being deleted."""

LOCK = "lock"
"""File that is locked by the run that writes to the folder."""


@final
@dataclass(frozen=True, kw_only=True)
class Series:
    """Checkpoints `step-000000123`, each complete or absent."""

    folder: Path
    keep: int
    """Number of newest checkpoints to keep."""

    keep_every: int | None
    """Also keep checkpoints of steps divisible by this."""

    def __post_init__(self) -> None:
        if self.keep < 1 or (self.keep_every is not None and self.keep_every < 1):
            raise ConfigError(
                f"keep and keep_every must be at least 1, got {self.keep} and {self.keep_every}. "
                "They are the number of newest checkpoints to keep, and a period in steps."
            )

    def path(self, step: int) -> Path:
        """Return the folder of the checkpoint of a step."""
        return self.folder / folder_name(step)

    def temporary(self, step: int) -> Path:
        """Return the temporary folder that the checkpoint of a step is written to."""
        return self.folder / f".{folder_name(step)}{TEMPORARY}"

    @contextmanager
    def lock(self) -> Generator[None]:
        """Lock the folder against other runs, and delete temporary folders of killed runs."""
        busy = CheckpointError(
            f"{self.folder} is being written by another run. Wait for it or stop it, "
            "or use another folder to start a new run."
        )
        with ExitStack() as stack:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(file_lock(self.folder / LOCK, busy))
            except OSError as error:
                raise CheckpointError(
                    f"{self.folder} cannot be written: {error.strerror}. Check its permissions, "
                    "or choose a writable run folder with --out."
                ) from error
            for path in self.folder.glob(f".step-*{TEMPORARY}"):
                shutil.rmtree(path, ignore_errors=True)
            self._empty_trash()
            yield

    def begin(self, step: int) -> None:
        """Create an empty temporary folder."""
        shutil.rmtree(self.temporary(step), ignore_errors=True)
        self.temporary(step).mkdir(parents=True)

    def commit(
        self,
        step: int,
        tensors: Mapping[str, str],
        shards: Mapping[str, Mapping[str, Any]],
        texts: Mapping[str, str],
    ) -> None:
        """Complete the temporary folder that all ranks wrote to, and make it visible.

        `tensors` and `shards` are for the manifest: every tensor, and the files of all ranks.
        `texts` are further files to write.
        """
        temporary = self.temporary(step)
        for name, text in texts.items():
            write_text(temporary / name, text)
        files = {**shards, **{name: entry(temporary / name) for name in texts}}
        present = visible(temporary)
        if present != files.keys():
            raise CheckpointError(
                f"{temporary} must hold the files of all ranks, but differs in "
                f"{', '.join(sorted(present ^ files.keys()))}. Use a disk that all ranks share"
            )
        if missing := missing_tensors(temporary, tensors, files):
            raise CheckpointError(f"{missing}; another process may have deleted files there")
        # written last: it also syncs the folder, and with it the names of all files
        write_manifest(temporary, CheckpointManifest(step=step, tensors=tensors, files=files))
        if self.path(step).exists():  # damaged, or of a run that this one did not resume
            self._hide([step])
        temporary.rename(self.path(step))
        fsync_directory(self.folder)

    def expire(self, newest: int, damaged: Collection[int]) -> None:
        """Delete checkpoints that are not to be kept now that `newest` is visible.

        Later steps are not touched: they belong to a run that this one did not resume.
        """
        old = [step for step in steps_in(self.folder) if step <= newest]
        valid = [step for step in old if step not in damaged]
        every = self.keep_every
        kept = {*valid[-self.keep :], *(step for step in valid if every and step % every == 0)}
        self._hide([step for step in old if step not in kept])
        self._empty_trash()

    def _hide(self, steps: list[int]) -> None:
        """Rename checkpoints before they are deleted, so that none is ever visible in part."""
        for step in steps:
            name = f"{TRASH}{folder_name(step)}-{uuid.uuid4().hex[:12]}"
            self.path(step).rename(self.folder / name)
        if steps:
            fsync_directory(self.folder)

    def _empty_trash(self) -> None:
        """Delete hidden checkpoints; files still in use are deleted the next time."""
        for path in self.folder.glob(f"{TRASH}*"):
            shutil.rmtree(path, ignore_errors=True)
