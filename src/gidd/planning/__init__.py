"""Estimate what a run needs on hardware that is not at hand: the library behind `gidd plan`.

`run_plan` is the estimate, from `hardware` and `step_trace`: one step on fake tensors and ranks.
"""

from typing import TYPE_CHECKING

from gidd.common.lazy import lazy_exports

if TYPE_CHECKING:
    from gidd.planning.hardware import (
        DEVICES as DEVICES,
        Assumptions as Assumptions,
        Device as Device,
        named_device as named_device,
    )
    from gidd.planning.run_plan import RunPlan as RunPlan, plan_run as plan_run

__getattr__, __dir__ = lazy_exports(__name__)
