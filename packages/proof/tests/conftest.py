"""The proofreader with the packaged model."""

import sys
from pathlib import Path

import gidd_proof
import pytest

for folder in ("benchmarks", "training"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))


@pytest.fixture(scope="session")
def proofreader():
    return gidd_proof.load(device="cpu")
