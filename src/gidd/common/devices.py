"""What to compute on."""

from __future__ import annotations

import torch

from gidd.errors import ConfigError


def choose(name: str | None) -> torch.device:
    """The device of that name, if it is here; without a name the fastest one that is."""
    fastest = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    here = dict.fromkeys(("cpu", fastest.type))
    if name is not None and name not in here:
        raise ConfigError(
            f"device must be one that this machine and this build of torch have: "
            f"{' or '.join(here)}. Got {name}. Leave it out to take the fastest."
        )
    return torch.device(name or fastest.type)
