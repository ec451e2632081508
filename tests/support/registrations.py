"""Parts that tests register, and packages with parts that tests install for child processes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gidd.common.config import registry

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugin"


@contextmanager
def temporary_registrations() -> Iterator[None]:
    """Forget the parts that the block registers, for the other tests of this process."""
    before = dict(registry._ADDED)
    try:
        yield
    finally:
        registry._ADDED.clear()
        registry._ADDED.update(before)


def install_example(folder: Path) -> Path:
    """Build the example package and install it into a folder, without the network."""
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target")
    command = [sys.executable, "-m", "pip", "install", *options, str(folder), str(EXAMPLE)]
    subprocess.run(command, check=True)
    return folder


def write_package(folder: Path, name: str, code: str) -> Path:
    """Write a module and the metadata that pip writes for a package with a plugin."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / f"{name}.py").write_text(code)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[gidd.plugins]\n{name} = {name}\n")
    return folder


def run_gidd(
    *words: str, site: Path | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command in a process that can import the packages in the folder `site`."""
    command = [sys.executable, "-m", "gidd.cli", *words]
    environment = environment_with(site)
    return subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True)


def environment_with(site: Path | None) -> dict[str, str]:
    """The environment of a process that can import the packages in a folder."""
    paths = filter(None, (str(site or ""), os.environ.get("PYTHONPATH")))
    # bit for bit the same on any number of cores; wide, so that no name is broken into lines
    settings = {"OMP_NUM_THREADS": "1", "COLUMNS": "320"}
    return os.environ | settings | {"PYTHONPATH": os.pathsep.join(paths)}
