"""Kill `gidd sample --out` and resume it, and compare the samples with undisturbed ones.

    PYTHONPATH=tests python -m support.kill_bulk --samples 10000 --json
    PYTHONPATH=tests python -m support.kill_bulk --samples 400 --kills 20 --json

With --kills, sampling in a process of its own is killed (SIGKILL) that many times, each at the n-th
flush of a file to disk, before or after it: while a temporary file is written, before and after it
is renamed. Otherwise the command samples on Ray actors and is killed once, with all processes of
Ray, when half of the blocks are written. Prints one JSON object.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import torch._dynamo  # noqa: F401  (loading a model imports it, which takes seconds: before forks)

from gidd.common import files
from gidd.pipeline.options import SamplingOptions
from gidd.runs.bulk import BulkJob, iterate_samples, sample_to_folder
from support.kill_training import child, fork, stop_at
from support.small_model import write_model

PATIENCE = 600.0
STEPS, LENGTH = 4, 8


def kill_while_writing(folder: Path, samples: int, kills: int, block_size: int = 4) -> dict:
    """Kill sampling in one process many times; return what happened."""
    job = sample_undisturbed(folder, samples, block_size, batch_size=block_size)
    moments, at_kill = random.Random(0), []
    for _ in range(kills):
        flush, is_after = moments.randint(1, 4), moments.random() < 0.5

        def attempt(flush=flush, is_after=is_after):
            stop_at(files, "fsync", calls=flush, after=is_after)
            sample_to_folder(job, folder / "killed")

        pid = fork(attempt)
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status), f"an attempt ended before its kill: {status}"
        at_kill.append(len(blocks(folder / "killed")))
    assert child(lambda: sample_to_folder(job, folder / "killed")) == 0
    return {"kills": kills, "blocks_at_kills": at_kill} | compare(folder, samples)


def kill_ray(
    folder: Path,
    samples: int,
    *,
    block_size: int = 64,
    batch_size: int = 64,
    resume_on_ray: bool = True,
) -> dict:
    """Kill sampling on Ray actors when half is done; return what happened."""
    seconds, total = {}, -(-samples // block_size)
    start = time.monotonic()
    job = sample_undisturbed(folder, samples, block_size, batch_size)
    seconds["undisturbed, local"] = round(time.monotonic() - start, 1)

    settings = f"--device cpu --length {LENGTH} --steps {STEPS} --batch-size {batch_size}"
    settings += f" --num-samples {samples} --samples-per-file {block_size}"
    words = [sys.executable, "-m", "gidd.cli", "sample", str(folder / "model"), *settings.split()]
    on_ray = ["--executor", "ray", "--ray.num-actors", "2", "--ray.num-cpus", "0.5"]
    start = time.monotonic()
    command = [*words, "--out", str(folder / "killed"), *on_ray]
    environment = os.environ | {"RAY_AUTH_MODE": "disabled"}
    process = subprocess.Popen(command, env=environment, stdout=sys.stderr)
    while len(blocks(folder / "killed")) < total / 2:
        assert process.poll() is None, "the command ended before its kill"
        assert time.monotonic() < start + PATIENCE, "the command makes no progress"
        time.sleep(0.01)
    descendants = psutil.Process(process.pid).children(recursive=True)
    actors = sum("MapWorker" in " ".join(each.cmdline()) for each in descendants)
    process.kill()
    for descendant in descendants:
        try:
            descendant.kill()
        except psutil.NoSuchProcess:  # ended with the command
            continue
    assert process.wait() == -signal.SIGKILL
    psutil.wait_procs(descendants, timeout=60)
    at_kill = len(blocks(folder / "killed"))
    seconds["until the kill, Ray"] = round(time.monotonic() - start, 1)

    start = time.monotonic()
    if resume_on_ray:
        subprocess.run(command, env=environment, check=True, stdout=sys.stderr)
    else:
        assert child(lambda: sample_to_folder(job, folder / "killed")) == 0
    seconds["resumed"] = round(time.monotonic() - start, 1)
    return {
        "blocks": total,
        "blocks_at_kill": at_kill,
        "processes_killed": 1 + len(descendants),
        "actors_killed": actors,
        "seconds": seconds,
    } | compare(folder, samples)


def sample_undisturbed(folder: Path, samples: int, block_size: int, batch_size: int) -> BulkJob:
    """Write a model, and its samples by a process that is not killed; return the job."""
    assert child(lambda: write_model(folder / "model")) == 0
    job = BulkJob(
        model=str(folder / "model"),
        num_samples=samples,
        length=LENGTH,
        sampling=SamplingOptions(steps=STEPS),
        device="cpu",
        batch_size=batch_size,
        block_size=block_size,
    )
    assert child(lambda: sample_to_folder(job, folder / "undisturbed")) == 0
    return job


def blocks(folder: Path) -> list[str]:
    """The files of finished blocks."""
    return [path.name for path in (folder / "samples").glob("*.jsonl")]


def compare(folder: Path, samples: int) -> dict:
    """Compare the killed and the undisturbed folder, byte by byte."""
    killed, undisturbed = (contents(folder / name) for name in ("killed", "undisturbed"))
    ids = [sample.id for sample in iterate_samples(folder / "killed")]
    return {
        "samples": len(ids),
        "each_index_once": ids == list(range(samples)),
        "same_bytes": killed == undisturbed,
        "leftovers": sorted(name for name in killed if name.endswith(".tmp")),
    }


def contents(folder: Path) -> dict[str, bytes]:
    found = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--block-size", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--resume-locally", action="store_true", help="without Ray")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if given.kills:
            result = kill_while_writing(Path(name), given.samples, given.kills)
        else:
            sizes = {"block_size": given.block_size, "batch_size": given.batch_size}
            on_ray = not given.resume_locally
            result = kill_ray(Path(name), given.samples, **sizes, resume_on_ray=on_ray)
        print(json.dumps(result))
