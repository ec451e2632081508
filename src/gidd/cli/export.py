"""Write the newest checkpoint of a run as a model that others can load.

Examples:
  gidd export runs/nano --out models/nano
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from gidd.runs.export import export as write
from gidd.training.world import open_world


def export(run: Annotated[Path, tyro.conf.Positional], /, *, out: Path) -> None:
    """Write safetensors, their record and the tokenizer of a run's newest whole checkpoint.

    Example: gidd export runs/nano --out models/nano

    Args:
        run: Folder of the run, as given to `gidd train --out`.
        out: Folder for the model; `gidd sample` and `gidd.from_pretrained` load it, and
            `transformers` loads a Llama baseline.
    """
    with open_world("cpu") as world:
        step, notes = write(run, out, world)
    for note in notes:
        print(f"gidd: passed over a newer checkpoint: {note}", file=sys.stderr)
    print(f"{out}: the model of step {step:,}")


def main(arguments: Sequence[str]) -> None:
    """Parse and export."""
    tyro.cli(export, prog="gidd export", args=list(arguments))
