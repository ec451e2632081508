"""Files of a saved model: written aside and renamed, read without unpickling anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from gidd.common.files import atomic_path
from gidd.diffusion.schedule import MixingSchedule
from gidd.errors import CheckpointError
from gidd.models.backbones.dit import DiT, DiTConfig
from gidd.models.denoiser import Denoiser

WEIGHTS = "model.safetensors"
COPY_AGAIN = "Copy or download the file again."
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


def write_safetensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """A safetensors file; the same tensors give the same bytes."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with atomic_path(path) as beside:
        save_file(plain, beside, metadata={"format": "pt"})


def read_safetensors(path: Path) -> dict[str, Tensor]:
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
