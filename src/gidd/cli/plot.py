"""Plot the training curves of one or more runs to a PNG file.

Examples:
  gidd plot runs/nano
  gidd plot runs/small-p0 runs/small-p0.1 --out uniform-noise.png
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from gidd.cli.output import print_text, require_writable
from gidd.cli.parsing import parse
from gidd.errors import ConfigError


def plot_command(
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN...")],
    /,
    *,
    out: Annotated[Path | None, tyro.conf.DisallowNone] = None,
) -> None:
    """Plot the training curves of one or more runs to a PNG file.

    Args:
        runs: Folders of runs (`--out` of `gidd train`).
        out: The PNG file; None is curves.png in the folder of the first run.
    """
    if not runs:
        raise ConfigError("name at least one run, e.g. `gidd plot runs/nano`.")
    if out is None:
        out = (runs[0] if runs[0].is_dir() else runs[0].parent) / "curves.png"
    from gidd.viz.plots import plot_runs
    from gidd.viz.run_log import RunLog

    logs = [RunLog.read(run) for run in runs]
    require_writable(out, "--out")
    plot_runs(logs, out)
    print_text(str(out))


def main(arguments: Sequence[str]) -> None:
    """Parse and plot."""
    parse(plot_command, arguments, prog="gidd plot", description=__doc__)
