"""Results of `gpu.py`: tables for people, and one JSON object to paste into an issue."""

from __future__ import annotations

import gc
import math
import platform
import subprocess
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import torch
from gpu_checks import Check
from gpu_measure import Waits

T = TypeVar("T")

VERDICTS = {True: "PASS", False: "FAIL", None: "not checked"}


class Report:
    """Results by section, printed as they come unless only the JSON object is wanted."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self.results: dict[str, Any] = {"checks": {}, "waits": {}, "figures": {}, "errors": {}}
        self.predicted: dict[str, float] = {}
        """Predictions by the name of the figure."""

    @property
    def passed(self) -> bool:
        """Whether no part failed and no check did."""
        results = [*self.results["checks"].values(), *self.results["waits"].values()]
        return not self.results["errors"] and all(check["passed"] is not False for check in results)

    def say(self, line: str) -> None:
        """Print a line for people."""
        if not self._quiet:
            print(line, flush=True)

    def title(self, title: str, *columns: str) -> None:
        """Begin a table."""
        self.say(f"\n## {title}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")

    def attempt(self, name: str, work: Callable[[], T]) -> T | None:
        """Run a part; if it fails, keep the error and return None.

        The other parts are worth having: nobody may run this a second time.
        """
        try:
            return work()
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)[-4:]
            lines = [f"{'/'.join(Path(f.filename).parts[-2:])}:{f.lineno}" for f in frames]
            message = f"{type(error).__name__}: {str(error)[:600]}"
            self.results["errors"][name] = {"message": message, "lines": lines}
            self.say(f"\n{name} FAILED: {message}\n  at {', '.join(lines)}\n")
            return None
        finally:
            gc.collect()
            with suppress(RuntimeError):  # after an error of the device every call raises
                torch.cuda.empty_cache()

    def check(self, name: str, check: Check) -> None:
        """Add an error and its bound."""
        error = check.error if math.isfinite(check.error) else None
        passed = check.passed
        self.results["checks"][name] = {"error": error, "bound": check.bound, "passed": passed}
        self.say(f"| {name} | {check.error:.1e} | {check.bound:.0e} | {VERDICTS[passed]} |")

    def waits(self, name: str, measured: Waits) -> None:
        """Add the lines at which the host waits."""
        passed = None if measured.lines is None else measured.passed
        self.results["waits"][name] = measured._asdict() | {"passed": passed}
        lines = ", ".join(f"{line} ({n})" for line, n in (measured.lines or {}).items())
        self.say(f"| {name} | {measured.allowed} | {lines or '-'} | {VERDICTS[passed]} |")

    def figure(self, name: str, measured: float | None) -> None:
        """Add a measured figure, its prediction and their ratio."""
        predicted = self.predicted.get(name)
        ratio = measured / predicted if measured is not None and predicted else None
        numbers = {"measured": measured, "predicted": predicted, "ratio": ratio}
        self.results["figures"][name] = numbers
        cells = ("-" if value is None else f"{value:,.4g}" for value in numbers.values())
        self.say(f"| {name} | {' | '.join(cells)} |")


def environment(device: torch.device) -> dict[str, Any]:
    """Return device, driver and versions."""
    described: dict[str, Any] = {"device": platform.processor() or platform.machine()}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        described |= {
            "device": properties.name,
            "memory_gb": properties.total_memory / 1e9,
            "capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "driver": _nvidia_smi("driver_version"),
            "power_limit": _nvidia_smi("power.limit"),
        }
    described |= {"python": platform.python_version(), "torch": torch.__version__}
    described |= {"cuda": torch.version.cuda, "hip": torch.version.hip}
    return described | {name: _version(name) for name in ("triton", "gidd", "liger-kernel")}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _nvidia_smi(field: str) -> str | None:
    """Return a property of the first GPU that torch does not know."""
    command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.partition("\n")[0].strip()
