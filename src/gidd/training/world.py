"""The processes of a run: rank, device, and communication with the other ranks.

Only this module opens process groups; one that is open already is used, and stays open. A run of
one process has a world of size 1.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Any, cast, final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from gidd.common.devices import resolve_device
from gidd.errors import ConfigError

if TYPE_CHECKING:
    from jaxtyping import Float

TIMEOUT_SECONDS = 600.0  # default time after which a rank stops waiting for the others
_WORLDS = count()  # opened in the process group of others: each has keys of its own in its store


@final
class StepStats:
    """Statistics of a step, on the device and on their way to the host."""

    def __init__(self, sums: Float[Tensor, " K"], norm: Float[Tensor, ""], num_set: Tensor) -> None:
        """Start to copy to the host; `num_set` is the number of ranks whose flag is set."""
        self.sums, self.norm = sums, norm
        self._stats = stats = torch.cat([sums, norm.view(1), num_set.view(1)])
        self._is_copied: torch.cuda.Event | None = None
        if stats.device.type == "cuda":
            self._stats = torch.empty_like(stats, device="cpu", pin_memory=True)
            self._stats.copy_(stats, non_blocking=True)
            self._is_copied = torch.cuda.Event()
            self._is_copied.record()

    def read(self) -> tuple[list[float], float, bool]:
        """Wait for the sums, the norm, and whether the flag is set on any rank."""
        if self._is_copied is not None:
            self._is_copied.synchronize()
        *sums, norm, num_set = cast("list[float]", self._stats.tolist())
        return sums, norm, num_set > 0


@final
class World:
    """This process among all processes of a run; opened by `open_world`."""

    def __init__(
        self,
        rank: int,
        size: int,
        device: torch.device,
        store: dist.Store,
        timeout: float,
        host_group: Any,
    ) -> None:
        self.rank, self.size, self.device, self.timeout = rank, size, device, timeout
        self.store, self.host_group = store, host_group
        """What all ranks share: a key-value store; a gloo group, which never waits for devices."""
        self.mesh = self._mesh((size,), ("ranks",))

    @property
    def is_rank_zero(self) -> bool:
        """Whether this is rank 0, which writes the files that only one rank may write."""
        return self.rank == 0

    def device_mesh_2d(self, columns: int) -> DeviceMesh:
        """Build a 2D mesh of all ranks, with `columns` neighbouring ranks in a row."""
        if columns < 1 or self.size % columns:
            raise ConfigError(
                f"parallel.shard_size must divide the number of ranks, {self.size}, got {columns}. "
                "Set --parallel.shard-size."
            )
        return self._mesh((self.size // columns, columns), ("replicate", "shard"))

    def _mesh(self, shape: tuple[int, ...], names: tuple[str, ...]) -> DeviceMesh:
        # torch has no device mesh for Apple GPUs and the meta device (`gidd plan`)
        kind = "cpu" if self.device.type in ("mps", "meta") else self.device.type
        return init_device_mesh(kind, shape, mesh_dim_names=names)

    def reduce_step_stats(self, sums: Tensor, norm: Tensor, flag: bool) -> StepStats:
        """Add `sums` and `flag` over all ranks, in one all-reduce, without waiting for it."""
        exact = torch.float32 if self.device.type == "mps" else torch.float64  # mps has no float64
        is_set = torch.full((1,), float(flag), dtype=exact, device=sums.device)
        shared = torch.cat([sums.to(exact), is_set])
        if self.size > 1:
            dist.all_reduce(shared)
        return StepStats(shared[:-1], norm.to(exact), shared[-1])

    def add(self, value: Tensor) -> Tensor:
        """Return a tensor on the device, added over all ranks, without waiting. All ranks enter."""
        if self.size > 1:
            dist.all_reduce(value)
        return value

    def sum(self, values: Sequence[float]) -> list[float]:
        """Return each number summed over all ranks in float64. All ranks enter."""
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total, group=self.host_group)
        return cast("list[float]", total.tolist())


def new_host_group(timeout: float) -> Any:
    """Open a gloo group of all ranks. All ranks enter.

    Threads that shared one could enter its collectives in different orders on different ranks.
    """
    return dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))


def rank_and_size() -> tuple[int, int]:
    """Return rank and number of processes: of the process group that is open, or of `torchrun`."""
    if dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def open_world(
    device: str | torch.device | None = None, timeout: float = TIMEOUT_SECONDS
) -> Generator[World]:
    """Open the world that `torchrun` describes in the environment, or one of this process alone.

    A process group that is open already, e.g. that of Accelerate or Ray Train, is used as it is.
    `device` is as in `resolve_device`, without a number if there are several processes. After
    `timeout` seconds a rank stops waiting for the others.
    """
    (rank, size), is_open = rank_and_size(), dist.is_initialized()
    place = _device(device, int(os.environ.get("LOCAL_RANK", "0")), size)
    store = _store(rank, size, timeout, is_open) if size > 1 else dist.HashStore()
    if not is_open:
        backend = "cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo"
        excepthook, wait = sys.excepthook, timedelta(seconds=timeout)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=wait)
        if size == 1:
            sys.excepthook = excepthook  # torch's prints "[rank0]:" before lines of a traceback
    host_group = new_host_group(timeout)
    try:
        yield World(rank, size, place, store, timeout, host_group)
    finally:
        dist.destroy_process_group(host_group if is_open else None)


def _device(name: str | torch.device | None, local_rank: int, size: int) -> torch.device:
    device = resolve_device(name)
    if device.type == "mps" and size > 1:
        raise ConfigError(f"an Apple GPU supports one process, got {size}. Give --device cpu.")
    if device.type != "cuda":
        return device
    has_number = ":" in str(device)
    if has_number and size == 1:
        local_rank = device.index
    elif has_number:
        raise ConfigError(
            f"device must be {device.type} for {size} processes, each of which has the GPU of its "
            f"local rank, got {device}. Choose GPUs with CUDA_VISIBLE_DEVICES."
        )
    if local_rank >= (num_devices := torch.cuda.device_count()):
        raise ConfigError(
            f"every process on a machine needs its own GPU, got local rank {local_rank} on a "
            f"machine with {num_devices}. Give torchrun a smaller --nproc-per-node."
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def _store(rank: int, size: int, timeout: float, is_open: bool) -> dist.Store:
    """Connect to the store of the open group, or that of `torchrun`.

    It keeps the keys of earlier worlds and of processes that died: each has its own namespace.
    """
    if is_open:
        store = distributed_c10d._get_default_store()  # pyright: ignore[reportPrivateUsage]
        return dist.PrefixStore(f"gidd-{next(_WORLDS)}", store)
    try:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    except KeyError as error:
        raise ConfigError(
            f"WORLD_SIZE is {size} but {error} is not set. Start several processes with torchrun."
        ) from error
    is_hosted_by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = dist.TCPStore(
        host, port, size, rank == 0 and not is_hosted_by_agent, timedelta(seconds=timeout)
    )
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(f"attempt-{attempt}", store)
