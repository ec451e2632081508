"""`gidd plot`: the curves of runs as a picture.

gidd plot runs/nano
gidd plot runs/small-p0 runs/small-p0.1 --out uniform-noise.png
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from gidd.errors import ConfigError
from gidd.viz import plots
from gidd.viz.run_log import RunLog


def plot(
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN...")],
    /,
    *,
    out: Path | None = None,
) -> None:
    """Draw the curves of one or several runs to a PNG file.

    Some examples:
      gidd plot runs/nano
      gidd plot runs/small-p0 runs/small-p0.1 --out uniform-noise.png

    Args:
        runs: Folders that `gidd train` has written to.
        out: The file; by default curves.png in the folder of the first run.
    """
    if not runs:
        raise ConfigError("name at least one run, e.g. `gidd plot runs/nano`.")
    logs = [RunLog.read(run) for run in runs]
    if out is None:
        out = (runs[0] if runs[0].is_dir() else runs[0].parent) / "curves.png"
    plots.draw(logs, out)
    print(out)


def main(arguments: Sequence[str]) -> None:
    """Run `gidd plot`."""
    tyro.cli(plot, prog="gidd plot", args=list(arguments))
