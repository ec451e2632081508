"""`benchmarks/serving_plan.py`, and the tables of docs/scaling/serving.md."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_page_has_what_the_command_prints():
    command = [sys.executable, "benchmarks/serving_plan.py", "--json"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    *lines, found = printed.splitlines()
    page = (ROOT / "docs" / "scaling" / "serving.md").read_text().splitlines()
    assert not [line for line in lines if line not in page]
    plan = json.loads(found)
    given, small = plan["assumptions"], plan["requests"]["small"]
    # 2 FLOPs a weight: 85M of the blocks for every token, 39M of the head for new ones
    weights, head = 12 * 12 * 768**2, 768 * 50258
    length, new = given["prompt"] + given["tokens"], given["tokens"]
    attention = 4 * 12 * 768 * length
    expected = (2 * weights + attention) * length + 2 * head * new
    assert small["TFLOPs of a pass"] * 1e12 == pytest.approx(expected, rel=0.01)
    assert small["GPU seconds"] == pytest.approx(128 * expected / (989e12 * 0.35), rel=0.01)
    for name, rate in (("small", 100), ("10b", 10_000)):
        one, many = plan["requests"][name], plan["services"][f"{name}, {rate:,} a second"]
        assert many["GPUs"] * many["busy"] == pytest.approx(rate * one["GPU seconds"])
        assert many["busy"] <= given["load"] + 1e-9
