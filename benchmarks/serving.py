"""Load on `gidd serve`, from another process: throughput, correctness, overload, idle time.

python benchmarks/serving.py                     # about eight minutes on two cores
python benchmarks/serving.py --json              # print a JSON object at the end
python benchmarks/serving.py --seconds 10        # shorter phases

The server runs `nano` with random weights and a vocabulary of 800 tokens, one thread, on the
first core; the client runs on the others. Requests are completions and infillings of 16 to 128
tokens with 8 to 32 steps.

- `throughput_ratio`: tokens through the network per second with 64 requests open, over those of a
  `Session` that has the same requests and no HTTP, on the same core. Its samples are compared with
  the answers (`wrong`); `unanswered` were accepted and got no answer.
- `short_ratio`: latency of a short request while 32 long ones are sampled, less one step of a long
  one, over its latency on an idle server.
- `overload_p99_ratio`: 99th percentile of the latency of accepted requests when three times as many
  arrive as the server can answer, over the one with 64 open.
- `idle_cpu`: CPU time of the server without requests, per second.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import psutil
import torch
from script import parser_of, size

import gidd
from gidd import models
from gidd.data import tokenizers
from gidd.diffusion.schedules import HybridSchedule
from gidd.errors import LimitReached
from gidd.models import SIZES, Denoiser, DiT
from gidd.pipeline import Pipeline, SamplingOptions
from gidd.pipeline.generate import build_requests
from gidd.sampling import Budget, Request, Sample, gather, parse_template, run_sync
from gidd.sampling.request import prompt as with_blanks

OPEN = size(64, 4)
CONTEXT = 256
IDLE = size(10.0, 0.1)
"""Seconds without requests."""
PROMPT = "The people of these states have a right to"
Json = dict[str, Any]


def write_model(folder: Path) -> Path:
    """Write `nano` with random weights and a tokenizer of bytes and random pairs."""
    words = (f"{a}{b}{c}{d}" for a in "bcdfgprst" for b in "aeiou" for c in "lmnr" for d in "aeo")
    tokenizer = tokenizers.train_tokenizer([" ".join(words), PROMPT], 800)
    vocab = tokenizer.vocab
    torch.manual_seed(0)
    denoiser = Denoiser(DiT(SIZES["nano"](vocab.size, CONTEXT)), vocab)
    with torch.no_grad():
        for parameter in denoiser.parameters():
            parameter.normal_(std=0.05)
    models.save(folder, denoiser, HybridSchedule(vocab, 0.2), {"steps": 0})
    tokenizer.save(folder)
    return folder


def random_body(index: int) -> Json:
    """Return the request with this index: a completion or an infilling."""
    rng = random.Random(index)
    settings = {
        "seed": index,
        "steps": rng.choice((8, 16, 32)),
        "temperature": rng.choice((0.7, 1.0)),
    }
    num_tokens = rng.choice((16, 32, 64, 128))
    if index % 4 == 0:
        return settings | {"text": f"{PROMPT}[MASK:{num_tokens}]."}
    return settings | {"prompt": PROMPT, "max_tokens": num_tokens}


def request_of(pipe: Pipeline, body: Json) -> Request:
    """Return what the session samples for a body."""
    options = SamplingOptions(steps=body["steps"], temperature=body["temperature"])
    if "text" in body:
        text = body["text"]
        tokens = parse_template(text, lambda text, _: pipe.decoder.encode(text, "text")).tokens
        ends: tuple[int, ...] = ()
    else:
        before = pipe.decoder.encode(body["prompt"], "prompt")
        tokens = with_blanks(len(before) + body["max_tokens"], before, [])
        ends = tuple(sorted(pipe.tokenizer.terminator_ids))
    return build_requests(pipe, tokens, ends, options, None, 1, body["seed"], 0)[0]


def path_of(body: Json) -> str:
    """Return the route of a body."""
    return "/v1/infill" if "text" in body else "/v1/completions"


@dataclass
class Answers:
    """What happened to requests."""

    texts: dict[int, str] = field(default_factory=lambda: {})
    """By the seed of the request."""

    latencies: list[float] = field(default_factory=lambda: [])
    refused: int = 0
    failed: int = 0
    seconds: float = 0.0

    @property
    def p99(self) -> float:
        """99th percentile of the latency of accepted requests."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]


async def send(client: httpx.AsyncClient, body: Json, answers: Answers) -> None:
    """Send a request, and record its answer."""
    start = time.perf_counter()
    try:
        response = await client.post(path_of(body), json=body)
    except httpx.HTTPError:
        answers.failed += 1
        return
    if response.status_code == 429:
        assert int(response.headers["retry-after"]) >= 1
        answers.refused += 1
    elif response.status_code != 200:
        answers.failed += 1
    else:
        answers.texts[body["seed"]] = response.json()["choices"][0]["text"]
        answers.latencies.append(time.perf_counter() - start)


async def keep_open(client: httpx.AsyncClient, seconds: float) -> Answers:
    """Keep 64 requests open for some time, and wait for the last of them."""
    answers, numbers, start = Answers(), count(), time.perf_counter()

    async def one_after_another() -> None:
        while time.perf_counter() - start < seconds:
            await send(client, random_body(next(numbers)), answers)

    await asyncio.gather(*(one_after_another() for _ in range(OPEN)))
    answers.seconds = time.perf_counter() - start
    return answers


async def arrive(client: httpx.AsyncClient, per_second: float, seconds: float) -> Answers:
    """Send requests at a constant rate, whatever becomes of them."""
    answers, tasks, start = Answers(), list[asyncio.Task[None]](), time.perf_counter()
    for index in count(1_000_000):
        delay = start + len(tasks) / per_second - time.perf_counter()
        if delay > 0:
            await asyncio.sleep(delay)
        if time.perf_counter() - start > seconds:
            break
        tasks.append(asyncio.create_task(send(client, random_body(index), answers)))
    await asyncio.gather(*tasks)
    answers.seconds = time.perf_counter() - start
    return answers


async def short_latency(client: httpx.AsyncClient, seed: int) -> float:
    """Return the time of a short request."""
    body = {"prompt": PROMPT, "max_tokens": 16, "steps": 16, "seed": seed}
    start = time.perf_counter()
    (await client.post("/v1/completions", json=body)).raise_for_status()
    return time.perf_counter() - start


async def short_among_long(client: httpx.AsyncClient) -> tuple[float, float]:
    """Return the median latency of a short request on an idle server, and among long ones."""
    idle = [await short_latency(client, seed) for seed in range(size(7, 1))]
    long = {"prompt": PROMPT, "max_tokens": 200, "steps": size(1000, 100)}
    tasks = [
        asyncio.create_task(client.post("/v1/completions", json=long | {"seed": seed}))
        for seed in range(size(32, 2))
    ]
    await asyncio.sleep(1)
    busy = [await short_latency(client, 100 + seed) for seed in range(size(7, 1))]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return statistics.median(idle), statistics.median(busy)


async def measure(url: str, process: psutil.Process, seconds: float) -> Json:
    """Run all phases against a server."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:
        await keep_open(client, min(5.0, seconds))
        load = await keep_open(client, seconds)
        idle, busy = await short_among_long(client)
        while "gidd_requests_open{" not in (await client.get("/metrics")).text:
            await asyncio.sleep(0.1)
        before = process.memory_info().rss
        rate = len(load.latencies) / load.seconds
        overload = await arrive(client, 3 * rate, seconds / 2)
        end = time.perf_counter()
        while (await client.get("/readyz")).status_code != 200:
            await asyncio.sleep(0.05)
        await short_latency(client, 1)
        recovered = time.perf_counter() - end
        growth = process.memory_info().rss - before
        await asyncio.sleep(size(2, 0))
        used = sum(process.cpu_times()[:2])
        await asyncio.sleep(IDLE)
        idle_cpu = (sum(process.cpu_times()[:2]) - used) / IDLE
    return {
        "load": load,
        "idle": idle,
        "busy": busy,
        "overload": overload,
        "recovered": recovered,
        "growth": growth / 2**20,
        "idle_cpu": idle_cpu,
    }


def run_bare(folder: Path, answers: Answers, seconds: float) -> Json:
    """Sample the same requests in a session for some time; 64 are open at once."""
    pipe = gidd.from_pretrained(folder, device="cpu")
    bodies = [random_body(seed) for seed in sorted(answers.texts)]
    requests = [request_of(pipe, body) for body in bodies]
    session, done, start = pipe.session, list[tuple[int, Sample]](), time.perf_counter()

    async def answer(index: int) -> None:
        done.append((index, await session.run(requests[index], record_edits=False)))

    with Budget(seconds=seconds), suppress(LimitReached):
        run_sync(gather((answer(index) for index in range(len(requests))), OPEN))
    tokens_per_second = session.counters.work / (time.perf_counter() - start)
    wrong = 0
    for index, sample in done:
        text = "".join(pipe.decoder(sample.text))
        body = bodies[index]
        if "prompt" in body:
            text = text.removeprefix(body["prompt"])
        wrong += text != answers.texts[body["seed"]]
    return {"tokens_per_second": tokens_per_second, "compared": len(done), "wrong": wrong}


def served_tokens_per_second(folder: Path, answers: Answers) -> float:
    """Return the tokens through the network for the answered requests, per second."""
    pipe = gidd.from_pretrained(folder, device="cpu")
    session = pipe.session
    work = sum(session.cost(request_of(pipe, random_body(seed))) for seed in answers.texts)
    return work / answers.seconds


def main() -> None:
    """Start the server, measure, print."""
    parser = parser_of(__doc__)
    parser.add_argument("--seconds", type=float, default=size(120.0, 1.0), help="time of the load")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    torch.set_num_threads(1)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with tempfile.TemporaryDirectory() as place:
        folder = write_model(Path(place) / "nano")
        command = [sys.executable, "-m", "gidd.cli", "serve", str(folder), "--port", "0"]
        command += ["--device", "cpu", "--max-requests", str(OPEN)]
        with subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env=environment
        ) as server:
            assert server.stderr is not None
            line = next(line for line in server.stderr if " at http://" in line)
            os.sched_setaffinity(server.pid, cores[:1])
            for thread in psutil.Process(server.pid).threads():
                os.sched_setaffinity(thread.id, cores[:1])
            os.sched_setaffinity(0, cores[1:] or cores)
            url = line.split(" at ")[1].split()[0]
            measured = asyncio.run(measure(url, psutil.Process(server.pid), options.seconds))
            server.terminate()
            exit_code = server.wait(60)
        os.sched_setaffinity(0, cores[:1])
        load, overload = measured["load"], measured["overload"]
        bare = run_bare(folder, load, options.seconds / 2)
        served = served_tokens_per_second(folder, load)
    p99 = {"load": load.p99, "overload": overload.p99}
    result: Json = {
        "throughput_ratio": served / bare["tokens_per_second"],
        "overload_p99_ratio": p99["overload"] / p99["load"],
        "unanswered": load.failed + overload.failed,
        "wrong": bare["wrong"],
        "idle_cpu": measured["idle_cpu"],
        "short_ratio": measured["busy"] / measured["idle"],
        "compared": bare["compared"],
        "answered": len(load.latencies),
        "requests_per_second": len(load.latencies) / load.seconds,
        "tokens_per_second": served,
        "bare_tokens_per_second": bare["tokens_per_second"],
        "p50": statistics.median(load.latencies),
        "p99": p99["load"],
        "short_idle_seconds": measured["idle"],
        "short_busy_seconds": measured["busy"],
        "overload_accepted": len(overload.latencies),
        "overload_refused": overload.refused,
        "overload_p99": p99["overload"],
        "recovery_seconds": measured["recovered"],
        "memory_growth_mib": measured["growth"],
        "exit_code": exit_code,
    }
    for name, value in result.items():
        print(f"{name:24} {value:,.4g}")
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
