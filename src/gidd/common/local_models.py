"""Models of this machine: folders, and models of installed distributions such as gidd-nano."""

import re
from importlib.metadata import entry_points
from pathlib import Path

from gidd.errors import CheckpointError

HUB_NAME = r"[\w-][\w.-]*/[\w.-]+"
"""Names of models on the Hugging Face hub: owner/name."""

INSTALLED_MODELS = "gidd.models"
"""Entry points of distributions that contain a model: its name, and the path of its folder."""


def local_model(name: str | Path) -> Path | None:
    """Return the folder of a model by its path or, if there is none, by its installed name."""
    if Path(name).is_dir():
        return Path(name)
    entry_point = next(iter(entry_points(group=INSTALLED_MODELS, name=str(name))), None)
    return None if entry_point is None else Path(entry_point.load())


def require_model_name(name: str) -> None:
    """Raise `CheckpointError` if no model can have the name: neither one here nor one of the hub.

    Without torch and the network, so that commands check it first.
    """
    if local_model(name) is not None:
        return
    missing = f"{name} is not a folder here"
    if not re.fullmatch(HUB_NAME, name):
        installed = ", ".join(installed_models())
        raise CheckpointError(
            f"{missing}, nor an installed model ({installed or '`pip install gidd-nano` adds nano'}"
            "), nor owner/name of a model on the Hugging Face hub."
        )
    if Path(name).parent.is_dir():
        raise CheckpointError(
            f"{missing}, although {Path(name).parent} is. Check the path; to download a model of "
            "that name from the Hugging Face hub, run from another folder."
        )


def installed_models() -> list[str]:
    """Return the names of all installed models."""
    return sorted(entry_points(group=INSTALLED_MODELS).names)
