"""The processes of a run: who this one is, what it computes on, how it talks to the others.

Nothing else in the library knows about process groups. A run of one process has a world of one.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, cast, final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from gidd.common.devices import choose
from gidd.errors import ConfigError

TIMEOUT_SECONDS = 600.0
"""How long ranks wait for each other before they give up."""


@final
class World:
    """This process among all processes of a run; made by `open_world`."""

    def __init__(
        self, rank: int, size: int, device: torch.device, store: dist.Store, timeout: float
    ) -> None:
        self.rank, self.size, self.device = rank, size, device
        self.store = store
        """Small facts that all ranks can see, e.g. how far each one is."""
        self.timeout = timeout
        self.host_group = new_host_group(timeout)
        """For what is said between hosts: never waits for work on the devices."""
        self.mesh = self._mesh((size,), ("ranks",))

    @property
    def is_rank_zero(self) -> bool:
        """Whether this rank writes what only one may write."""
        return self.rank == 0

    def grid(self, columns: int) -> DeviceMesh:
        """All ranks in rows of `columns` neighbours."""
        if columns < 1 or self.size % columns:
            raise ConfigError(
                f"parallel.ranks must divide the number of ranks, {self.size}, got {columns}. "
                "So many neighbouring ranks share one copy of the model."
            )
        return self._mesh((self.size // columns, columns), ("replicate", "shard"))

    def _mesh(self, shape: tuple[int, ...], names: tuple[str, ...]) -> DeviceMesh:
        # there are no meshes of Apple's GPUs
        kind = "cpu" if self.device.type == "mps" else self.device.type
        return init_device_mesh(kind, shape, mesh_dim_names=names)

    def reduce_step_stats(
        self, sums: Tensor, norm: Tensor, flag: bool
    ) -> tuple[list[float], float, bool]:
        """Sums over all ranks, a number that all ranks have alike, and whether any raised a flag.

        One exchange between devices and one wait for this one. All ranks enter.
        """
        exact = torch.float32 if self.device.type == "mps" else torch.float64  # mps has no doubles
        shared = torch.cat([sums.to(exact), sums.new_tensor([flag], dtype=exact)])
        if self.size > 1:
            dist.all_reduce(shared)
        *totals, raised, size = cast(
            "list[float]", torch.cat([shared, norm.to(exact).reshape(1)]).tolist()
        )
        return totals, size, raised > 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """Each number, summed over all ranks in double precision. All ranks enter."""
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total, group=self.host_group)
        return cast("list[float]", total.tolist())

    def any(self, *flags: bool) -> list[bool]:
        """Each flag: is it raised on any rank? All ranks enter and all get the same answer."""
        if self.size == 1:
            return list(flags)
        raised = torch.tensor(flags, dtype=torch.int32)
        dist.all_reduce(raised, dist.ReduceOp.MAX, group=self.host_group)
        return [bool(flag) for flag in raised]

    def from_first(self, value: Any) -> Any:
        """The first rank's value, on all ranks."""
        box = [value]
        if self.size > 1:
            dist.broadcast_object_list(box, src=0, group=self.host_group)
        return box[0]

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.size > 1:
            dist.barrier(group=self.host_group)


def new_host_group(timeout: float) -> Any:
    """A process group of all ranks that moves data between hosts' memories. All ranks enter.

    Work in a background thread must have one of its own: two threads that use one group can enter
    its collectives in different orders on different ranks.
    """
    return dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))


@contextmanager
def open_world(device: str | None = None, timeout: float = TIMEOUT_SECONDS) -> Generator[World]:
    """The world that `torchrun` described in the environment, or a world of this process alone.

    Args:
        device: "cpu", "cuda" or "mps"; by default the fastest there is.
        timeout: Seconds that ranks wait for each other.
    """
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    place = _device(device, int(os.environ.get("LOCAL_RANK", "0")), size)
    store = _store(rank, size, timeout) if size > 1 else dist.HashStore()
    backend = "cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo"
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout)
    )
    try:
        yield World(rank, size, place, store, timeout)
    finally:
        dist.destroy_process_group()


def _device(name: str | None, local_rank: int, size: int) -> torch.device:
    device = choose(name)
    if device.type == "mps" and size > 1:
        raise ConfigError(
            f"an Apple GPU works for one process alone, got {size}. Start it without torchrun, or "
            "give --device cpu."
        )
    if device.type != "cuda":
        return device
    if local_rank >= torch.cuda.device_count():
        raise ConfigError(
            f"every process of a machine needs a GPU of its own, got local rank {local_rank} on a "
            f"machine with {torch.cuda.device_count()}. Give torchrun a smaller --nproc-per-node, "
            "or give --device cpu."
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def _store(rank: int, size: int, timeout: float) -> dist.Store:
    """The store of `torchrun`, with names of its own for every restart.

    After a restart the store still holds what the dead processes wrote; ranks that read it wait for
    partners that no longer exist.
    """
    environment = os.environ
    try:
        host, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    except KeyError as error:
        raise ConfigError(
            f"WORLD_SIZE is {size} but {error} is not set. Start several processes with torchrun."
        ) from error
    agent_has_it = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = dist.TCPStore(
        host, port, size, rank == 0 and not agent_has_it, timedelta(seconds=timeout)
    )
    attempt = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(f"attempt-{attempt}", store)
