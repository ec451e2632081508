"""Write the newest valid checkpoint of a run as a model: weights, configuration, tokenizer.

A folder with a model of another project (docs/importers.md) is converted to the layout of gidd.

Examples:
  gidd export runs/nano --out models/nano
  gidd export runs/proof --out models/proof --bf16
  gidd export downloads/LLaDA-8B-Base --out models/llada
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from gidd.cli.output import print_text
from gidd.cli.parsing import parse
from gidd.common.local_models import local_model
from gidd.common.messages import print_message
from gidd.errors import CheckpointError


def export_command(
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    /,
    *,
    out: Path,
    bf16: bool = False,
    overwrite: bool = False,
    tokenizer: Annotated[str | None, tyro.conf.arg(metavar="STR")] = None,
) -> None:
    """Write the newest valid checkpoint of a run as a model.

    Args:
        run: Folder of the run (`--out` of `gidd train`), or a model to convert: its folder, or the
            name of an installed one, such as nano.
        out: Folder for the model. `gidd sample` and `gidd.from_pretrained` load it; a Llama
            baseline is loaded by `transformers`.
        bf16: Round the weights to bfloat16: half the size.
        overwrite: Replace a model that is in the folder already.
        tokenizer: Tokenizer of a model to convert, if its folder has none: a file, a folder or a
            name such as gpt2.
    """
    files = ("gidd.json", "config.json")
    if not overwrite and any((out / name).exists() for name in files):
        raise CheckpointError(f"{out} contains a model. Choose another --out, or add --overwrite.")
    model = local_model(run) or run
    if not (model / "checkpoints").exists() and any((model / name).is_file() for name in files):
        from gidd.pipeline import from_pretrained

        pipe = from_pretrained(run, device="cpu", tokenizer=tokenizer)
        if bf16:
            pipe.denoiser.bfloat16()
        pipe.save(out)
        print_text(f"{out}: the model of {run}")
        return
    if not (model / "checkpoints").is_dir():
        problem = f"{model / 'checkpoints'} contains no checkpoint"
        raise CheckpointError(f"{problem}. Use --out of a `gidd train` that has saved.")
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
