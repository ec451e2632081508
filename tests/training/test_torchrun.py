"""Two sharded ranks under the real `torchrun`: one is killed, one hangs."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from support.training_runs import losses, reported, speeches

from gidd.training.watchdog import HUNG

pytestmark = pytest.mark.slow
STEPS = 60


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return speeches(tmp_path_factory.mktemp("data"), vocab_size=300, documents=20)


def launch(data, out, *options, restarts=0, steps=STEPS):
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    words += ["--nproc-per-node", "2", "--max-restarts", str(restarts), "-m", "gidd.cli", "train"]
    words += ["nano", "--data.folder", str(data), "--out", str(out), "--parallel", "fsdp"]
    words += ["--train.steps", str(steps), "--train.global-batch", "4", "--data.length", "16"]
    words += ["--train.report-every", "1", "--train.evaluate-samples", "4", "--device", "cpu"]
    words += ["--train.save-every", "5", "--train.no-autocast", *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True)


def wait_for_lines(out, number, agent):
    log, end = out / "metrics.jsonl", time.monotonic() + 300
    while not log.exists() or log.read_text().count("\n") < number:
        assert agent.poll() is None, agent.stderr.read()
        assert time.monotonic() < end, "the run makes no progress"
        time.sleep(0.02)


def worker(agent, rank):
    """The process of a rank."""
    for child in psutil.Process(agent.pid).children():
        if child.environ().get("RANK") == str(rank):
            return child
    raise AssertionError(f"no process of rank {rank}")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, data):
    out = tmp_path_factory.mktemp("undisturbed")
    agent = launch(data, out)
    _, said = agent.communicate(timeout=600)
    assert agent.returncode == 0, said
    return out


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_worker_is_restarted_and_the_run_is_as_if_it_was_not(
    rank, data, undisturbed, tmp_path
):
    agent = launch(data, tmp_path, restarts=3)
    wait_for_lines(tmp_path, 12, agent)
    worker(agent, rank).send_signal(signal.SIGKILL)
    _, said = agent.communicate(timeout=600)
    assert agent.returncode == 0, said
    assert "resumed from step" in said  # the worker was killed before the run was done
    assert len(losses(tmp_path)) == STEPS
    assert reported(tmp_path) == reported(undisturbed)


def test_a_hung_rank_is_named_and_the_run_ends(data, tmp_path):
    # a timeout that no phase reaches on a busy machine, and more steps than can be done meanwhile
    agent = launch(data, tmp_path, "--train.timeout", "20", steps=1_000_000)
    wait_for_lines(tmp_path, 12, agent)
    stuck = worker(agent, 1)
    stuck.send_signal(signal.SIGSTOP)
    try:
        # torchrun sends SIGTERM to the stopped process and waits half a minute for it to exit
        _, said = agent.communicate(timeout=600)
    finally:
        if stuck.is_running():
            stuck.kill()
    assert agent.returncode != 0
    assert "Look first at rank 1" in said
    assert f"exitcode  : {HUNG}" in said
