import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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

PROPERTIES = {"deadline": None, "derandomize": True, "print_blob": True}
hypothesis.settings.register_profile("gidd", **PROPERTIES)
hypothesis.settings.register_profile("ci", **PROPERTIES, max_examples=15)  # `make test-ci`
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


@pytest.fixture(scope="module")
def forked_traces() -> Iterator[None]:
    """Plans are traced in new processes as always; these do not import torch again."""
    from support.ranks import CONTEXT

    from gidd.planning import step_trace

    with pytest.MonkeyPatch.context() as patch:
        forks = SimpleNamespace(get_context=lambda _method: CONTEXT)
        patch.setattr(step_trace, "multiprocessing", forks)
        yield


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, if it is installed."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    installed = next(filter(None, map(shutil.which, names)), None)
    with playwright.sync_playwright() as started:
        try:
            chromium = started.chromium.launch(executable_path=installed, args=["--no-sandbox"])
        except playwright.Error:
            pytest.skip("no browser: install chromium, or run `playwright install chromium`")
        yield chromium
        chromium.close()
