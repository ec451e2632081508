"""A profile of a few training steps, as one file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from gidd.errors import ConfigError

if TYPE_CHECKING:
    from gidd.training.loop import OnTrainStep
    from gidd.training.metrics import Metrics
    from gidd.training.state import TrainState

WAIT: Final = 3
"""Steps before the profile, in which kernels are compiled and memory is allocated."""

ACTIVE: Final = 3
"""Steps in the profile."""


def profiler(path: Path, device: torch.device, num_steps: int) -> OnTrainStep:
    """Return a callback that writes a trace of the fourth to sixth step of this process to a file.

    Perfetto and chrome://tracing show operators of the host, kernels of the device and memory.
    """
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)

    def write(recorded: profile) -> None:
        recorded.export_chrome_trace(str(path))

    recorder = profile(
        activities=activities,
        schedule=schedule(wait=WAIT - 1, warmup=1, active=ACTIVE, repeat=1),
        on_trace_ready=write,
        record_shapes=True,
        profile_memory=True,
    )

    def on_step(state: TrainState, metrics: Metrics) -> None:
        if metrics:
            recorder.step()
            return
        if (left := num_steps - state.step) < WAIT + ACTIVE:
            raise ConfigError(
                f"--profile needs at least {WAIT + ACTIVE} steps, got {left} that are left. Raise "
                "--train.steps, or give another --out."
            )
        recorder.start()

    return on_step
