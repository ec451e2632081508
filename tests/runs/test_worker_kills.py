"""Loader processes end with their training, and leave signals to it."""

import os
import signal

import pytest

pytest.importorskip("grain", reason='needs `pip install "gidd[data]"`')
from support.kill_workers import campaign, start, wait_for_a_step  # noqa: E402

from gidd.training.watchdog import STOPPED  # noqa: E402


@pytest.mark.slow
@pytest.mark.parametrize("kills", [1, pytest.param(3, marks=pytest.mark.long)])
def test_no_process_outlives_a_killed_training(kills, tmp_path):
    """`make kills` kills it 20 times."""
    assert campaign(tmp_path, kills)["left"] == []


@pytest.mark.long
def test_ctrl_c_reaches_the_workers_too_and_the_training_still_saves(tmp_path):
    """A terminal sends it to all processes of the group."""
    process = start(tmp_path)
    try:
        wait_for_a_step(process, tmp_path)
        os.killpg(process.pid, signal.SIGINT)
        _, printed = process.communicate(timeout=600)
    finally:
        process.kill()
    assert process.returncode == STOPPED, printed
    assert "Traceback" not in printed
    assert len(list((tmp_path / "run" / "checkpoints").glob("step-*"))) == 1
