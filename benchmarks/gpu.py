"""What the first person with a GPU runs: are the kernels right, does the host wait, how fast is it?

python benchmarks/gpu.py                        # about five minutes; ends with a line to paste
python benchmarks/gpu.py --json                 # that line only: one JSON object
python benchmarks/gpu.py --preset base --samples 16
python benchmarks/gpu.py --device cpu --quick   # tests this script on a machine without a GPU

1. Kernels against their definitions on the device, with V = 50,258 (gpu_checks.py).
2. Lines of a training step and of a sampling step in which the host waits for the device
   (gpu_measure.py).
3. Times, MFU, samples per second and kernel launches beside their predictions. Times are medians of
   CUDA events, of repeats that alternate after a warm-up (gpu_training.py, gpu_sampling.py).

A part that fails is reported, and the others go on. Exit status: 0 if all checks pass, 1 if one
does not, 2 without a GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from functools import partial
from importlib.util import find_spec

import torch
from gpu_checks import kernel_checks
from gpu_measure import Settings
from gpu_predictions import predictions, sheet_of
from gpu_report import VERDICTS, Report, environment
from gpu_sampling import sampling_launches, sampling_times
from gpu_training import StepFigures, head_seconds, step_figures, training_waits

from gidd.common.devices import has_bf16
from gidd.planning import Device
from gidd.planning.run_plan import vocab_size_of
from gidd.runs.presets import PRESETS
from gidd.training.build import build_step, with_precision
from gidd.training.config import RunConfig
from gidd.training.parallel import DDP
from gidd.training.reporting.speed import matmul_rate, training_flops_per_token
from gidd.training.world import open_world
from gidd.vocab import Vocab

GPT2_SIZE = 50_258
QUICK_SIZE = 1024
NO_GPU = """\
This benchmark measures a GPU with CUDA, and {missing}.
On a machine with one, install torch for CUDA and Triton:
    pip install 'gidd[gpu]'
To try the script itself on this machine:
    python benchmarks/gpu.py --device cpu --quick
"""


def measure(report: Report, settings: Settings, sheet: Device, check_size: int) -> None:
    """Run all parts."""
    attempt = report.attempt
    report.title("Kernels against their definitions", "check", "error", "bound", "")
    attempt("kernels", lambda: _kernels(report, settings.device, check_size))
    attempt("training", lambda: _training(report, settings, sheet))
    attempt("sampling", lambda: _sampling(report, settings))


def _kernels(report: Report, device: torch.device, size: int) -> None:
    num_rows = 16 if size == QUICK_SIZE else 64
    for name, check in kernel_checks(Vocab(size, mask_id=size - 1), device, num_rows):
        report.check(name, check)


def _training(report: Report, settings: Settings, sheet: Device) -> None:
    """Find the waits of training, and time head and loss, the step, and its parts."""
    predict = partial(predictions, settings, sheet)
    with open_world(settings.device.type) as world:
        report.title("Waits of the host in training", "work", "allowed", "lines", "")
        waits = report.attempt("waits of training", partial(training_waits, settings, world))
        for name, measured in (waits or {}).items():
            report.waits(name, measured)
        # the plan traces a step in a process of its own
        report.predicted = report.attempt("predictions", predict) or {}
        report.title("Training", "figure", "measured", "predicted", "ratio")
        if settings.device.type == "cuda":
            rate = matmul_rate(settings.device, torch.bfloat16)
            report.figure("product of bf16 matrices, TFLOP/s", rate / 1e12)
        head = report.attempt("head and loss", partial(head_seconds, settings)) or {}
        for name, seconds in head.items():
            report.figure(f"head and loss, {name}, ms", 1000 * seconds)
        for name in ("cross-entropy", "liger"):
            if name in head:
                report.figure(f"head and loss, hybrid / {name}", head["hybrid"] / head[name])
        figures = report.attempt("training step", partial(step_figures, settings, world))
    if figures is not None:
        _steps(report, settings, sheet, figures)


def _steps(report: Report, settings: Settings, sheet: Device, figures: StepFigures) -> None:
    for name, seconds in figures.seconds.items():
        report.figure(f"{name}, ms", 1000 * seconds)
    network = build_step(settings.run, settings.vocab).model.network
    flops = settings.tokens * training_flops_per_token(network, settings.length)
    peak = sheet.flops if settings.run.train.autocast else sheet.float32_flops
    for name, launches in figures.launches.items():
        seconds = figures.seconds[f"step, {name}"]
        report.figure(f"tokens per second, {name}", settings.tokens / seconds)
        report.figure(f"MFU, {name}", flops / seconds / peak)
        report.figure(f"launches of a step, {name}", launches)
    memory = figures.peak_bytes
    report.figure("peak memory of a step, GB", None if memory is None else memory / 1e9)


def _sampling(report: Report, settings: Settings) -> None:
    """Count the launches of a step, and time steps and corrections in each precision."""
    report.title("Sampling", "figure", "measured", "predicted", "ratio")
    launches = report.attempt("launches of sampling", partial(sampling_launches, settings))
    report.figure("launches of an ancestral step", launches)
    for precision in settings.precisions:
        work = partial(sampling_times, settings, precision)
        times = report.attempt(f"sampling in {precision}", work)
        if times is not None:
            report.figure(f"ancestral step, {precision}, ms", 1000 * times.step)
            report.figure(f"samples per second, {precision}", times.samples_per_second)
            report.figure(f"self-correction call, {precision}, ms", 1000 * times.correction)


def parse() -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
    parser.add_argument("--preset", help="preset, or size: small (default), base, 1b ...")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--samples", type=int, help="samples per training step (default: 8)")
    parser.add_argument("--rounds", type=int, help="repeats to take medians of (default: 20)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to try the script")
    options = parser.parse_args()
    options.preset = options.preset or ("nano" if options.quick else "small")
    run = preset(options.preset)
    if run is None:
        parser.error(f"--preset must be one of {', '.join(PRESETS)}, got {options.preset}.")
    return options


def preset(name: str) -> RunConfig | None:
    """Return a preset by its name, or by its size."""
    return PRESETS.get(name) or PRESETS.get(f"{name}-gidd-plus-0.1")


def settings_of(options: argparse.Namespace, run: RunConfig) -> Settings:
    """Return what to measure."""
    quick = options.quick
    samples = options.samples or (2 if quick else 8)
    size, train = vocab_size_of(run), replace(run.train, global_batch=samples, accumulate=1)
    device = torch.device("cuda:0" if options.device == "cuda" else "cpu")
    run = with_precision(run, has_bf16(device))
    return Settings(
        device=device,
        run=replace(run, train=train, parallel=DDP()),  # one device: nothing to shard
        vocab=Vocab(size, mask_id=size - 1),
        rows=2 if quick else 16,
        num_steps=4 if quick else 128,
        num_corrections=2 if quick else 8,
        rounds=options.rounds or (1 if quick else 20),
    )


def missing_part(device: str) -> str | None:
    """Say what a GPU is missing, if anything."""
    if device != "cuda":
        return None
    if not torch.cuda.is_available():
        return "torch finds none" if torch.version.cuda else "this torch is built without CUDA"
    return None if find_spec("triton") else "Triton, which compiles the kernels, is not installed"


def main() -> None:
    """Measure and print."""
    options = parse()
    if missing := missing_part(options.device):
        print(NO_GPU.format(missing=missing), file=sys.stderr, end="")
        sys.exit(2)
    run = preset(options.preset)
    assert run is not None, "parse() has checked it"
    settings, report = settings_of(options, run), Report(quiet=options.json)
    described = environment(settings.device)
    sheet = sheet_of(settings.device, described["device"])
    chosen = {"preset": options.preset, "quick": options.quick, "vocabulary": settings.vocab.size}
    chosen |= {"samples": settings.samples, "length": settings.length, "rows": settings.rows}
    chosen |= {"steps": settings.num_steps, "sheet": sheet.name, "peak": sheet.flops}
    report.results = {"environment": described, "settings": chosen} | report.results
    for name, value in (described | chosen).items():
        report.say(f"{name}: {value}")
    is_trial = options.quick and options.device == "cpu"
    measure(report, settings, sheet, QUICK_SIZE if is_trial else GPT2_SIZE)
    report.results["passed"] = report.passed
    report.say(f"\n{VERDICTS[report.passed]}. Paste this line into an issue:\n")
    print(json.dumps(report.results))
    sys.exit(0 if report.passed else 1)


if __name__ == "__main__":
    main()
