"""The checkpoints of a run: written in the background, visible only when whole, checked before use.

A checkpoint is written to `.step-N.tmp`, forced to disk file by file, described by a manifest and
only then renamed to `step-N`. Whenever the run is ended, every `step-N` that can be seen is whole.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, final

import torch.distributed as dist
from torch import Tensor

from gidd.errors import CheckpointError
from gidd.training.checkpoints.folder import (
    checked_texts,
    damage,
    entry,
    folder_name,
    read_manifest,
    read_record,
)
from gidd.training.checkpoints.series import Series
from gidd.training.checkpoints.tensors import (
    Copies,
    describe,
    differences,
    files_of_rank,
    read_tensors,
    write_tensors,
)
from gidd.training.world import World, new_host_group

T = TypeVar("T")


class ValidCheckpoint(NamedTuple):
    """A checkpoint of which every file is what was written."""

    step: int
    notes: list[str]
    """Files of newer checkpoints that are damaged, which is why those were passed over."""


class Restored(NamedTuple):
    """A checkpoint that was read."""

    step: int
    record: dict[str, Any]
    notes: list[str]
    """As of `ValidCheckpoint`."""


@final
class Checkpoints:
    """The checkpoints of one run: folders `step-000000123` that are whole or not there.

    All ranks make one together. A run saves in a `with` block, in which only one run at a time can
    be. At its start what killed runs left in the folder is deleted; at its end the save under way
    is waited for, also if the block fails.

    Args:
        folder: Where they are; on a file system that all ranks share.
        world: The ranks of the run.
        keep: How many of the newest stay.
        keep_every: Steps divisible by this stay as well.
        read_only: Change nothing in the folder, because another run may be writing to it.
    """

    def __init__(
        self,
        folder: Path,
        world: World,
        *,
        keep: int = 2,
        keep_every: int | None = None,
        read_only: bool = False,
    ) -> None:
        self.folder, self.world = folder, world
        self._series = Series(folder=folder, keep=keep, keep_every=keep_every)
        self._read_only = read_only
        self._done: set[int] = set()  # steps that this run saved or restored
        self._damaged: set[int] = set()  # steps that it found damaged
        self._copies = Copies()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._saving: Future[None] | None = None
        self._group = new_host_group(world.timeout)  # the thread's own
        self._lock = ExitStack()  # of the first rank

    def __enter__(self) -> Checkpoints:
        if not self._read_only:
            world, lock = self.world, self._series.lock()
            enter = self._first(lambda: self._lock.enter_context(lock))
            _together(world, world.host_group, enter)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            self.wait()
        except CheckpointError:
            if error is None:  # else what ended the block is the news
                raise
        finally:
            if self._saving is None:  # else this thread was interrupted and the save goes on
                self._lock.close()

    def steps(self) -> list[int]:
        """Steps of which there is a checkpoint, in order."""
        return self._series.steps()

    def path(self, step: int) -> Path:
        """Folder of the checkpoint of a step."""
        return self._series.path(step)

    def save(
        self,
        step: int,
        tensors: Mapping[str, Tensor],
        record: Mapping[str, Any],
        files: Mapping[str, str] | None = None,
    ) -> None:
        """Begin to write a checkpoint; returns as soon as the tensors have been copied.

        All ranks enter. An earlier save is waited for first, and its failure raised here. A step
        that this run saved or restored is not written again: it would be the same.

        Args:
            step: Optimiser steps done.
            tensors: All tensors by name: `DTensor`s, or plain ones that are equal on all ranks.
            record: What JSON can hold; the first rank's is written.
            files: Texts to put beside it, by file name; the first rank's are written.
        """
        self.wait()
        if self._read_only:
            raise CheckpointError(f"{self.folder} was opened to read only. Leave read_only out.")
        if step in self._done:
            return
        texts = checked_texts(record, files or {})
        copies = self._copies.take(tensors)
        self._saving = self._thread.submit(self._write, step, dict(tensors), copies, texts)

    def wait(self) -> None:
        """Wait until the save under way is complete and visible; raises its error. All enter."""
        if self._saving is None:
            return
        try:
            self._saving.result()
        finally:
            if self._saving.done():  # else this thread was interrupted and the save goes on
                self._saving = None

    def restore(self, tensors: Mapping[str, Tensor], *, partial: bool = False) -> Restored | None:
        """Read the newest checkpoint of which every file is what was written.

        All ranks enter, however many there are. Files are checked before a tensor is changed; if
        they are lost after that, the checkpoint before is read instead.

        Args:
            tensors: Filled in place; names, types and shapes must be those of the checkpoint.
            partial: Whether the checkpoint may hold more tensors than these.

        Returns:
            The checkpoint, or None if there is none at all.
        """
        whole = self.latest_valid()
        while whole is not None:
            step, notes = whole
            self._require_same_model(step, tensors, partial)
            try:
                return Restored(step, self._fill(step, tensors), notes)
            except CheckpointError:
                whole = self.latest_valid()
                if whole is None or whole.step == step:  # no other, or its files are not at fault
                    raise
        return None

    def latest_valid(self) -> ValidCheckpoint | None:
        """The newest checkpoint of which every file is what was written. All ranks enter.

        Returns:
            The checkpoint, or None if there is none at all.
        """
        self.wait()
        notes: list[str] = []
        steps = _together(self.world, self.world.host_group, self.steps)[0]
        for step in reversed(steps):
            found = self._damage(step)
            if not found:
                return ValidCheckpoint(step, notes)
            self._damaged.add(step)
            notes += found
        if not steps:
            return None
        raise CheckpointError(
            f"every checkpoint in {self.folder} is damaged: {'; '.join(notes)}. "
            "Copy one back from elsewhere, or name another folder to begin anew."
        )

    def read(
        self, step: int, tensors: Mapping[str, Tensor], *, partial: bool = False
    ) -> dict[str, Any]:
        """Read a checkpoint that `latest_valid` found. All ranks enter.

        Args:
            step: Its step.
            tensors: As of `restore`.
            partial: As of `restore`.

        Returns:
            The record.
        """
        self._require_same_model(step, tensors, partial)
        return self._fill(step, tensors)

    def _damage(self, step: int) -> list[str]:
        """What is wrong with a checkpoint. All ranks enter; each looks into some of its files."""
        world, path = self.world, self.path(step)
        found = _together(
            world, world.host_group, lambda: damage(path, step, world.rank, world.size)
        )
        return sorted({note for part in found for note in part})

    def _require_same_model(self, step: int, tensors: Mapping[str, Tensor], partial: bool) -> None:
        """Refuse tensors that are not those of a checkpoint. All ranks enter."""
        path = self.path(step)

        def check() -> None:
            saved = read_manifest(path, step).tensors
            problems = differences(describe(tensors), saved, partial)
            if problems:
                shown = "; ".join(problems[:5]) + ("; ..." if len(problems) > 5 else "")
                raise CheckpointError(
                    f"{path} is of another model: {shown}. "
                    "Use the configuration it was saved with, or another folder."
                )

        _together(self.world, self.world.host_group, check)  # before any rank changes a tensor

    def _fill(self, step: int, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """Fill tensors from a checkpoint that is whole; its record. All ranks enter."""
        world, path = self.world, self.path(step)
        _together(world, world.host_group, lambda: read_tensors(path, tensors))
        record = _together(world, world.host_group, lambda: read_record(path))[0]
        self._done.add(step)
        return record

    def _write(
        self,
        step: int,
        tensors: Mapping[str, Tensor],
        copies: Mapping[str, Tensor],
        texts: Mapping[str, str],
    ) -> None:
        """Write a checkpoint and make it visible. Runs in the background; all ranks enter."""
        world, group, series = self.world, self._group, self._series
        temporary = series.temporary(step)
        try:
            _together(world, group, self._first(lambda: series.begin(step)))
            write_tensors(temporary, tensors, copies, world.size, group)
            mine = files_of_rank(temporary, world.rank)
            written = _together(world, group, lambda: {path.name: entry(path) for path in mine})
            shards = {name: what for part in written for name, what in part.items()}
            commit = self._first(lambda: series.commit(step, describe(tensors), shards, texts))
            _together(world, group, commit)
        except Exception as error:
            if world.is_rank_zero:
                shutil.rmtree(temporary, ignore_errors=True)
            whole = ", ".join(map(folder_name, self.steps())) or "there was none"
            raise CheckpointError(
                f"the checkpoint of step {step} could not be written to {self.folder}: "
                f"{error}. Earlier ones are intact: {whole}. "
                "Make room or mend the access, then start again to continue from the newest."
            ) from error
        self._done.add(step)
        _together(
            world, group, self._first(lambda: series.expire(step, self._damaged - self._done))
        )

    def _first(self, work: Callable[[], object]) -> Callable[[], object]:
        """The work on the first rank, nothing on others."""
        return work if self.world.is_rank_zero else lambda: None


def _together(world: World, group: Any, work: Callable[[], T]) -> list[T]:
    """What the work returned on each rank; if it failed on any, all raise. All ranks enter."""
    outcomes: list[Any] = [None] * world.size
    try:
        outcome = work(), None
    except Exception as error:
        outcome = None, f"rank {world.rank}: {error}" if world.size > 1 else str(error)
    if world.size > 1:
        dist.all_gather_object(outcomes, outcome, group=group)
    else:
        outcomes = [outcome]
    failures = [failure for _, failure in outcomes if failure is not None]
    if failures:
        raise CheckpointError("; ".join(failures))
    return [value for value, _ in outcomes]
