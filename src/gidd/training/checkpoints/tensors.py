"""Tensors between memory and sharded safetensors files, whole or divided among ranks in any way."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, final

import torch
from safetensors import safe_open
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from gidd.errors import CheckpointError

FILE_BYTES = 2**28
"""About how large a rank's files become: each is put together in memory, twice, to be written."""


def describe(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Type and shape of every tensor; of a divided one those of the whole."""
    return {
        name: f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
        for name, tensor in tensors.items()
    }


def differences(asked: Mapping[str, str], saved: Mapping[str, str], partial: bool) -> list[str]:
    """Why tensors cannot be filled from a checkpoint; empty if they can.

    Args:
        asked: The tensors that should be filled, as described by `describe`.
        saved: Those of the checkpoint.
        partial: Whether the checkpoint may hold others as well.
    """
    found = [f"{name} is missing" for name in asked if name not in saved]
    found += [
        f"{name} is {saved[name]}, expected {asked[name]}"
        for name in asked
        if name in saved and saved[name] != asked[name]
    ]
    if not partial:
        found += [f"{name} is not part of this model" for name in saved if name not in asked]
    return found


def lacking(paths: Iterable[Path], promised: Mapping[str, str]) -> list[str]:
    """Tensors of which files do not hold every number; only the files' headers are read.

    A divided tensor is in many files, each of its numbers in one: names alone would not show that
    a rank's part is missing.

    Args:
        paths: The safetensors files of all ranks.
        promised: The tensors that they should hold, as described by `describe`.
    """
    held: dict[str, int] = {}
    for path in paths:
        with safe_open(path, framework="pt") as file:
            names: list[str] = file.keys()
            for name in names:
                size = math.prod(file.get_slice(name).get_shape())
                held[name] = held.get(name, 0) + size
    return [name for name, words in promised.items() if held.get(name) != _numbers(words)]


def _numbers(words: str) -> int:
    """How many numbers a tensor has, as described by `describe`."""
    return math.prod(json.loads(words.partition(" ")[2]))


@final
class Copies:
    """Host memory that tensors are copied to; kept from one save to the next."""

    def __init__(self) -> None:
        self._memory: dict[str, Tensor] = {}

    @torch.no_grad()
    def take(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copy what this rank holds. The next call writes to the same memory."""
        local = {
            name: tensor.to_local() if isinstance(tensor, DTensor) else tensor
            for name, tensor in tensors.items()
        }
        self._memory = {name: self._room(name, tensor) for name, tensor in local.items()}
        for name, tensor in local.items():
            self._memory[name].copy_(tensor, non_blocking=True)
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
        return self._memory

    def _room(self, name: str, tensor: Tensor) -> Tensor:
        room = self._memory.get(name)
        if room is not None and (room.shape, room.dtype) == (tensor.shape, tensor.dtype):
            return room
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)


@final
class _CopyPlanner(DefaultSavePlanner):
    """Plans with the placement of the live tensors and writes the bytes of their copies."""

    def __init__(self, copies: Mapping[str, Tensor]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._copies = copies

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        return self._copies[index.fqn]


def write_tensors(
    folder: Path,
    tensors: Mapping[str, Tensor],
    copies: Mapping[str, Tensor],
    ranks: int,
    group: Any,
) -> None:
    """Write each rank's part to files of its own; what several ranks hold is written once.

    All ranks of `group` enter. If one fails, all raise.

    Args:
        folder: Where to; nothing else is in it.
        tensors: Tells types, shapes and placements only, and may change meanwhile.
        copies: What to write, as taken by `Copies`.
        ranks: Number of ranks.
        group: Their process group, used by nobody else meanwhile.
    """
    writer = HuggingFaceStorageWriter(
        str(folder), fqn_to_index_mapping=_file_numbers(tensors, ranks), save_distributed=True
    )
    planner = _CopyPlanner(copies)
    try:
        save(dict(tensors), storage_writer=writer, planner=planner, process_group=group)
    except CheckpointException as error:  # a BaseException: nobody catches it
        failures = error.failures.items()
        raise CheckpointError(
            "; ".join(f"rank {rank}: {cause}" for rank, (cause, _) in failures)
        ) from error


def _file_numbers(tensors: Mapping[str, Tensor], ranks: int) -> dict[str, int]:
    """Which of its files, counted from 1, a rank writes its part of each tensor to."""
    numbers: dict[str, int] = {}
    number, filled = 1, 0.0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size() / ranks
        if filled and filled + size > FILE_BYTES:
            number, filled = number + 1, 0.0
        numbers[name] = number
        filled += size
    return numbers


def files_of_rank(folder: Path, rank: int) -> list[Path]:
    """The files that a rank wrote."""
    return sorted(folder.glob(f"shard-{rank + 1:05d}-*.safetensors"))


@final
class _VisibleFiles(FileSystem):
    """Without what systems hide in any folder: such files are not part of a checkpoint."""

    def ls(self, path: str | os.PathLike[str]) -> list[str]:
        return [found for found in super().ls(path) if not Path(found).name.startswith(".")]


def read_tensors(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Fill this rank's part of tensors in place; how they were divided when saved is no matter."""
    with warnings.catch_warnings():
        # each rank reads by itself: nothing has to be told, and so nothing unpickled
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        reader = HuggingFaceStorageReader(str(folder))
        reader.fs = _VisibleFiles()
        try:
            load(dict(tensors), storage_reader=reader, no_dist=True)
        except CheckpointException as error:  # a BaseException: nobody catches it
            causes = "; ".join(str(cause) for cause, _ in error.failures.values())
            raise CheckpointError(
                f"{folder} could not be read: {causes}. Mend that and start again."
            ) from error
