"""Small models that come with the package, by name."""

from __future__ import annotations

from pathlib import Path
from typing import Final

PACKAGED_MODELS: Final = ("proof",)
"""`proof`: characters, trained on speeches, for `gidd correct` (assets/proof/README.md)."""


def find_model(name: str | Path) -> str | Path:
    """Return the folder of a packaged model, unless a folder of that name is here; else `name`."""
    if str(name) in PACKAGED_MODELS and not Path(name).exists():
        return Path(__file__).parent / str(name)
    return name
