"""Tensor files of a saved model: atomic writes, checked reads, no pickles."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from gidd.common.files import atomic_path
from gidd.diffusion.schedule import MixingSchedule
from gidd.errors import CheckpointError
from gidd.models.denoiser import Denoiser

WEIGHTS = "model.safetensors"
COPY_AGAIN = "Copy or download the file again."
PICKLE_SUFFIXES = (".bin", ".ckpt", ".pkl", ".pickle", ".pt", ".pth")
_PICKLE = (
    "is a pickle, which is never loaded: it can run arbitrary code. Convert it to safetensors on a "
    "machine where you trust it: torch.load(..., weights_only=True), then "
    "safetensors.torch.save_file."
)


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """A model as loaded from a folder."""

    denoiser: Denoiser
    schedule: MixingSchedule
    """The noise schedule the model was trained with."""

    summary: dict[str, Any] = field(default_factory=lambda: {})
    """What the training recorded: steps, loss, data. Empty if nothing was recorded."""

    notes: tuple[str, ...] = ()
    """Assumptions made while loading that the user should know about."""


def write_safetensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file atomically; equal tensors give equal bytes."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with explain_write_failure(path), atomic_path(path) as temporary:
        temporary.touch()
        mode = temporary.stat().st_mode
        save_file(plain, temporary, metadata={"format": "pt"})
        temporary.chmod(mode)  # safetensors ignores the umask and creates files with mode 0600


@contextmanager
def explain_write_failure(path: Path) -> Generator[None]:
    """Raise a `CheckpointError` if writing a model file fails, for example on a full disk."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{path} could not be written: {error}. Free disk space or fix the permissions, or "
            "write to another folder; then run the same command again."
        ) from error


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Read all tensors of a safetensors file; other formats, such as pickles, are refused."""
    if path.suffix in PICKLE_SUFFIXES:
        raise CheckpointError(f"{path} {_PICKLE}")
    if not path.is_file():
        found = sorted(p.name for p in path.parent.glob("*") if p.suffix in PICKLE_SUFFIXES)
        pickles = f"{', '.join(found)} in the same folder {_PICKLE}"
        hint = pickles if found else "Check the path, or download the checkpoint again."
        raise CheckpointError(f"{path} does not exist. {hint}")
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{path} is not a valid safetensors file: {error}. "
            "It is incomplete or has another format; copy or download it again."
        ) from error


def require_tensors(
    expected: Mapping[str, Tensor], tensors: Mapping[str, Tensor], file: Path
) -> None:
    """Refuse missing and unexpected tensors, other shapes and integer dtypes."""
    problems = [f"tensor {name} is missing" for name in expected if name not in tensors]
    for name, tensor in tensors.items():
        if name not in expected:
            problems.append(f"tensor {name} is not part of this model")
        elif tensor.shape != expected[name].shape:
            shape, actual = list(expected[name].shape), list(tensor.shape)
            problems.append(f"tensor {name} must have shape {shape}, got {actual}")
        elif not tensor.is_floating_point():
            problems.append(f"tensor {name} must be floating point, got {tensor.dtype}")
    if problems:
        shown = "; ".join(problems[:5]) + ("; ..." if len(problems) > 5 else "")
        raise CheckpointError(
            f"{file}: {shown}. The weights and the configuration must belong to the same model; "
            "copy or download both files again."
        )
