"""Files of a saved model: written aside and renamed, read without unpickling anything."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from gidd.diffusion.schedule import MixingSchedule
from gidd.errors import CheckpointError, ConfigError
from gidd.models.denoiser import Denoiser
from gidd.models.dit import DiT, DiTConfig

WEIGHTS = "model.safetensors"
PICKLES = (".bin", ".ckpt", ".pkl", ".pickle", ".pt", ".pth")


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """A model as it comes out of a folder."""

    denoiser: Denoiser
    schedule: MixingSchedule
    """The noise that the model was trained to undo."""

    summary: dict[str, Any] = field(default_factory=lambda: {})
    """What its training wrote down: steps, loss, data. Empty if nothing was."""

    notes: tuple[str, ...] = ()
    """What a reader of this checkpoint had to decide and you should know."""


def write_aside(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a file beside `path`, force it to disk, then rename it to `path`.

    Whenever the machine stops, `path` holds all of the old bytes or all of the new ones.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}.aside")
    try:
        write(aside)
        _force_to_disk(aside)
        aside.replace(path)
        _force_to_disk(path.parent)
    finally:
        aside.unlink(missing_ok=True)


def _force_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """A safetensors file; the same tensors give the same bytes."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_aside(path, lambda aside: save_file(plain, aside, metadata={"format": "pt"}))


def write_json(path: Path, value: object) -> None:
    """Indented JSON."""
    try:
        text = json.dumps(value, indent=2, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{path}: only numbers, strings, lists and dictionaries can be saved, and no NaN or "
            f"infinity ({error}). Convert the summary's values to plain ones."
        ) from error
    write_aside(path, lambda aside: aside.write_text(text + "\n", encoding="utf-8"))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object."""
    try:
        value: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read as JSON: {error}. Copy or download the file again."
        ) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} must hold a JSON object. Copy or download the file again.")
    return cast("dict[str, Any]", value)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file; anything else is refused, pickles above all."""
    if path.suffix in PICKLES:
        raise CheckpointError(
            f"{path} is a pickle, which can run any code when it is opened, so it never is. "
            "Convert it to safetensors on a machine where you trust it: "
            "torch.load(..., weights_only=True), then safetensors.torch.save_file."
        )
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist.{_only_pickles(path.parent)}")
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{path} is not a whole safetensors file: {error}. "
            "It was cut short or is of another kind; copy or download it again."
        ) from error


def _only_pickles(folder: Path) -> str:
    found = sorted(p.name for p in folder.glob("*") if p.suffix in PICKLES)
    if not found:
        return " Check the path, or download the checkpoint again."
    return (
        f" {', '.join(found)} beside it is a pickle, which can run any code when it is opened, so "
        "it never is. Convert it to safetensors on a machine where you trust it."
    )


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def dit_from_tensors(
    config: DiTConfig,
    tensors: Mapping[str, Tensor],
    file: Path,
    name_in_file: Callable[[str], str] = str,
) -> DiT:
    """A DiT that takes over tensors, after checking every name, shape and type.

    Args:
        config: The sizes that the tensors must have.
        tensors: Weights by the names that the file gives them.
        file: Where they come from, for messages.
        name_in_file: The file's name of one of our tensors.
    """
    with torch.device("meta"):
        model = DiT(config)
    expected = {name: name_in_file(name) for name in model.state_dict()}
    shapes = {expected[name]: tuple(value.shape) for name, value in model.state_dict().items()}
    _check_tensors(shapes, tensors, file)
    model.load_state_dict({name: tensors[there] for name, there in expected.items()}, assign=True)
    return model.requires_grad_(True)


def _check_tensors(
    shapes: Mapping[str, tuple[int, ...]], tensors: Mapping[str, Tensor], file: Path
) -> None:
    """Refuse a tensor that is missing, foreign, of another shape or not of real numbers."""
    problems = [f"tensor {name} is missing" for name in shapes if name not in tensors]
    for name, tensor in tensors.items():
        if name not in shapes:
            problems.append(f"tensor {name} belongs to no part of this model")
        elif tuple(tensor.shape) != shapes[name]:
            expected, actual = list(shapes[name]), list(tensor.shape)
            problems.append(f"tensor {name} must have shape {expected}, got {actual}")
        elif not tensor.is_floating_point():
            problems.append(f"tensor {name} must hold real numbers, got {tensor.dtype}")
    if problems:
        shown = "; ".join(problems[:5]) + ("; ..." if len(problems) > 5 else "")
        raise CheckpointError(
            f"{file}: {shown}. The weights and the sizes beside them must be of one model; "
            "copy or download both files again."
        )
