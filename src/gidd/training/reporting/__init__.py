"""Metrics of a run: log file, terminal, trackers.

Reading order: `report` (what a run calls), `log` (metrics.jsonl), `console` (what a person sees),
`trackers` (TensorBoard, Weights & Biases, trackio), `speed` (tokens per second, MFU).
Names are imported on first use: `gidd plot` reads a log without importing torch.
"""

from typing import TYPE_CHECKING

from gidd.common.lazy import lazy_exports

if TYPE_CHECKING:
    from gidd.training.reporting.console import format_duration as format_duration
    from gidd.training.reporting.log import METRICS_FILE as METRICS_FILE, MetricsLog as MetricsLog
    from gidd.training.reporting.report import Report as Report
    from gidd.training.reporting.speed import (
        Speed as Speed,
        matmul_rate as matmul_rate,
        training_flops_per_token as training_flops_per_token,
    )
    from gidd.training.reporting.trackers import (
        Tracker as Tracker,
        default_trackers as default_trackers,
        tensorboard_tracker as tensorboard_tracker,
        trackio_tracker as trackio_tracker,
        wandb_tracker as wandb_tracker,
    )

__getattr__, __dir__ = lazy_exports(__name__)
