"""The device to compute on."""

from __future__ import annotations

import platform

import torch

from gidd.errors import ConfigError


def choose(name: str | None) -> torch.device:
    """Return the named device if it is available, or the fastest available one for None."""
    fastest = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    available = dict.fromkeys(("cpu", fastest.type))
    if name is not None and name not in available:
        raise ConfigError(
            f"device must be {' or '.join(available)} on this machine with this build of torch, "
            f"got {name}. Omit it to use the fastest."
        )
    return torch.device(name or fastest.type)


def lacks_bf16(device: torch.device) -> bool:
    """Whether a device has no instructions for bfloat16, which makes it slower than float32."""
    if device.type != "cpu" or platform.machine() not in ("x86_64", "AMD64"):
        return False
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    checks = [getattr(torch.cpu, name, None) for name in names]
    return all(check is not None and not check() for check in checks)
