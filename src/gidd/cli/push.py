"""Upload a model to the Hugging Face hub, from where `gidd.from_pretrained("owner/name")` loads it.

Log in once with `hf auth login`, or set the environment variable HF_TOKEN.

Examples:
  gidd push models/nano me/nano --dry-run
  gidd push models/nano me/nano --private
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from gidd.cli.output import print_text
from gidd.cli.parsing import parse
from gidd.common.local_models import local_model
from gidd.errors import ConfigError


def push_command(
    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")],
    /,
    *,
    private: bool = False,
    dry_run: bool = False,
) -> None:
    """Upload a model to the Hugging Face hub.

    Args:
        model: Folder of the model (`--out` of `gidd export`).
        name: Name on the hub: owner/name.
        private: Create a private repository; one that exists stays as it is.
        dry_run: List the files and their sizes, and upload nothing.
    """
    if not (local_model(model) or model).is_dir():
        raise ConfigError(f"MODEL must be a folder written by `gidd export`, got {model}.")
    from gidd.models.hub import files_to_push, push_to_hub

    if dry_run:
        for file, size in files_to_push(model).items():
            amount = f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"
            print_text(f"{file:24} {amount if size >= 1000 else f'{size} B':>10}")
        return
    push_to_hub(name, model, private=private)
    print_text(f"{name}: uploaded {model}")


def main(arguments: Sequence[str]) -> None:
    """Parse and upload."""
    parse(push_command, arguments, prog="gidd push", description=__doc__)
