"""The proofreader with the packaged model."""

import sys
from pathlib import Path

import gidd_proof
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))


@pytest.fixture(scope="session")
def proofreader():
    return gidd_proof.load(device="cpu")
