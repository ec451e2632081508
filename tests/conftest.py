import os
from pathlib import Path

# before torch starts its threads: spinning ones slow everything down when tests share the cores
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("KMP_BLOCKTIME", "0")

# processes that tests start import `support` too
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH")))
)

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("gidd", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("gidd")

DEVICES = ["cpu"]
if torch.cuda.is_available():
    DEVICES.append("cuda")
if torch.backends.mps.is_available():
    DEVICES.append("mps")


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    """Every device of this machine."""
    return torch.device(request.param)
