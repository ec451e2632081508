"""Kill a training with loader processes (SIGKILL) and see whether they end with it.

    PYTHONPATH=tests python -m support.kill_workers --kills 20 --json

Every attempt is a real `gidd train --data.workers 2`, killed when its workers have delivered
batches. Prints one JSON object.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from gidd.training.reporting.log import METRICS_FILE
from support.training_runs import speeches

WORKERS = 2
PATIENCE = 600.0
WORDS = (
    ("train", "nano", "--data.length", "32", "--device", "cpu", "--train.generate-samples", "0")
    + ("--train.steps", "1000000", "--train.global-batch", "4", "--train.evaluate-samples", "4")
    + ("--train.report-every", "1", "--data.workers", str(WORKERS), "--quiet")
    + ("--backbone.width", "32", "--backbone.num-layers", "1", "--backbone.num-heads", "2")
)  # fmt: skip


def campaign(folder: Path, kills: int) -> dict[str, object]:
    """Kill one training `kills` times; return how many processes it left and how long they ran."""
    seconds, left = [], []
    for _ in range(kills):
        took, alive = kill_once(folder)
        seconds.append(took)
        left += [" ".join(process.cmdline()) for process in alive]
        for process in alive:
            process.kill()
    return {"kills": kills, "left": left, "seconds_until_all_ended": round(max(seconds), 2)}


def kill_once(folder: Path) -> tuple[float, list[psutil.Process]]:
    """Start the training, kill it and return its descendants that are alive much later."""
    process = start(folder)
    try:
        wait_for_a_step(process, folder)
        descendants = psutil.Process(process.pid).children(recursive=True)
        assert len(descendants) > WORKERS, descendants  # and the resource tracker
    finally:
        process.kill()
        process.communicate()
    began = time.monotonic()
    _, alive = psutil.wait_procs(descendants, timeout=300)
    return time.monotonic() - began, alive


def start(folder: Path) -> subprocess.Popen[str]:
    """Start the training in a process group of its own."""
    data, out = folder / "data", folder / "run"
    if not data.exists():
        speeches(data, vocab_size=300, documents=20)
    (out / METRICS_FILE).unlink(missing_ok=True)  # a line in it is of this attempt
    return subprocess.Popen(
        [sys.executable, "-m", "gidd.cli", *WORDS, "--data.folder", str(data), "--out", str(out)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_a_step(process: subprocess.Popen[str], folder: Path) -> None:
    """Wait until the training has taken a step, with a batch of its workers."""
    log, end = folder / "run" / METRICS_FILE, time.monotonic() + PATIENCE
    while not log.exists() or not log.stat().st_size:
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < end, "the run makes no progress"
        time.sleep(0.01)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(campaign(Path(folder), arguments.kills)))
