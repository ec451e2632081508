"""Cost of samplers relative to a bare forward pass: ancestral steps and self-correction.

python benchmarks/sampling.py                     # tables; about twenty minutes on two cores
python benchmarks/sampling.py --json              # print a JSON object at the end
python benchmarks/sampling.py --sizes tiny --batches 1 --dtype bf16
python benchmarks/sampling.py --profile           # operators of one ancestral step of `tiny`
python benchmarks/sampling.py --model models/nano # only self-correction, by a trained model

The models are `tiny` and `small` with V = 50,258 and L = 512, random weights. A bare forward pass
computes the logits of all positions. Steps are evenly spaced ones of 128-step sampling, on tokens
noised to that time; each is timed next to a bare forward pass of the same batch. A ratio is the
median over steps. The largest over sizes and batches is `step_ratio` (hybrid noise, p_u = 0.2) and,
over batches of `tiny`, `masked_ratio`.

`correct_speedup` compares Algorithm 1 as printed, one sequence and one token at a time, with the
batched corrector at k tokens per call, run until its self-accuracy is the same or better. The 16
sequences are random tokens or, for a trained model, samples of 32 steps.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from operator import attrgetter
from typing import NamedTuple, cast

import torch
from script import parser_of, size
from torch import Tensor

from gidd.diffusion.process import noise
from gidd.diffusion.randomness import Stream, random_integers
from gidd.diffusion.schedule import MixingSchedule
from gidd.diffusion.schedules import HybridSchedule, MaskedSchedule
from gidd.diffusion.times import even_times
from gidd.models import SIZES, Denoiser, DiT, load_pretrained
from gidd.sampling import (
    NetworkPredict,
    Plan,
    Request,
    SelfCorrectionStep,
    Session,
    blanks,
    corrector_plan,
    sample as make_all_steps,
    sampling_plan,
    start,
)
from gidd.vocab import Vocab

VOCAB = Vocab(size(50258, 300), mask_id=size(50257, 299))
LENGTH, NUM_STEPS = size((512, 128), (16, 24))
HYBRID, MASKED = HybridSchedule(VOCAB, 0.2), MaskedSchedule(VOCAB)
CORRECTED, CORRECTED_LENGTH = size((16, 128), (2, 16))


def model(name: str) -> Denoiser:
    """Make a model with random weights, also where the initial weights are zero.

    The head equals the embedding, so that the model predicts most tokens of a random sequence:
    there is something to keep and something to correct.
    """
    torch.manual_seed(0)
    denoiser = Denoiser(DiT(SIZES[name](VOCAB.size, LENGTH)), VOCAB).eval()
    with torch.no_grad():
        for key, parameter in denoiser.named_parameters():
            if "modulation" in key:
                parameter.normal_(0, 0.12)
        backbone = cast("DiT", denoiser.backbone)
        backbone.head.weight.copy_(4 * backbone.embedding.weight)
    return denoiser


def precision(dtype: str) -> AbstractContextManager[object]:
    """Return the autocast context: bf16, or none."""
    return torch.autocast("cpu", torch.bfloat16) if dtype == "bf16" else nullcontext()


def noisy_tokens(schedule: MixingSchedule, t: float, batch: int) -> Tensor:
    """Make random sequences, noised to time t."""
    x = torch.randint(VOCAB.size - 1, (batch, LENGTH), generator=torch.Generator().manual_seed(1))
    u = random_integers(0, Stream.NOISE, 0, torch.arange(batch), torch.arange(LENGTH))
    return noise(schedule, torch.full((batch,), t), x, u)


def requests_of(tokens: Tensor, plan: Plan) -> list[Request]:
    """Make requests that change any of the given tokens."""
    free = (False,) * tokens.shape[1]
    return [
        Request(tokens=tuple(row), plan=plan, sample_index=i, protected=free)
        for i, row in enumerate(tokens.tolist())
    ]


def sample(session: Session, requests: list[Request]) -> Tensor:
    """Sample requests of one length."""
    return torch.tensor([result.tokens for result in session.sample(requests)])


def seconds(run: Callable[[], object]) -> float:
    """Measure the wall time of a call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


class Ratio(NamedTuple):
    """Medians over steps: seconds of a bare forward pass, and step time / forward time."""

    bare: float
    ratio: float


@torch.no_grad()
def step_ratio(denoiser: Denoiser, schedule: MixingSchedule, batch: int, stride: int) -> Ratio:
    """Time steps 0, stride, 2 stride, ... of the plan, alternating with bare forward passes."""
    session, times = Session(denoiser, schedule), even_times(NUM_STEPS)
    backbone = cast("DiT", denoiser.backbone)
    bare: list[float] = []
    ratios: list[float] = []
    for step in range(0, NUM_STEPS, stride):
        t = float(times[step])
        tokens, noise_times = noisy_tokens(schedule, t, batch), torch.full((batch,), t)
        forward = partial(backbone, tokens, noise_times)
        if not bare:
            forward()  # warm-up
        bare.append(seconds(forward))
        requests = requests_of(tokens, sampling_plan(times[step : step + 2]))
        ratios.append(seconds(partial(sample, session, requests)) / bare[-1])
    return Ratio(statistics.median(bare), statistics.median(ratios))


class Correction(NamedTuple):
    """Seconds and mean self-accuracy of one way to correct the same sequences."""

    seconds: float
    self_accuracy: float


def correct(session: Session, tokens: Tensor, num_tokens: int, forward_passes: int) -> Correction:
    """Correct with `num_tokens` per call: one sequence at a time if that is 1, else all at once."""
    corrector = SelfCorrectionStep(temperature=0.1, num_tokens=num_tokens, distance=2)
    start = time.perf_counter()
    results: list[Tensor] = []
    for part in tokens.split(1 if num_tokens == 1 else len(tokens)):
        results.append(
            sample(session, requests_of(part, corrector_plan(corrector, forward_passes)))
        )
    elapsed = time.perf_counter() - start
    return Correction(elapsed, mean_self_accuracy(session, torch.cat(results)))


@torch.no_grad()
def mean_self_accuracy(session: Session, tokens: Tensor) -> float:
    """Compute the fraction of tokens that are the most likely ones."""
    network = session.network
    top = [
        network.distribution(network.hidden(z, torch.zeros(1))).argmax(-1) for z in tokens.split(1)
    ]
    return float((torch.cat(top) == tokens).double().mean())


def correct_speedup(
    session: Session, tokens: Tensor, num_tokens: int, forward_passes: int
) -> dict[str, float]:
    """Compare Algorithm 1 with the batched corrector at the calls it needs to match it."""
    literal = correct(session, tokens, 1, forward_passes)
    needed = 2  # the state after the last change is not scored, and so never returned
    while True:
        batched = correct(session, tokens, num_tokens, needed)
        if batched.self_accuracy >= literal.self_accuracy or needed >= forward_passes:
            return {
                "correct_speedup": literal.seconds / batched.seconds,
                "start_self_accuracy": mean_self_accuracy(session, tokens),
                "literal_self_accuracy": literal.self_accuracy,
                "batched_self_accuracy": batched.self_accuracy,
                "batched_calls": needed,
            }
        needed += 1


def random_sequences() -> Tensor:
    """Draw random tokens."""
    shape = (CORRECTED, CORRECTED_LENGTH)
    return torch.randint(VOCAB.size - 1, shape, generator=torch.Generator().manual_seed(2))


def trained_speedup(path: str, num_tokens: int, forward_passes: int) -> dict[str, float]:
    """Measure a trained model on its own samples of 32 steps."""
    loaded = load_pretrained(path)
    session = Session(loaded.denoiser.eval(), loaded.schedule)
    length = cast("DiT", loaded.denoiser.backbone).config.max_length
    plan = sampling_plan(even_times(32))
    requests = [Request(tokens=blanks(length), plan=plan, sample_index=i) for i in range(CORRECTED)]
    return correct_speedup(session, sample(session, requests), num_tokens, forward_passes)


@torch.no_grad()
def profile(denoiser: Denoiser) -> str:
    """Profile one ancestral step by operator, after a warm-up step."""
    plan = sampling_plan(torch.tensor([0.5, 0.5 - 1 / NUM_STEPS]))
    tokens = noisy_tokens(HYBRID, 0.5, 1)
    valid, zero = torch.ones_like(tokens, dtype=torch.bool), torch.zeros(1, dtype=torch.int64)
    state = start(HYBRID, tokens, ~valid, None, valid, zero, zero)

    def run() -> None:  # not in the thread of a session, which the profiler does not see
        make_all_steps(NetworkPredict(denoiser, VOCAB.size), HYBRID, state, plan)

    run()
    with torch.profiler.profile() as record:
        run()
    events = sorted(record.key_averages(), key=attrgetter("self_cpu_time_total"), reverse=True)
    total = sum(event.self_cpu_time_total for event in events)
    rows = [f"| {e.key} | {e.self_cpu_time_total / total:.1%} | {e.count} |" for e in events[:16]]
    return "\n".join(["| operator | fraction of time | calls |", "| --- | --- | --- |", *rows])


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument(
        "--sizes", nargs="+", default=size(["tiny", "small"], ["nano", "tiny"]), choices=list(SIZES)
    )
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bf16"])
    parser.add_argument(
        "--stride", type=int, default=size(8, 64), help="time every n-th of the 128 steps"
    )
    parser.add_argument(
        "--forward-passes", type=int, default=size(33, 3), help="maximum calls of Algorithm 1"
    )
    parser.add_argument("--tokens", type=int, default=16, help="tokens per call, batched corrector")
    parser.add_argument("--profile", action="store_true", help="profile one step of tiny")
    parser.add_argument("--model", help="trained model: measure only its self-correction")
    options = parser.parse_args()
    if options.model:
        print(json.dumps(trained_speedup(options.model, options.tokens, options.forward_passes)))
        return
    if options.profile:
        with precision(options.dtype):
            print(profile(model("tiny")))
        return
    steps: dict[str, float] = {}
    print(f"{options.dtype}, {torch.get_num_threads()} threads\n")
    print("| size | batch | noise | bare forward pass, s | step / bare |\n|---|---|---|---|---|")
    speedup: dict[str, float] = {}
    for network in options.sizes:
        denoiser = model(network)
        with precision(options.dtype):
            for batch in options.batches:
                for name, schedule in (("hybrid", HYBRID), ("masked", MASKED)):
                    timing = step_ratio(denoiser, schedule, batch, options.stride)
                    steps[f"{name}/{network}/{batch}"] = timing.ratio
                    print(
                        f"| {network} | {batch} | {name} | {timing.bare:.3f} | {timing.ratio:.3f} |"
                    )
            if network == options.sizes[0]:
                session = Session(denoiser, HYBRID)
                speedup = correct_speedup(
                    session, random_sequences(), options.tokens, options.forward_passes
                )
    print(f"\nSelf-correction: {speedup}")
    if options.json:
        hybrid = [ratio for name, ratio in steps.items() if name.startswith("hybrid")]
        first = f"masked/{options.sizes[0]}/"
        masked = [ratio for name, ratio in steps.items() if name.startswith(first)]
        ratios = {"step_ratio": max(hybrid), "masked_ratio": max(masked)}
        print(json.dumps(ratios | speedup | {"dtype": options.dtype, "ratios": steps}))


if __name__ == "__main__":
    main()
