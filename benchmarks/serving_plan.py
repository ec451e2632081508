"""Predict what a service needs: GPUs, latency, network and cost, for `small` and a 10B model.

python benchmarks/serving_plan.py            # tables with all assumptions; no GPU needed
python benchmarks/serving_plan.py --steps 32 --gpu-hour 1.2
python benchmarks/serving_plan.py --json     # ends with one JSON object

Nothing here was measured on a GPU. A forward pass takes the longest of its arithmetic, the reading
of the weights and the launches of its kernels, which are taken to be few (`STEP_LAUNCHES`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace

from roofline import CHIPS
from script import parser_of

from gidd.models.backbones.dit_config import SIZES, DiTConfig
from gidd.planning import DEVICES
from gidd.planning.hardware import Assumptions
from gidd.training.reporting.speed import transformer_flops_per_token

MODELS, RATES = ("small", "10b"), (1, 100, 10_000)
VOCABULARY, BLOCK, HOURS_OF_A_DAY = 50_258, 32, 24
BF16_BYTES, FRAMES_A_SECOND = 2, 25
STEP_LAUNCHES, LAYER_LAUNCHES, LAUNCH_SECONDS = 120, 26, 5e-6
"""Assumed kernels of a sampling step whose operations are fused, and of each layer."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Assumptions, each an option."""

    device: str = "h100"
    mfu: float = Assumptions.mfu  # of the peak, in a forward pass
    steps: int = 128  # forward passes of a request, as by default
    prompt: int = 256  # tokens
    tokens: int = 256  # new tokens of a request
    load: float = 0.7  # fraction of the time that GPUs are busy: queues stay short
    gpu_hour: float = 2.5  # dollars
    token_bytes: float = 4.5  # of text, in JSON
    request_bytes: float = 1500  # headers and other fields, both ways
    event_bytes: float = 500  # of an event of a stream, without its text
    proxy_rate: float = 400  # requests a second of one HTTP proxy process
    failures_per_device_hour: float = Assumptions.failures_per_device_hour

    @property
    def length(self) -> int:
        """Tokens of a sequence."""
        return self.prompt + self.tokens


def pass_flops(model: DiTConfig, read: int, length: int, new: int) -> float:
    """Return the FLOPs of a forward pass of `read` tokens that attend to `length` tokens.

    Of `new` of them the logits are computed.
    """
    head = model.width * model.vocab_size
    per_token = transformer_flops_per_token(model, length) / 3 - 2 * head
    return per_token * read + 2 * head * new


def arithmetic_seconds(setting: Setting, flops: float) -> float:
    """Return the time of FLOPs at the assumed utilisation."""
    return flops / (DEVICES[setting.device].flops * setting.mfu)


def least_seconds(model: DiTConfig, setting: Setting) -> float:
    """Return the least time of a forward pass: weights are read, kernels launched."""
    reading = BF16_BYTES * num_parameters(model) / CHIPS[setting.device].bandwidth
    return max(reading, (STEP_LAUNCHES + LAYER_LAUNCHES * model.num_layers) * LAUNCH_SECONDS)


def full_batch(model: DiTConfig, setting: Setting, flops: float) -> tuple[int, float]:
    """Return the smallest power of two at which arithmetic takes longest, and its seconds."""
    seconds = arithmetic_seconds(setting, flops)
    batch = 2 ** max(0, math.ceil(math.log2(least_seconds(model, setting) / seconds)))
    return batch, batch * seconds


def num_parameters(model: DiTConfig) -> int:
    """Return the number of parameters of blocks, embedding and head."""
    return model.num_block_parameters + 2 * model.width * model.vocab_size


def request(model: DiTConfig, setting: Setting) -> dict[str, float]:
    """Return what one request needs, the whole text at once."""
    flops = pass_flops(model, setting.length, setting.length, setting.tokens)
    batch, step = full_batch(model, setting, flops)
    busy = setting.steps * step / batch
    prompt, text = setting.token_bytes * setting.prompt, setting.token_bytes * setting.tokens
    frames = min(setting.steps, FRAMES_A_SECOND * setting.steps * step)
    return {
        "parameters, 1e9": num_parameters(model) / 1e9,
        "weights, GB": BF16_BYTES * num_parameters(model) / 1e9,
        "forward passes": setting.steps,
        "TFLOPs of a pass": flops / 1e12,
        "batch": batch,
        "ms of a pass of the batch": 1000 * step,
        "seconds": setting.steps * step,
        "GPU seconds": busy,
        "requests a second of a GPU": setting.load / busy,
        "kB": (setting.request_bytes + prompt + text) / 1000,
        "kB, diffusing": (setting.request_bytes + prompt + frames * (text + setting.event_bytes))
        / 1000,
    }


def service(model: DiTConfig, setting: Setting, rate: float) -> dict[str, float]:
    """Return what requests at some rate need."""
    needs = request(model, setting)
    gpus = math.ceil(rate * needs["GPU seconds"] / setting.load)
    return {
        "GPUs": gpus,
        "busy": rate * needs["GPU seconds"] / gpus,
        "open requests": rate * needs["seconds"],
        "HTTP proxies": math.ceil(rate / setting.proxy_rate),
        "MB/s": rate * needs["kB"] / 1000,
        "MB/s, diffusing": rate * needs["kB, diffusing"] / 1000,
        "failures a day": gpus * setting.failures_per_device_hour * HOURS_OF_A_DAY,
        "$ an hour": gpus * setting.gpu_hour,
        "$ per million tokens": gpus * setting.gpu_hour / 3600 / (rate * setting.tokens) * 1e6,
    }


def savings(model: DiTConfig, setting: Setting) -> dict[str, dict[str, float]]:
    """Return GPU seconds of a request, and its cost at full load, for other ways to sample."""
    blocks = math.ceil(setting.tokens / BLOCK)
    whole = pass_flops(model, setting.length, setting.length, setting.tokens)
    block = pass_flops(model, setting.length, setting.length, BLOCK)
    cached = pass_flops(model, BLOCK, setting.length, BLOCK)
    ways = {
        f"whole text, {setting.steps} steps": (setting.steps, whole),
        "whole text, 32 steps": (32, whole),
        "whole text, 16 steps": (16, whole),
        f"blocks of {BLOCK}, {setting.steps} steps each": (blocks * setting.steps, block),
        f"blocks of {BLOCK}, 16 steps each": (blocks * 16, block),
        f"blocks of {BLOCK}, 16 steps each, finished blocks cached": (blocks * 16, cached),
    }
    result: dict[str, dict[str, float]] = {}
    for name, (passes, flops) in ways.items():
        batch, step = full_batch(model, setting, flops)
        seconds, busy = passes * step, passes * step / batch
        cost = busy / setting.load * setting.gpu_hour / 3600 / setting.tokens * 1e6
        result[name] = {
            "forward passes": passes,
            "batch": batch,
            "seconds": seconds,
            "GPU seconds": busy,
            "$ per million tokens": cost,
        }
    return result


def cache_megabytes(model: DiTConfig, setting: Setting) -> float:
    """Return the size of the keys and values of a sequence."""
    return 2 * BF16_BYTES * model.num_layers * model.width * setting.length / 1e6


def table(title: str, rows: dict[str, dict[str, float]]) -> Iterable[str]:
    """Yield the lines of a table."""
    names = list(next(iter(rows.values())))
    yield f"| {title} | " + " | ".join(names) + " |"
    yield "|---|" + "---|" * len(names)
    for name, values in rows.items():
        yield f"| {name} | " + " | ".join(_rounded(value) for value in values.values()) + " |"


def _rounded(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def main() -> None:
    """Print all tables."""
    parser = parser_of(__doc__)
    for field in fields(Setting):
        name, default = field.name.replace("_", "-"), getattr(Setting, field.name)
        parser.add_argument(f"--{name}", type=type(default), default=default)
    arguments = vars(parser.parse_args())
    is_json, _ = arguments.pop("json"), arguments.pop("quick")
    setting = replace(Setting(), **arguments)
    models = {name: SIZES[name](VOCABULARY) for name in MODELS}
    requests = {name: request(model, setting) for name, model in models.items()}
    rates = {
        f"{name}, {rate:,} a second": service(model, setting, rate)
        for name, model in models.items()
        for rate in RATES
    }
    ways = {name: savings(model, setting) for name, model in models.items()}
    caches = {name: cache_megabytes(model, setting) for name, model in models.items()}
    print("assumptions: " + ", ".join(f"{name} {value}" for name, value in asdict(setting).items()))
    print("\n".join(("", *table("one request", requests), "", *table("requests", rates))))
    for name in MODELS:
        print("\n".join(("", *table(name, ways[name]))))
        print(f"\nkeys and values of a sequence of {name}: {caches[name]:.0f} MB")
    if is_json:
        result = {"assumptions": asdict(setting), "requests": requests, "services": rates}
        print(json.dumps(result | {"ways": ways, "cache_megabytes": caches}))


if __name__ == "__main__":
    main()
