"""Run everything at full size and record the result in docs/nightly.md (`make nightly`).

    python tests/support/nightly.py [STAGE ...]

Every stage is a target of the Makefile. A stage that fails does not stop the others.
"""

import datetime
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "nightly.md"
STAGES = (
    "check",
    "test-ci",
    "test-proof",
    "test-long",
    "attacks",
    "kills",
    "test-perf",
    "test-lowest",
)
HEADER = """# Nightly

The latest run of each stage of `make nightly`: all tests at full size, on this code. `.ci/run` has
what every change needs.

| stage | result | minutes | commit | date | machine |
|---|---|---|---|---|---|
"""


def run(stage: str) -> str:
    """Run one stage and return its row."""
    start = time.monotonic()
    counts: list[str] = []
    with subprocess.Popen(["make", stage], cwd=ROOT, text=True, stdout=subprocess.PIPE) as make:
        for line in make.stdout or ():
            print(line, end="", flush=True)
            counts += re.findall(r"^=+ (.*) in [\d.]+s.*=+$", line)
    minutes = (time.monotonic() - start) / 60
    result = "passed" if make.returncode == 0 else f"failed ({make.returncode})"
    result = ": ".join([result, *counts[-1:]])
    show = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(show, cwd=ROOT, text=True, capture_output=True).stdout.strip()
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    day = datetime.datetime.now(datetime.UTC).date()
    return f"| {stage} | {result} | {minutes:.1f} | {commit} | {day} | {machine} |\n"


def record(row: str) -> None:
    """Replace the row of a stage on the page."""
    stage = row.split("|")[1].strip()
    page = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    rows = {line.split("|")[1].strip(): line for line in page.splitlines() if line[:2] == "| "}
    rows[stage] = row.strip()
    lines = [rows[name] for name in STAGES if name in rows]
    PAGE.write_text(HEADER + "\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    """Run the stages, all of them unless some are named."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # every command would compile its imports
    failed: list[str] = []
    for stage in sys.argv[1:] or STAGES:
        row = run(stage)
        record(row)
        if "| passed" not in row:
            failed.append(stage)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
