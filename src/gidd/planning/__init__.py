"""Estimate what a run needs on hardware that is not at hand: the library behind `gidd plan`.

Read in this order: `run_plan` (the estimate and its parts), `hardware` (data sheets),
`assumptions` (everything else that enters), `step_trace`, `memory` and `launches` (one training
step on fake tensors and fake ranks), `cluster` (time of its collectives, checkpoints and failures).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gidd.common.lazy import lazy_exports

if TYPE_CHECKING:
    from gidd.planning.assumptions import Assumptions
    from gidd.planning.hardware import DEVICES, Device, named_device
    from gidd.planning.run_plan import RunPlan, plan_run

__all__ = ["DEVICES", "Assumptions", "Device", "RunPlan", "named_device", "plan_run"]

__getattr__, __dir__ = lazy_exports(__name__)
