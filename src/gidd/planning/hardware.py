"""Devices by their data sheets, and the other inputs of a plan. Imports no torch by itself."""

import math
import os
from dataclasses import dataclass
from typing import Annotated, Literal

from gidd.common.config.allowed import integer, require_allowed, within
from gidd.errors import ConfigError

_FRACTION = within(lambda x: 0 < x <= 1, "in (0, 1]")
_POSITIVE = within(lambda x: 0 < x < math.inf, "positive")
_AT_LEAST_0 = within(lambda x: 0 <= x < math.inf, "0 or more")


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """Efficiency, cluster, storage, preparation and failure rates."""

    mfu: Annotated[float, _FRACTION] = 0.35
    """Model FLOPs utilisation: fraction of the device's peak FLOP/s, without recomputation."""
    usable_memory: Annotated[float, _FRACTION] = 0.9
    """Fraction of device memory for tensors; CUDA, NCCL and fragmentation take the rest."""
    ranks_per_machine: Annotated[int, integer(1)] = 8
    """Devices per machine, connected by the device's own links."""
    network_gb_per_second: Annotated[float, _POSITIVE] = 40.0
    """GB/s that a device receives from other machines; 40 is 80% of one 400 Gb/s adapter each."""
    hop_microseconds: Annotated[float, _AT_LEAST_0] = 10.0
    """Latency of one hop between machines, in microseconds."""
    write_gb_per_second: Annotated[float, _POSITIVE] = 20.0
    """GB/s that all ranks together write to the file system."""
    copy_gb_per_second: Annotated[float, _POSITIVE] = 10.0
    """GB/s that a device copies to host memory; training waits for the copy of a checkpoint."""
    text_bytes_per_token: Annotated[float, _POSITIVE] = 5.1
    """Bytes of text per token of the sources; 5.1 is English with GPT-2's tokenizer."""
    prepare_mb_per_second: Annotated[float, _POSITIVE] = 1.2
    """MB of text that a core prepares per second; `python benchmarks/data.py` measures it."""
    cores_per_machine: Annotated[int, integer(1)] = 64
    """CPU cores of a machine that prepares data."""
    failures_per_device_hour: Annotated[float, _AT_LEAST_0] = 1.24e-4
    """Failures per device and hour. The default is 7.9 hours between failures at 1,024 devices, as
    in Meta's research clusters (Kokolis et al., HPCA 2025); Llama 3's training had 2.0e-5."""
    restart_minutes: Annotated[float, _AT_LEAST_0] = 5.0
    """Minutes from a failure to the next step: detect it, restart, load the checkpoint."""

    __post_init__ = require_allowed


@dataclass(frozen=True, kw_only=True)
class Device:
    """An accelerator, or the CPUs of this machine."""

    name: str
    memory: float  # bytes as advertised (80 GB is 80e9); drivers reserve some of it
    flops: float  # dense bf16 matrix FLOP/s with float32 accumulation
    float32_flops: float  # matrix FLOP/s; torch does not use TF32 by default
    link: float | None  # bytes/s received from devices in the same machine; None if unknown
    kind: Literal["cuda", "cpu"] = "cuda"  # backend whose autocast rules apply


_SHEETS = (
    # NVLink rates are advertised for both directions: half of that is received
    Device(name="h100", memory=80e9, flops=989e12, float32_flops=67e12, link=450e9),  # SXM5
    Device(name="h200", memory=141e9, flops=989e12, float32_flops=67e12, link=450e9),
    # B200 as in HGX and DGX machines
    Device(name="b200", memory=180e9, flops=2250e12, float32_flops=75e12, link=900e9),
    Device(name="a100-80gb", memory=80e9, flops=312e12, float32_flops=19.5e12, link=300e9),  # SXM4
    Device(name="a100-40gb", memory=40e9, flops=312e12, float32_flops=19.5e12, link=300e9),
    # PCIe 4.0 x16
    Device(name="l4", memory=24e9, flops=121e12, float32_flops=30.3e12, link=32e9),
    Device(name="rtx4090", memory=24e9, flops=165e12, float32_flops=82.6e12, link=32e9),
)

DEVICES: dict[str, Device] = {device.name: device for device in _SHEETS}
"""Known devices by name; `cpu`, this machine, is measured."""


def named_device(name: str) -> Device:
    """Return a device by name; `cpu` measures this machine."""
    if name in DEVICES:
        return DEVICES[name]
    if name != "cpu":
        raise ConfigError(f"device must be one of {', '.join([*DEVICES, 'cpu'])}, got {name!r}.")
    import torch

    from gidd.training.reporting.speed import matmul_rate

    here, memory = torch.device("cpu"), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    rates = {"flops": torch.bfloat16, "float32_flops": torch.float32}
    measured = {name: matmul_rate(here, dtype) for name, dtype in rates.items()}
    return Device(name="cpu", memory=memory, link=None, kind="cpu", **measured)
