"""Save and load tensors as sharded safetensors files, with any sharding over ranks."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Iterable, Mapping
from operator import le
from pathlib import Path
from typing import Any, cast, final

import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.tensor import DTensor

from gidd.common.files import parse_json
from gidd.common.terminal import shorten
from gidd.errors import CheckpointError

_SHARDING, _OFFSETS = "DCP_SHARDING_INFO", "saved_offsets"
"""Keys in the metadata of a file of torch's writer: where each of its tensors begins."""

FILE_BYTES = 2**28  # approximate size of a rank's files: writing one needs twice its size in memory


def describe(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return dtype and shape of every tensor; for a sharded one the global shape."""
    return {
        name: f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
        for name, tensor in tensors.items()
    }


def differences(expected: Mapping[str, str], saved: Mapping[str, str], partial: bool) -> list[str]:
    """Return why tensors cannot be filled; with `partial`, the checkpoint may hold more of them."""
    problems = [f"{name} is missing" for name in expected if name not in saved]
    problems += [
        f"{name} is {saved[name]}, expected {text}"
        for name, text in expected.items()
        if saved.get(name, text) != text
    ]
    if not partial:
        problems += [f"{name} is not part of this model" for name in saved if name not in expected]
    return problems


def incomplete_tensors(paths: Iterable[Path], expected: Mapping[str, str]) -> list[str]:
    """Return the tensors (`describe`) that lack elements in the files, by the files' headers.

    Elements are counted, because each file of a sharded tensor has its name: names alone would not
    show that a rank's shard is missing. A shard outside its tensor is a `ValueError`.
    """
    counts: dict[str, int] = {}
    shapes = {name: json.loads(text.partition(" ")[2]) for name, text in expected.items()}
    for path in paths:
        with safe_open(path, framework="pt") as file:
            names: list[str] = file.keys()
            sharding = (file.metadata() or {}).get(_SHARDING, "{}")
            parsed: Any = parse_json(sharding.encode(), str(path))
            for name in names:
                shape = file.get_slice(name).get_shape()
                counts[name] = counts.get(name, 0) + math.prod(shape)
                entry = parsed.get(name) if isinstance(parsed, dict) else None
                offset = entry.get(_OFFSETS) if isinstance(entry, dict) else None
                if not _is_inside(offset, shape, shapes.get(name)):
                    raise ValueError(f"{path} does not say where {shorten(name)} begins")
    return [name for name, shape in shapes.items() if counts.get(name) != math.prod(shape)]


def _is_inside(offset: Any, shape: list[int], full: list[int] | None) -> bool:
    """Whether a shard at an offset is a part of a tensor, if the tensor is known."""
    if type(offset) is not list or len(cast("list[Any]", offset)) != len(shape):
        return False
    if not all(type(start) is int and start >= 0 for start in cast("list[Any]", offset)):
        return False
    ends = [start + size for start, size in zip(offset, shape, strict=True)]
    return full is None or (len(full) == len(ends) and all(map(le, ends, full)))


@final
class HostBuffers:
    """Host buffers that tensors are copied to, pinned for CUDA and reused by every save."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    @torch.no_grad()
    def take(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copy this rank's shards. The next call overwrites the same buffers."""
        local = {
            name: tensor.to_local() if isinstance(tensor, DTensor) else tensor
            for name, tensor in tensors.items()
        }
        kept, self._buffers = self._buffers, {}
        for name, tensor in local.items():
            buffer = kept.get(name)
            if buffer is None or (buffer.shape, buffer.dtype) != (tensor.shape, tensor.dtype):
                buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            self._buffers[name] = buffer.copy_(tensor, non_blocking=True)
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
        return self._buffers


@final
class _CopyPlanner(dcp.DefaultSavePlanner):
    """Plans with the placement of the live tensors and writes the bytes of their copies."""

    def __init__(self, copies: Mapping[str, Tensor]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._copies = copies

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        return self._copies[index.fqn]


def write_tensors(
    folder: Path, tensors: Mapping[str, Tensor], copies: Mapping[str, Tensor], group: Any
) -> None:
    """Write each rank's shards to its own files; replicated tensors are written once.

    All ranks of `group` enter, which no other thread may use meanwhile. If one fails, all raise.
    `tensors` give dtypes, shapes and placements, `copies` the values (`HostBuffers.take`).
    """
    numbers = dict[str, int]()  # of the file, from 1, that a rank writes its shard to
    file_number, filled = 1, 0.0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size() / group.size()
        if filled and filled + size > FILE_BYTES:
            file_number, filled = file_number + 1, 0.0
        numbers[name] = file_number
        filled += size
    writer = dcp.HuggingFaceStorageWriter(str(folder), numbers, save_distributed=True)
    planner = _CopyPlanner(copies)
    try:
        dcp.save(dict(tensors), storage_writer=writer, planner=planner, process_group=group)
    except dcp.CheckpointException as error:  # a BaseException: `except Exception` misses it
        causes = [f"rank {rank}: {cause}" for rank, (cause, _) in error.failures.items()]
        raise CheckpointError("; ".join(causes)) from error


def files_of_rank(folder: Path, rank: int) -> list[Path]:
    """Return the files that a rank wrote."""
    return sorted(folder.glob(f"shard-{rank + 1:05d}-*.safetensors"))


@final
class _VisibleFiles(FileSystem):
    """Ignores hidden files of the operating system, which are not part of a checkpoint."""

    def ls(self, path: str | os.PathLike[str]) -> list[str]:
        return [name for name in super().ls(path) if not Path(name).name.startswith(".")]


def read_tensors(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Fill this rank's shards in place; the sharding may differ from when they were saved."""
    with warnings.catch_warnings():
        # each rank reads on its own: no object is exchanged, so nothing is unpickled
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        reader = dcp.HuggingFaceStorageReader(str(folder))
        reader.fs = _VisibleFiles()
        try:
            dcp.load(dict(tensors), storage_reader=reader, no_dist=True)
        except dcp.CheckpointException as error:  # a BaseException, as above
            causes = "; ".join(str(cause) for cause, _ in error.failures.values())
            raise CheckpointError(f"{folder} could not be read: {causes}.") from error
