"""Checkpoints of a run: written in the background, visible only when complete, verified before use.

A checkpoint is written to `.step-N.tmp`, synced to disk file by file, described by a manifest and
only then renamed to `step-N`. Whenever a run is killed, every visible `step-N` is complete.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, final

import torch.distributed as dist
from torch import Tensor

from gidd.errors import CheckpointError
from gidd.training.checkpoints.folder import (
    CheckpointDirectory,
    abbreviate,
    damage,
    entry,
    folder_name,
    read_manifest,
    read_record,
    render_texts,
    steps_in,
)
from gidd.training.checkpoints.tensors import (
    HostBuffers,
    describe,
    differences,
    files_of_rank,
    read_tensors,
    write_tensors,
)
from gidd.training.world import World, new_host_group

T = TypeVar("T")

_MAX_ATTEMPTS = 50  # checkpoints to try one after the other while a run deletes them
_TOO_FAST = "checkpoints are deleted faster than they can be read. Keep more of them: --train.keep."


class ValidCheckpoint(NamedTuple):
    """A checkpoint whose files all have the size and SHA-256 of its manifest."""

    step: int
    notes: list[str]
    """Damaged files of newer checkpoints, which were therefore skipped."""


@final
class Checkpoints:
    """The checkpoints of one run: folders `step-000000123`, each complete or absent.

    All ranks construct it together and share the file system of `folder`. A run saves inside a
    `with` block, which locks the folder; leaving it waits for the save in progress. With
    `read_only` nothing changes there: another run may be writing to it.
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
        self._directory = CheckpointDirectory(folder=folder, keep=keep, keep_every=keep_every)
        self._read_only = read_only
        self._done: set[int] = set()  # steps that this run saved or restored
        self._damaged: set[int] = set()  # steps whose checkpoints are damaged
        self._buffers = HostBuffers()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._saving: Future[None] | None = None
        self._group = new_host_group(world.timeout)  # used by the background thread only
        self._lock = ExitStack()  # held by rank 0

    def __enter__(self) -> Checkpoints:
        if not self._read_only:
            self._run_on_rank_zero(lambda: self._lock.enter_context(self._directory.lock()))
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            self.wait()
        except CheckpointError:
            if error is None:  # otherwise the original exception is the one to report
                raise
        finally:
            if self._saving is None:  # otherwise Ctrl-C interrupted the wait and the save continues
                self._lock.close()

    def steps(self) -> list[int]:
        """Return the steps of all checkpoints, in ascending order."""
        return steps_in(self.folder)

    def path(self, step: int) -> Path:
        """Return the folder of the checkpoint of a step."""
        return self._directory.path(step)

    def save(
        self,
        step: int,
        tensors: Mapping[str, Tensor],
        record: Mapping[str, Any],
        files: Mapping[str, str] | None = None,
    ) -> None:
        """Start to write a checkpoint; return as soon as the tensors have been copied.

        All ranks enter. Waits for an earlier save first and raises its error. A step that this run
        saved or restored is not written again. `tensors` are `DTensor`s, or equal on all ranks;
        rank 0 writes the JSON values of `record` and the texts of `files`.
        """
        self.wait()
        if self._read_only:
            raise CheckpointError(f"{self.folder} was opened with read_only=True. Open it without.")
        if step in self._done:
            return
        texts = render_texts(record, files or {})
        copies = self._buffers.take(tensors)
        self._saving = self._thread.submit(self._write, step, dict(tensors), copies, texts)

    def wait(self) -> None:
        """Wait for the save in progress and raise its error. All ranks enter."""
        if self._saving is None:
            return
        try:
            self._saving.result()
        finally:
            if self._saving.done():  # otherwise Ctrl-C interrupted the wait and the save continues
                self._saving = None

    def read_latest(self, read: Callable[[int], T]) -> tuple[ValidCheckpoint, T] | None:
        """Return the newest valid checkpoint and the result of `read`, which is given its step.

        If its run deletes it meanwhile, the newest is read instead. An error of `read` is raised
        if a checkpoint that is still there fails twice. All ranks enter, and fail in `read`
        together. Returns None if the folder has no checkpoint.
        """
        failed: tuple[int, CheckpointError] | None = None
        for _ in range(_MAX_ATTEMPTS):
            valid = self.latest_valid()
            if valid is None:
                if failed is not None:
                    raise failed[1]
                return None
            try:
                return valid, read(valid.step)
            except CheckpointError as error:
                if failed is not None and failed[0] == valid.step:
                    raise
                failed = valid.step, error
        raise CheckpointError(f"{self.folder}: {_TOO_FAST}")

    def latest_valid(self) -> ValidCheckpoint | None:
        """Verify checkpoints, the newest first, and return the first valid one, or None.

        All ranks enter. If only deleted ones are left meanwhile, the folder is listed again.
        """
        self.wait()
        for _ in range(_MAX_ATTEMPTS):
            notes, is_deleted = list[str](), False
            steps = self._run_on_all_ranks(self.steps)[0]
            for step in reversed(steps):
                work = partial(damage, self.path(step), step, self.world.rank, self.world.size)
                # each rank verifies some of the files
                notes_of_ranks = self._run_on_all_ranks(work)
                if not any(notes_of_ranks):
                    return ValidCheckpoint(step, notes)
                if not self._run_on_all_ranks(self.path(step).is_dir)[0]:
                    is_deleted = True
                    continue
                self._damaged.add(step)
                notes += sorted({note for part in notes_of_ranks for note in part})
            if not steps:
                return None
            if not is_deleted:
                problem = f"every checkpoint in {self.folder} is damaged: {abbreviate(notes)}"
                raise CheckpointError(f"{problem}. Copy one from a backup, or use another folder.")
        raise CheckpointError(f"{self.folder}: {_TOO_FAST}")

    def read(
        self, step: int, tensors: Mapping[str, Tensor], *, partial: bool = False
    ) -> dict[str, Any]:
        """Load a checkpoint that `latest_valid` found, and return its record. All ranks enter.

        Tensors are filled in place; names, dtypes and shapes must match the checkpoint, which may
        hold more of them with `partial`. The number of ranks may differ from when it was saved.
        """
        self.require_same_model(step, tensors, partial=partial)
        path = self.path(step)
        self._run_on_all_ranks(lambda: read_tensors(path, tensors))
        record = self._run_on_all_ranks(lambda: read_record(path))[0]
        self._done.add(step)
        return record

    def require_same_model(
        self, step: int, tensors: Mapping[str, Tensor], *, partial: bool = False
    ) -> None:
        """Raise if `read` cannot fill the tensors, which may be meta tensors. All ranks enter."""
        path = self.path(step)

        def check() -> None:
            problems = differences(describe(tensors), read_manifest(path, step).tensors, partial)
            if problems:
                problem = f"{path} holds another model: {abbreviate(problems)}"
                raise CheckpointError(f"{problem}. Use its configuration, or another folder.")

        self._run_on_all_ranks(check)  # before any rank changes a tensor

    def _write(
        self,
        step: int,
        tensors: Mapping[str, Tensor],
        copies: Mapping[str, Tensor],
        texts: Mapping[str, str],
    ) -> None:
        """Write a checkpoint and make it visible, in the background thread. All ranks enter."""
        world, group, directory = self.world, self._group, self._directory
        temporary = directory.temporary(step)
        try:
            self._run_on_rank_zero(lambda: directory.begin(step), group)
            write_tensors(temporary, tensors, copies, group)
            paths = files_of_rank(temporary, world.rank)
            entries = self._run_on_all_ranks(lambda: {p.name: entry(p) for p in paths}, group)
            shards = {name: file for part in entries for name, file in part.items()}
            self._run_on_rank_zero(
                lambda: directory.commit(step, describe(tensors), shards, texts), group
            )
        except Exception as error:
            if world.is_rank_zero:
                shutil.rmtree(temporary, ignore_errors=True)
            earlier = ", ".join(map(folder_name, self.steps())) or "none"
            raise CheckpointError(
                f"the checkpoint of step {step} could not be written to {self.folder}: {error}. "
                f"Earlier checkpoints are intact: {earlier}. Free disk space, then resume."
            ) from error
        self._done.add(step)
        damaged = self._damaged - self._done
        self._run_on_rank_zero(lambda: directory.expire(step, damaged), group)

    def _run_on_rank_zero(self, work: Callable[[], object], group: Any = None) -> None:
        """Run `work` on rank 0; if it fails, all ranks raise. All ranks enter."""
        self._run_on_all_ranks(work if self.world.is_rank_zero else lambda: None, group)

    def _run_on_all_ranks(self, work: Callable[[], T], group: Any = None) -> list[T]:
        """Return the results of `work` on all ranks; if it fails on one, all raise."""
        world = self.world
        try:
            outcome = work(), None
        except Exception as error:
            outcome = None, f"rank {world.rank}: {error}" if world.size > 1 else str(error)
        outcomes: list[Any] = [outcome] * world.size
        if world.size > 1:
            dist.all_gather_object(outcomes, outcome, group=group or world.host_group)
        if failures := [failure for _, failure in outcomes if failure is not None]:
            raise CheckpointError("; ".join(failures))
        return [value for value, _ in outcomes]
