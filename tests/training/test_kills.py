"""A training that is killed: here while it steps and while it saves, by `make kills` 200 times."""

import json
import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kills", "options"),
    [
        (3, []),
        pytest.param(15, [], marks=pytest.mark.long),
        pytest.param(15, ["--mixture"], marks=pytest.mark.long),
    ],
)
def test_a_training_killed_at_random_moments_ends_as_if_uninterrupted(kills, options):
    command = [sys.executable, "-m", "support.kill_training", "--kills", str(kills), "--seed", "1"]
    command += options
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert outcome["kills"] == kills
    assert outcome["kills_while_saving"] >= 2 * kills // 5  # those stop at a stage of a save
    assert outcome["damaged_checkpoints"] == []
    assert outcome["steps_lost_at_most"] <= outcome["save_every"]
    assert outcome["leftovers"] == []
    assert outcome["same_reports"]
    assert outcome["same_tensors"]
