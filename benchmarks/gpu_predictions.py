"""What is predicted for the figures that `gpu.py` measures, from `gidd.planning`.

A time is that of FLOPs at the data sheet's peak and the assumed MFU of `gidd plan`.
"""

from __future__ import annotations

import re
from dataclasses import replace

import torch
from gpu_measure import Settings

from gidd.pipeline.precision import Precision
from gidd.planning import DEVICES, Assumptions, Device, plan_run
from gidd.training.build import build_step
from gidd.training.reporting.speed import matmul_rate, training_flops_per_token

_SHEETS = (
    (r"\bH100 80GB HBM3", "h100"),  # SXM5; PCIe and NVL have other peaks
    (r"\bH200\b", "h200"),
    (r"\bB200\b", "b200"),
    (r"\bA100\b.*\b40GB\b", "a100-40gb"),
    (r"\bA100\b", "a100-80gb"),
    (r"\bL4\b", "l4"),
    (r"\bRTX 4090\b", "rtx4090"),
)
"""Names that CUDA gives to devices, and their data sheets."""

_ASSUMED = Assumptions()


def sheet_of(device: torch.device, name: str) -> Device:
    """Return the data sheet of a GPU; of an unknown one, the measured rates of products.

    On a CPU it is that of an h100: the arithmetic runs, and its results mean nothing.
    """
    if device.type == "cpu":
        return DEVICES["h100"]
    for pattern, sheet in _SHEETS:
        if re.search(pattern, name):
            return DEVICES[sheet]
    return Device(
        name=f"measured, {name}",
        memory=float(torch.cuda.get_device_properties(device).total_memory),
        flops=matmul_rate(device, torch.bfloat16),
        float32_flops=matmul_rate(device, torch.float32),
        link=None,
    )


def predictions(settings: Settings, sheet: Device) -> dict[str, float]:
    """Return predicted values by the name of the figure."""
    network = build_step(settings.run, settings.vocab).model.network
    per_token = training_flops_per_token(network, settings.length)
    of_head = 6 * settings.vocab.size * settings.width
    at_assumed = 1000 / (_peak(settings, sheet) * _ASSUMED.mfu)  # ms per FLOP
    values = {
        "product of bf16 matrices, TFLOP/s": sheet.flops / 1e12,
        "head and loss, hybrid, ms": settings.tokens * of_head * at_assumed,
        "head and loss, cross-entropy, ms": settings.tokens * of_head * at_assumed,
    }
    for name, compiled in settings.modes.items():
        run = replace(settings.run, train=replace(settings.run.train, compile=compiled))
        plan = plan_run(run, 1, sheet, _ASSUMED, vocab_size=settings.vocab.size)
        values[f"step, {name}, ms"] = 1000 * plan.throughput["step_seconds"]
        values[f"body, {name}, ms"] = settings.tokens * (per_token - of_head) * at_assumed
        values[f"tokens per second, {name}"] = plan.throughput["tokens_per_second"]
        values[f"MFU, {name}"] = plan.throughput["mfu"]
        values["peak memory of a step, GB"] = plan.memory["peak"] / 1e9
    return values | _of_sampling(settings, sheet, per_token - of_head)


def _peak(settings: Settings, sheet: Device) -> float:
    return sheet.flops if settings.run.train.autocast else sheet.float32_flops


def _of_sampling(settings: Settings, sheet: Device, body_flops: float) -> dict[str, float]:
    """Predict sampling: a third of the training FLOPs, and the head at all tokens to correct."""
    values: dict[str, float] = {}
    tokens = settings.rows * settings.length
    # on NVIDIA GPUs TF32 has half the rate of bf16
    peaks: dict[Precision, float] = {"bf16": sheet.flops, "tf32": sheet.flops / 2}
    for precision in settings.precisions:
        peak = peaks.get(precision, sheet.float32_flops)
        step = 1000 * tokens * body_flops / 3 / (peak * _ASSUMED.mfu)
        # the head is in float32, except that products of bf16 numbers are not rounded
        of_head = sheet.flops if precision == "bf16" else sheet.float32_flops
        head = 2 * settings.vocab.size * settings.width * tokens / (of_head * _ASSUMED.mfu)
        values[f"ancestral step, {precision}, ms"] = step
        values[f"samples per second, {precision}"] = (
            1000 * settings.rows / (step * settings.num_steps)
        )
        values[f"self-correction call, {precision}, ms"] = step + 1000 * head
    return values
