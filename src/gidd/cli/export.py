"""Write the newest valid checkpoint of a run as a model: weights, configuration, tokenizer.

Examples:
  gidd export runs/nano --out models/nano
  gidd export runs/proof --out models/proof --bf16
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from gidd.cli.messages import print_message
from gidd.cli.output import print_text
from gidd.cli.parsing import parse


def export_command(
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    /,
    *,
    out: Path,
    bf16: bool = False,
) -> None:
    """Write the newest valid checkpoint of a run as a model.

    Args:
        run: Folder of the run (`--out` of `gidd train`).
        out: Folder for the model. `gidd sample` and `gidd.from_pretrained` load it; a Llama
            baseline is loaded by `transformers`.
        bf16: Round the weights to bfloat16: half the size.
    """
    from gidd.runs.export import export
    from gidd.training.world import open_world

    with open_world("cpu") as world:
        step, notes = export(run, out, world, bf16=bf16)
    for note in notes:
        print_message(f"skipped an invalid checkpoint: {note}")
    print_text(f"{out}: the model at step {step:,}")


def main(arguments: Sequence[str]) -> None:
    """Parse and export."""
    parse(export_command, arguments, prog="gidd export", description=__doc__)
