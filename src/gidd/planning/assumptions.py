"""Inputs of a plan that follow neither from the run nor from the device. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """Efficiency, cluster, storage and failure rates."""

    mfu: float = 0.35
    """Model FLOPs utilisation: fraction of the device's peak FLOP/s, without recomputation."""

    launch_microseconds: float = 5.0
    """Microseconds that the host needs to launch a kernel on a GPU."""

    usable_memory: float = 0.9
    """Fraction of device memory for tensors; CUDA, NCCL and fragmentation take the rest."""

    ranks_per_machine: int = 8
    """Devices per machine, connected by the device's own links."""

    network_gb_per_second: float = 40.0
    """GB/s that a device receives from other machines; 40 is 80% of one 400 Gb/s adapter each."""

    hop_microseconds: float = 10.0
    """Latency of one hop between machines, in microseconds."""

    write_gb_per_second: float = 20.0
    """GB/s that all ranks together write to the file system."""

    copy_gb_per_second: float = 10.0
    """GB/s that a device copies to host memory; training waits for the copy of a checkpoint."""

    failures_per_device_hour: float = 1.24e-4
    """Failures per device and hour. The default is 7.9 hours between failures at 1,024 devices, as
    in Meta's research clusters (Kokolis et al., HPCA 2025); Llama 3's training had 2.0e-5."""

    restart_minutes: float = 5.0
    """Minutes from a failure to the next step: detect it, restart, load the checkpoint."""

    def problems(self) -> Iterable[str]:
        """Yield a message for every value out of range."""
        for name in ("mfu", "usable_memory"):
            if not 0 < getattr(self, name) <= 1:
                yield f"{name} must be in (0, 1], got {getattr(self, name)}. It is a fraction."
        rates = ("network", "write", "copy")
        for name in (*(f"{rate}_gb_per_second" for rate in rates), "ranks_per_machine"):
            if not 0 < getattr(self, name) < math.inf:
                yield f"{name} must be positive, got {getattr(self, name)}."
        times = ("launch_microseconds", "hop_microseconds", "restart_minutes")
        for name in (*times, "failures_per_device_hour"):
            if not 0 <= getattr(self, name) < math.inf:
                yield f"{name} must be 0 or more, got {getattr(self, name)}."
