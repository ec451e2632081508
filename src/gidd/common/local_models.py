"""Models of this machine: folders, and models of installed distributions such as gidd-nano."""

from importlib.metadata import entry_points
from pathlib import Path

INSTALLED_MODELS = "gidd.models"
"""Entry points of distributions that contain a model: its name, and the path of its folder."""


def local_model(name: str | Path) -> Path | None:
    """Return the folder of a model by its path or, if there is none, by its installed name."""
    if Path(name).is_dir():
        return Path(name)
    found = next(iter(entry_points(group=INSTALLED_MODELS, name=str(name))), None)
    return None if found is None else Path(found.load())


def installed_models() -> list[str]:
    """Return the names of all installed models."""
    return sorted(entry_points(group=INSTALLED_MODELS).names)
