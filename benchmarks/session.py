"""Cost of a session: shared forward passes, admission, overhead of a step, memory.

python benchmarks/session.py            # a table; about five minutes on one core
python benchmarks/session.py --json     # print a JSON object at the end

Forward passes over the ideal number, for four requests of 8 steps in a session of 4 rows that
differ in nothing (`equal_requests`), in `temperatures`, in `lengths` or in `mixed_steps`.
`admission_ms` is the median time to make and submit a request with GPT-2's vocabulary: 512 tokens,
128 steps, a ban. `step_overhead` is the time of a session's step of 16 rows of `tiny` over that of
the bare network: the features of the batch, and the head at as many positions as the step reads;
medians, in alternation. `memory_mb` is what the process grew by from request 1,000 to the last of
`--requests`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import statistics
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil
import torch
from script import parser_of, size
from torch import Tensor

from gidd.diffusion.schedules import HybridSchedule, MaskedSchedule
from gidd.diffusion.times import even_times
from gidd.models import SIZES, Denoiser, DiT, DiTConfig
from gidd.pipeline import SamplingOptions
from gidd.sampling import (
    Confidence,
    DenoisingNetwork,
    Greedy,
    Request,
    Sample,
    Session,
    Step,
    Temperature,
    Threshold,
    ancestral,
    ban,
    blanks,
    sampling_plan,
)
from gidd.vocab import Vocab

VOCAB = Vocab(size(50258, 300), mask_id=size(50257, 299))
SMALL = Vocab(257, mask_id=256)
LENGTH, NUM_STEPS, ROWS = size((512, 128, 16), (128, 4, 2))
IDEAL = 8
FIRST = size(1000, 20)
"""Request from which on memory is measured."""
END = VOCAB.size - 2
"""End-of-text."""
MIXED: tuple[Step, ...] = (ancestral, Confidence(), Greedy(), Threshold(fill=1.0))


@dataclass
class Counting:
    """A network that counts its forward passes, and the positions its head is computed at."""

    network: Denoiser
    forward_passes: int = 0
    positions: int = 0
    accepts_padding = True

    def hidden(self, z: Tensor, t: Tensor, valid: Tensor | None = None) -> Tensor:
        """Compute features."""
        self.forward_passes += 1
        return self.network.hidden(z, t, valid)

    def distribution(self, hidden: Tensor) -> Tensor:
        """Compute x_theta."""
        self.positions += len(hidden)
        return self.network.distribution(hidden)


def denoiser(config: DiTConfig, vocab: Vocab) -> Denoiser:
    """Make a network with random weights, also where the initial weights are zero."""
    torch.manual_seed(0)
    made = Denoiser(DiT(config), vocab).eval().requires_grad_(False)
    for parameter in made.parameters():
        parameter.normal_(0, 0.02)
    return made


def passes(network: Denoiser, requests: list[Request]) -> float:
    """Return the forward passes of some requests over the ideal number."""
    counting = Counting(network)
    session = Session(
        counting, MaskedSchedule(SMALL), batch_size=4, pad_to_multiple_of=64, max_length=64
    )
    session.sample(requests)
    return counting.forward_passes / IDEAL


def shared_passes() -> dict[str, float]:
    """Measure how forward passes are shared."""
    config = DiTConfig(vocab_size=SMALL.size, max_length=64, width=64, num_layers=2, num_heads=2)
    network, times = denoiser(config, SMALL), even_times(IDEAL)

    def requests(**fields: list[Any]) -> list[Request]:
        made: list[Request] = []
        for i in range(4):
            options = {name: values[i] for name, values in fields.items()}
            step, length = options.pop("step", Threshold(fill=1.0)), options.pop("length", 64)
            plan = sampling_plan(times, step)
            made.append(Request(tokens=blanks(length), plan=plan, sample_index=i, **options))
        return made

    temperatures = [(Temperature(value),) for value in (0.5, 0.7, 0.9, 1.1)]
    return {
        "equal_requests": passes(network, requests()),
        "temperatures": passes(network, requests(processors=temperatures)),
        "lengths": passes(network, requests(length=[24, 40, 57, 64])),
        "mixed_steps": passes(network, requests(step=list(MIXED))),
    }


def admission(network: DenoisingNetwork, repeats: int = size(200, 4)) -> float:
    """Return the median time to make and submit a request, in milliseconds."""
    session = Session(
        network,
        HybridSchedule(VOCAB, 0.2),
        batch_size=ROWS,
        pad_to_multiple_of=64,
        max_length=LENGTH,
    )
    options, times = SamplingOptions(temperature=0.8), list[float]()
    waiting: list[Coroutine[Any, Any, Sample]] = []

    async def submit() -> None:
        for i in range(repeats):
            start = time.perf_counter()
            processors = (ban(VOCAB, {END}), *options.processors())
            request = Request(
                tokens=blanks(LENGTH - i % 64),
                plan=options.plan(),
                sample_index=i,
                processors=processors,
                stop=(END,),
            )
            waiting.append(session.run(request))
            waiting[-1].send(None)  # to where it waits; the thread of the session does not begin
            times.append(1000 * (time.perf_counter() - start))
        for coroutine in waiting:
            coroutine.close()

    asyncio.run(submit())
    return statistics.median(times)


@torch.no_grad()
def step_overhead(network: Denoiser, num_steps: int) -> float:
    """Return the time of a step of 16 rows over that of the bare network."""
    counting = Counting(network)
    session = Session(counting, HybridSchedule(VOCAB, 0.2), batch_size=ROWS, pad_to_multiple_of=64)
    plan = sampling_plan(even_times(NUM_STEPS))
    requests = [Request(tokens=blanks(LENGTH), plan=plan, sample_index=i) for i in range(ROWS)]
    z, t = torch.zeros(ROWS, LENGTH, dtype=torch.int64), torch.full((ROWS,), 0.5)
    steps, bare = list[float](), list[float]()
    end = 0.0

    def alternate(_: object) -> None:
        """Time the step before this call, from the end of the last one, and a bare pass."""
        nonlocal end
        start = time.perf_counter()
        steps.append(start - end)
        features = network.hidden(z, t).flatten(0, 1)
        network.distribution(features[: counting.positions])
        bare.append(time.perf_counter() - start)
        if len(bare) > num_steps:
            raise TimeoutError
        counting.positions, end = 0, time.perf_counter()

    with suppress(TimeoutError):
        session.sample(requests, on_step=alternate)
    return statistics.median(steps[1:]) / statistics.median(bare[1:])


def memory(num_requests: int) -> float:
    """Return how much the process grows from request 1,000 to the last, in MB."""
    config = DiTConfig(vocab_size=SMALL.size, max_length=32, width=32, num_layers=1, num_heads=2)
    schedule = HybridSchedule(SMALL, 0.2)
    session = Session(
        denoiser(config, SMALL), schedule, batch_size=16, pad_to_multiple_of=8, max_length=32
    )
    plan, process, first = sampling_plan(even_times(2)), psutil.Process(), 0
    for start in range(0, num_requests, 64):
        indices = range(start, min(start + 64, num_requests))
        session.sample(
            [Request(tokens=blanks(1 + i % 32), plan=plan, sample_index=i) for i in indices]
        )
        if FIRST in indices:
            gc.collect()
            first = process.memory_info().rss
    gc.collect()
    return (process.memory_info().rss - first) / 2**20


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--steps", type=int, default=size(7, 2), help="steps of tiny to time")
    parser.add_argument(
        "--requests", type=int, default=size(10_000, 100), help="requests of the memory test"
    )
    options = parser.parse_args()
    results = shared_passes()
    tiny = denoiser(SIZES[size("tiny", "nano")](VOCAB.size, LENGTH), VOCAB)
    results["admission_ms"] = admission(tiny)
    results["step_overhead"] = step_overhead(tiny, options.steps)
    results["memory_mb"] = memory(options.requests)
    print("| | |\n|---|---|")
    for name, value in results.items():
        print(f"| {name} | {value:.3f} |")
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
