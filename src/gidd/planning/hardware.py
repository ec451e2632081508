"""Memory, peak FLOP/s and link bandwidth of devices, from their data sheets."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal, final

import torch

from gidd.errors import ConfigError
from gidd.training.reporting.speed import matmul_rate


@final
@dataclass(frozen=True, kw_only=True)
class Device:
    """An accelerator, or the CPUs of this machine."""

    name: str

    memory: float
    """Bytes as advertised (80 GB is 80e9); drivers reserve some of it."""

    flops: float
    """Dense bf16 matrix FLOP/s with float32 accumulation."""

    float32_flops: float
    """Float32 matrix FLOP/s; torch does not use TF32 by default."""

    link: float | None
    """Bytes per second received from devices in the same machine; None if unknown."""

    kind: Literal["cuda", "cpu"] = "cuda"
    """Backend whose autocast rules apply."""


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
    if name == "cpu":
        here = torch.device("cpu")
        return Device(
            name="cpu",
            memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            flops=matmul_rate(here, torch.bfloat16),
            float32_flops=matmul_rate(here, torch.float32),
            link=None,
            kind="cpu",
        )
    if name not in DEVICES:
        raise ConfigError(
            f"device must be one of {', '.join([*DEVICES, 'cpu'])}, got {name!r}. "
            "For another one, pass a gidd.planning.Device to gidd.planning.plan_run."
        )
    return DEVICES[name]
