"""Predict the time of head and loss, and of a training step on GPUs.

python benchmarks/roofline.py            # tables; about two minutes, no GPU needed
python benchmarks/roofline.py --json     # ends with one JSON object: ratio_hybrid, steps, ...

Every part is bounded by matrix products, memory traffic, special functions or instruction issue. A
part takes the longest of its bounds, divided by an efficiency. Nothing here was measured on a GPU:
`benchmarks/gpu.py` does that. Instructions of a logit are counted in the compiled kernels if Triton
is installed (compiled_kernels.py).
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from importlib.util import find_spec
from typing import NamedTuple, cast

from script import IS_QUICK, parser_of
from torch import nn

from gidd.diffusion.loss import CHUNK_TOKENS_OF_KERNELS, HEAD_ROWS
from gidd.models import DiTConfig
from gidd.planning import DEVICES, plan_run
from gidd.planning.run_plan import vocab_size_of
from gidd.runs.presets import PRESETS
from gidd.training.build import build_step
from gidd.training.config import RunConfig
from gidd.training.parallel import FSDP
from gidd.training.reporting.speed import training_flops_per_token
from gidd.vocab import Vocab


class Chip(NamedTuple):
    """What the data sheets in `gidd.planning` do not say."""

    target: str
    """Of the compiler."""

    bandwidth: float
    """Bytes per second of device memory."""

    multiprocessors: int
    clock: float
    special: int
    """Special functions per clock of a multiprocessor."""

    lanes: int
    """Other instructions per clock of a multiprocessor, times 32 threads of a warp."""

    def seconds(self, bytes_moved: float, cost: Cost) -> float:
        """Return the longest of the bounds of a kernel: memory, special functions, instructions."""
        rate = self.multiprocessors * self.clock
        special, issue = cost.special / self.special, cost.instructions / self.lanes
        return max(bytes_moved / self.bandwidth, special / rate, issue / rate)


class Cost(NamedTuple):
    """What the compiled code does for a logit."""

    instructions: float
    special: float


CHIPS = {
    # half of the lanes of an A100 compute in float32
    "a100-80gb": Chip("sm_80", 2.04e12, 108, 1.41e9, special=16, lanes=64),
    "h100": Chip("sm_90", 3.35e12, 132, 1.755e9, special=16, lanes=128),
    "b200": Chip("sm_100", 8.0e12, 148, 1.85e9, special=16, lanes=128),
}
"""Clocks are what the chips sustain, somewhat below their maximum."""

COUNTED = {
    "hybrid": {"sm_80": Cost(27.6, 4.28), "sm_90": Cost(27.5, 4.28), "sm_100": Cost(22.6, 4.28)},
    "masked": {"sm_80": Cost(11.7, 2.03), "sm_90": Cost(11.7, 2.03), "sm_100": Cost(10.7, 2.03)},
    "any": {"sm_80": Cost(51.2, 6.03), "sm_90": Cost(51.0, 6.03), "sm_100": Cost(42.3, 6.03)},
    "clean": {"sm_80": Cost(11.8, 2.03), "sm_90": Cost(11.8, 2.03), "sm_100": Cost(10.8, 2.03)},
}
"""As counted with Triton 3.9, for machines without it."""

# printed as `ASSUMPTIONS`
PRODUCTS, ATTENTION, KERNELS, STREAMING = 0.65, 0.4, 0.6, 0.8
FORWARD_BYTES, BACKWARD_BYTES = 66, 132
UPDATE_BYTES, EMA_BYTES = 32, 12

ASSUMPTIONS = (
    f"bf16 matrix products reach {PRODUCTS:.0%} of the peak and attention {ATTENTION:.0%}, the "
    f"kernel of the loss {KERNELS:.0%} of their tightest bound, other kernels "
    f"{STREAMING:.0%} of the memory's.",
    "The loss moves 4 bytes per bf16 logit, read and written once, if its later passes find the "
    "row in the L2 cache; otherwise 8, without noise 6. The gradient of the bias reads 2 more.",
    f"The head's gradient is summed in float32 over chunks of {CHUNK_TOKENS_OF_KERNELS} tokens.",
    "Fused linear cross-entropy is the same kernel without noise, on a head without a bias.",
    f"Compiled blocks move {FORWARD_BYTES} D bytes per token and layer forward and "
    f"{BACKWARD_BYTES} D backward (norms, rotation, attention, GELU, residuals; counted by hand). "
    "Activations are recomputed where the preset does so.",
    f"The update moves {UPDATE_BYTES} bytes per parameter (AdamW, gradient norm), {EMA_BYTES} "
    "more with an EMA.",
    "Kernel launches and communication are hidden behind computation: a step takes the longer of "
    "computation and communication.",
)


def counted_costs() -> Mapping[str, Mapping[str, Cost]]:
    """Return the costs of a logit by kernel and target, from the compiled code if possible."""
    if IS_QUICK or find_spec("triton") is None:
        return COUNTED
    import compiled_kernels as kernels

    cases = {noise: kernels.loss_case(noise, "bf16") for noise in COUNTED}
    targets = [chip.target for chip in CHIPS.values()]
    return {
        name: {
            target: Cost(*kernels.cost(case, kernels.compiled(case, target))) for target in targets
        }
        for name, case in cases.items()
    }


class HeadTimes(NamedTuple):
    """Seconds of head and loss for a logit, forward and backward."""

    products: float
    loss: float
    bias: float
    accumulation: float

    @property
    def total(self) -> float:
        """Return their sum."""
        return sum(self)


def head_times(device: str, width: int, cost: Cost, bytes_moved: int, has_bias: bool) -> HeadTimes:
    """Return the times of head and loss with a kernel."""
    chip = CHIPS[device]
    streamed = chip.bandwidth * STREAMING
    return HeadTimes(
        products=6 * width / (DEVICES[device].flops * PRODUCTS),
        loss=chip.seconds(bytes_moved, cost) / KERNELS,
        bias=2 / streamed if has_bias else 0.0,
        accumulation=8 * width / CHUNK_TOKENS_OF_KERNELS / streamed,
    )


def head_table(costs: Mapping[str, Mapping[str, Cost]]) -> dict[str, dict[str, float]]:
    """Print head and loss beside fused linear cross-entropy, and return the ratios."""
    parts = " | ".join(HeadTimes._fields)
    print(f"| device, D | noise | {parts} | total, ps | ratio | ratio without L2 |")
    print("| --- |" + " --- |" * 8)
    ratios: dict[str, dict[str, float]] = {}
    sizes = sorted({_config(PRESETS[name]).width for name in STEPS})
    for device, width in [(name, 768) for name in CHIPS] + [("h100", size) for size in sizes[1:]]:
        target = CHIPS[device].target
        plain = head_times(device, width, costs["clean"][target], 4, has_bias=False)
        missed = head_times(device, width, costs["clean"][target], 6, has_bias=False)
        for noise in ("hybrid", "masked", "any"):
            # a row of noise is read twice from L2: the tokens of a sample share it
            times = head_times(device, width, costs[noise][target], 4, has_bias=True)
            reread = 8 if noise != "masked" else 6
            slow = head_times(device, width, costs[noise][target], reread, has_bias=True)
            ratio, without = times.total / plain.total, slow.total / missed.total
            ratios.setdefault(f"{device}, {width}", {})[noise] = ratio
            picoseconds = " | ".join(f"{1e12 * part:.2f}" for part in times)
            print(
                f"| {device}, {width} | {noise} | {picoseconds} | {1e12 * times.total:.2f} | "
                f"{ratio:.2f} | {without:.2f} |"
            )
    return ratios


STEPS = {"small-gidd-plus-0.1": 8, "base-gidd-plus-0.1": 8, "10b": 1024}
"""Presets and numbers of devices."""


def step_seconds(name: str, ranks: int, device: str, cost: Cost) -> dict[str, float]:
    """Return the seconds of the parts of a training step on every device, its sum and MFU."""
    run, chip, sheet = PRESETS[name], CHIPS[device], DEVICES[device]
    config, network, plan = _config(run), _network(run), plan_run(run, ranks, sheet)
    tokens = plan.rank_batch.samples * run.data.length
    head = cast(nn.Linear, network.head).weight.numel()
    attention = 12 * config.num_layers * config.width * run.data.length
    per_token = training_flops_per_token(network, run.data.length)
    recomputes = bool(run.backbone.options.get("checkpoint_activations"))
    again = 4 / 3 if recomputes else 1.0
    moved = BACKWARD_BYTES + FORWARD_BYTES * (2 if recomputes else 1)
    columns = -(-_vocab(run).size // HEAD_ROWS) * HEAD_ROWS
    updated = UPDATE_BYTES + (EMA_BYTES if run.train.ema_decay is not None else 0)
    streamed = chip.bandwidth * STREAMING
    shards = ranks if isinstance(run.parallel, FSDP) else 1
    parts = {
        "products": again * (per_token - 6 * head - attention) * tokens / (sheet.flops * PRODUCTS),
        "attention": again * attention * tokens / (sheet.flops * ATTENTION),
        "elementwise": moved * config.width * config.num_layers * tokens / streamed,
        "head and loss": columns * tokens * head_times(device, config.width, cost, 4, True).total,
        "update": updated * plan.num_parameters / shards / streamed,
    }
    computing = sum(parts.values())
    communicating = 0.0 if plan.traffic is None else plan.traffic["seconds"]
    step = max(computing, communicating)
    limits = {"communication": communicating, "step": step}
    return parts | limits | {"mfu": per_token * tokens / (step * sheet.flops)}


def table(rows: Mapping[str, Mapping[str, float]]) -> None:
    """Print times in milliseconds, fractions in percent."""
    names = list(next(iter(rows.values())))
    print("| ms | " + " | ".join(names) + " |")
    print("| --- |" + " --- |" * len(names))
    for row, values in rows.items():
        cells = [
            f"{value:.1%}" if name == "mfu" else f"{1000 * value:.2f}"
            for name, value in values.items()
        ]
        print(f"| {row} | " + " | ".join(cells) + " |")


def _vocab(run: RunConfig) -> Vocab:
    size = vocab_size_of(run)
    return Vocab(size, mask_id=size - 1)


def _network(run: RunConfig) -> nn.Module:
    return build_step(run, _vocab(run)).model.network


def _config(run: RunConfig) -> DiTConfig:
    config = _network(run).config
    assert isinstance(config, DiTConfig)
    return config


def main() -> None:
    """Predict and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--device", choices=[*CHIPS], default="h100", help="of the steps")
    options = parser.parse_args()
    device = options.device
    costs = counted_costs()
    target = CHIPS[device].target
    print("Assumptions:")
    for sentence in ASSUMPTIONS:
        print(textwrap.fill(f"- {sentence}", 98, subsequent_indent="  "))
    print("\n| device | TFLOP/s | TB/s | multiprocessors | GHz | special/clock | lanes/clock |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, chip in CHIPS.items():
        print(
            f"| {name} | {DEVICES[name].flops / 1e12:.0f} | {chip.bandwidth / 1e12:.2f} | "
            f"{chip.multiprocessors} | {chip.clock / 1e9:.2f} | {chip.special} | {chip.lanes} |"
        )
    print("\n| kernel | target | instructions a logit | special functions a logit |")
    print("| --- | --- | --- | --- |")
    for kernel, by_target in costs.items():
        for name, cost in by_target.items():
            print(f"| {kernel} | {name} | {cost.instructions:.1f} | {cost.special:.2f} |")
    print("\nHead and loss, forward and backward, over fused linear cross-entropy:")
    ratios = head_table(costs)
    print(f"\nTraining step on {device}:")
    steps = {
        f"{name}, {ranks} devices": step_seconds(name, ranks, device, costs["hybrid"][target])
        for name, ranks in STEPS.items()
    }
    table(steps)
    if options.json:
        figures = {f"ratio_{noise}": ratio for noise, ratio in ratios["h100, 768"].items()}
        details = {"ratios": ratios, "steps": steps, "costs": costs}
        print(json.dumps(figures | details))


if __name__ == "__main__":
    main()
