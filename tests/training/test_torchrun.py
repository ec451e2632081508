"""Two sharded ranks under the real `torchrun`: one is killed, one hangs."""

import os
import subprocess
import sys
import time

import psutil
import pytest
from support.ranks import run_ranks
from support.training_runs import losses, reported, speeches

from gidd.cli import main
from gidd.training.watchdog import HUNG

pytestmark = pytest.mark.slow
STEPS = 16
UPDATES = 12
"""After these a rank stops itself: the checkpoint of step 5 is visible, that of step 10 may be."""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return speeches(tmp_path_factory.mktemp("data"), vocab_size=300, documents=20)


def train(data, out):
    """The words of the command."""
    words = ["train", "nano", "--data.folder", str(data), "--out", str(out), "--parallel", "fsdp"]
    words += ["--train.steps", str(STEPS), "--train.global-batch", "4", "--data.length", "16"]
    words += ["--train.report-every", "1", "--train.evaluate-samples", "4", "--device", "cpu"]
    words += ["--train.save-every", "5", "--train.no-autocast", "--train.generate-samples", "0"]
    words += ["--backbone.width", "32", "--backbone.num-layers", "2", "--backbone.num-heads", "2"]
    return words


def launch(data, out, *options, rank_to_stop, restarts=0):
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    words += ["--nproc-per-node", "2", "--max-restarts", str(restarts)]
    words += ["-m", "support.stop_rank", str(rank_to_stop), str(UPDATES)]
    words += [*train(data, out), *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True)


def stopped_worker(agent, rank):
    """Wait until the process of a rank has stopped itself, and return it."""
    end = time.monotonic() + 300
    while True:
        assert agent.poll() is None, agent.stderr.read()
        assert time.monotonic() < end, "the run makes no progress"
        time.sleep(0.02)
        for child in psutil.Process(agent.pid).children():
            if child.status() == psutil.STATUS_STOPPED:
                assert child.environ()["RANK"] == str(rank)
                return child


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, data):
    out = tmp_path_factory.mktemp("undisturbed")
    run_ranks(main, 2, train(data, out), timeout=600)
    return out


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.long), 1])
def test_a_killed_worker_is_restarted_and_the_run_is_as_if_it_was_not(
    rank, data, undisturbed, tmp_path
):
    agent = launch(data, tmp_path, rank_to_stop=rank, restarts=3)
    stopped_worker(agent, rank).kill()
    _, said = agent.communicate(timeout=600)
    assert agent.returncode == 0, said
    assert "resumed from step" in said
    assert len(losses(tmp_path)) == STEPS
    assert reported(tmp_path) == reported(undisturbed)


@pytest.mark.long
def test_a_hung_rank_is_named_and_the_run_ends(data, tmp_path):
    # a timeout that no phase reaches on a busy machine
    agent = launch(data, tmp_path, "--train.timeout", "20", rank_to_stop=1)
    stuck = stopped_worker(agent, 1)
    (waiting,) = (child for child in psutil.Process(agent.pid).children() if child != stuck)
    try:
        waiting.wait(timeout=600)
        # torchrun, which has seen that, sends SIGTERM to the stopped process and waits half a
        # minute for it to exit
        stuck.kill()
        _, said = agent.communicate(timeout=600)
    finally:
        agent.kill()
        if stuck.is_running():
            stuck.kill()
    assert agent.returncode != 0
    assert "Look first at rank 1" in said
    assert f"exitcode  : {HUNG}" in said
