"""Head and loss: fused GIDD loss against cross-entropy, forward and backward, time and memory.

python benchmarks/loss.py            # a table; about four minutes on two cores
python benchmarks/loss.py --json     # ends with one JSON object: ratio_float32, ...

Times are medians of rounds in which the losses alternate in one process. The baseline is the faster
of `F.linear_cross_entropy` (chunked, where torch has it) and linear + `F.cross_entropy`. Memory is
the peak resident size minus inputs and gradients, in units of one float32 [tokens, V] tensor,
measured in a separate process (Linux).
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import time
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from script import parser_of, size
from torch import Tensor, nn

from gidd.common.devices import has_bf16
from gidd.diffusion.loss import fused_loss
from gidd.diffusion.process import noise
from gidd.diffusion.randomness import Stream, random_integers
from gidd.diffusion.schedule import MixingSchedule
from gidd.diffusion.schedules import HybridSchedule, MaskedSchedule
from gidd.diffusion.weighting import DynamicWeighting
from gidd.vocab import Vocab

BATCH, LENGTH, WIDTH = size((8, 512, 768), (2, 16, 32))
VOCAB = Vocab(size(50258, 300), mask_id=size(50257, 299))


class Problem:
    """Hidden states, a head and noisy tokens: 4,096 tokens, V = 50,258, d = 768."""

    def __init__(self, schedule: MixingSchedule, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(0)
        self.schedule = schedule
        self.hidden = torch.empty(BATCH, LENGTH, WIDTH, dtype=dtype).normal_(generator=generator)
        self.weight = torch.empty(VOCAB.size, WIDTH, dtype=dtype).normal_(
            0, 0.02, generator=generator
        )
        self.bias = torch.zeros(VOCAB.size, dtype=dtype)
        self.impossible = torch.zeros(VOCAB.size, dtype=torch.bool)
        self.impossible[VOCAB.mask_id] = True
        for tensor in (self.hidden, self.weight, self.bias):
            tensor.requires_grad_()
        self.x = torch.randint(VOCAB.size - 1, (BATCH, LENGTH), generator=generator)
        self.t = (torch.arange(BATCH) + 0.5) / BATCH
        u = random_integers(0, Stream.NOISE, 0, torch.arange(BATCH), torch.arange(LENGTH))
        self.z = noise(schedule, self.t, self.x, u)
        self.loss_weight = DynamicWeighting(schedule)(self.t, self.x, self.z) / self.x.numel()

    def fused(self) -> Tensor:
        """Return the GIDD loss."""
        bias = self.bias.masked_fill(self.impossible, -torch.inf)
        return fused_loss(
            self.schedule, self.t, self.x, self.z, self.hidden, self.weight, bias, self.loss_weight
        ).loss

    def cross_entropy(self) -> Tensor:
        """Return the cross-entropy of all logits at once."""
        logits = F.linear(self.hidden, self.weight, self.bias)
        return F.cross_entropy(logits.flatten(0, 1), self.x.flatten())

    def linear_cross_entropy(self) -> Tensor:
        """Return torch's chunked cross-entropy."""
        return F.linear_cross_entropy(
            self.hidden.flatten(0, 1),
            self.weight,
            self.x.flatten(),
            linear_bias=self.bias,
            options=nn.LinearCrossEntropyOptions(),
        )

    def run(self, loss: Callable[[], Tensor]) -> float:
        """Return the seconds of forward and backward."""
        start = time.perf_counter()
        loss().backward()
        seconds = time.perf_counter() - start
        self.hidden.grad = self.weight.grad = self.bias.grad = None
        return seconds


def medians(problem: Problem, losses: list[Callable[[], Tensor]], rounds: int) -> dict[str, float]:
    """Return the median seconds of each loss; the losses alternate, after one warm-up round."""
    seconds: dict[str, list[float]] = {loss.__name__: [] for loss in losses}
    for round_number in range(rounds + 1):
        for loss in losses:
            elapsed = problem.run(loss)
            if round_number:
                seconds[loss.__name__].append(elapsed)
    return {name: statistics.median(values) for name, values in seconds.items()}


def timing(schedule: MixingSchedule, dtype: torch.dtype, rounds: int) -> dict[str, float]:
    """Return the seconds of each loss and the ratio of the fused loss to the faster baseline."""
    problem = Problem(schedule, dtype)
    losses = [problem.fused, problem.cross_entropy]
    if dtype == torch.float32 and hasattr(F, "linear_cross_entropy"):
        losses.append(problem.linear_cross_entropy)  # in bf16 on CPU it is several times slower
    result = medians(problem, losses, rounds)
    baseline = min(value for name, value in result.items() if name != "fused")
    return result | {"ratio": result["fused"] / baseline}


def profile(problem: Problem) -> str:
    """Return the fraction of time per operator in one fused run, after one warm-up run."""
    problem.run(problem.fused)
    with torch.profiler.profile() as record:
        problem.run(problem.fused)
    events = [e for e in record.key_averages() if e.self_cpu_time_total > 0]
    events.sort(key=attrgetter("self_cpu_time_total"), reverse=True)
    total = sum(event.self_cpu_time_total for event in events)
    rows = [f"| {e.key} | {e.self_cpu_time_total / total:.1%} | {e.count} |" for e in events[:16]]
    return "\n".join(["| operator | fraction | calls |", "| --- | --- | --- |", *rows])


def _resident(field: str) -> int:
    """Return VmRSS (current) or VmHWM (peak) of this process in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"{field} is not in /proc/self/status; memory is measured on Linux only")


def _measure_memory(dtype: torch.dtype, name: str, results: multiprocessing.Queue[float]) -> None:
    problem = Problem(HybridSchedule(VOCAB, 0.1), dtype)
    loss = getattr(problem, name)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = _resident("VmRSS")
    loss().backward()
    gradients = (problem.hidden, problem.weight, problem.bias)
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in gradients)
    unit = BATCH * LENGTH * VOCAB.size * 4
    results.put((_resident("VmHWM") - before - num_bytes) / unit)


def memory(dtype: torch.dtype, name: str) -> float:
    """Return the peak minus inputs and gradients, in float32 [tokens, V] tensors."""
    context: Any = multiprocessing.get_context(size("spawn", "fork"))
    results: multiprocessing.Queue[float] = context.Queue()
    process = context.Process(target=_measure_memory, args=(dtype, name, results))
    process.start()
    process.join()
    return results.get()


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument(
        "--profile", action="store_true", help="print time per operator of one fused run"
    )
    parser.add_argument(
        "--rounds", type=int, default=size(5, 1), help="rounds after the warm-up (default: 5)"
    )
    options = parser.parse_args()
    hybrid, masked = HybridSchedule(VOCAB, 0.1), MaskedSchedule(VOCAB)
    fast = torch.bfloat16 if has_bf16(torch.device("cpu")) else torch.float32
    if options.profile:
        print(profile(Problem(hybrid, fast)))
        return
    cases = {"float32": timing(hybrid, torch.float32, options.rounds)}
    if fast == torch.bfloat16:
        cases["bf16"] = timing(hybrid, fast, options.rounds)
    cases["masked"] = timing(masked, fast, options.rounds)
    print("| case | fused, s | linear + cross-entropy, s | linear_cross_entropy, s | ratio |")
    print("| --- | --- | --- | --- | --- |")
    for name, case in cases.items():
        chunked = case.get("linear_cross_entropy")
        print(
            f"| {name} | {case['fused']:.2f} | {case['cross_entropy']:.2f} | "
            f"{'-' if chunked is None else f'{chunked:.2f}'} | {case['ratio']:.2f} |"
        )
    peaks = {name: memory(torch.float32, name) for name in ("fused", "cross_entropy")}
    print(f"\nPeak memory, float32 [tokens, V] tensors: {peaks}")
    if options.json:
        ratios = {f"ratio_{name}": case["ratio"] for name, case in cases.items()}
        details = {"seconds": cases, "memory": peaks}
        print(json.dumps(ratios | {"memory_ratio": peaks["fused"]} | details))


if __name__ == "__main__":
    main()
