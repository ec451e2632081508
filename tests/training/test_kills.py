"""A training that is killed often; `make kills` does the same with 200 kills."""

import json
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_a_training_killed_at_random_moments_ends_as_if_uninterrupted():
    command = [sys.executable, "-m", "support.kill_training", "--kills", "15", "--seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert outcome["kills"] == 15
    assert outcome["kills_while_saving"] >= 6  # 2 in 5 stop at a stage of a save
    assert outcome["damaged_checkpoints"] == []
    assert outcome["steps_lost_at_most"] <= outcome["save_every"]
    assert outcome["leftovers"] == []
    assert outcome["same_reports"]
    assert outcome["same_tensors"]
