"""The device to compute on."""

from __future__ import annotations

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
