"""The model `nano`: `gidd.from_pretrained("nano")`, or `gidd sample nano`."""

from pathlib import Path
from typing import Final

__version__ = "0.1.0"

FOLDER: Final = Path(__file__).parent / "model"
"""Folder of the model: weights, record, tokenizer."""
