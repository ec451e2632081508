"""Tensor files of a saved model: atomic writes, checked reads, no pickles.

Files are not trusted: a reader compares names and shapes of the header before it builds anything.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from gidd.common.files import RECORD_BYTES, atomic_path, explain_damage, file_kind
from gidd.common.terminal import shorten
from gidd.diffusion.schedule import MixingSchedule
from gidd.errors import CheckpointError, ConfigError, ScheduleError
from gidd.models.denoiser import Denoiser

Shape = tuple[int, ...]

WEIGHTS = "model.safetensors"
COPY_AGAIN = "Copy or download the file again."
_COPY_WHOLE = "It is incomplete or not a safetensors file; copy or download it again."
COPY_BOTH_AGAIN = "Copy or download the weights and the configuration of one model again."
PICKLE_SUFFIXES = (".bin", ".ckpt", ".pkl", ".pickle", ".pt", ".pth")
_PICKLE = (
    "is a pickle, which is never loaded: it can run arbitrary code. If you trust it, convert it "
    "with torch.load(..., weights_only=True) and safetensors.torch.save_file."
)
_DTYPES = ("F32", "F64", "F16", "BF16")
_SHOWN = 5
"""Number of wrong tensors that a message names."""


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """A model as loaded from a folder."""

    denoiser: Denoiser
    schedule: MixingSchedule
    """The noise schedule the model was trained with."""
    summary: dict[str, Any] = field(default_factory=lambda: {})
    """What the training recorded: steps, loss, data. Empty if nothing was recorded."""
    sha256: str
    """SHA-256 of the file of weights."""
    notes: tuple[str, ...] = ()
    """Assumptions made while loading that the user should know about."""
    has_unused_rows: bool = False
    """Whether the last ids may be rows without a token; the tokenizer then has fewer tokens."""
    folder: Path | None = None
    """Where it was found."""


def write_safetensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write finite tensors to a file, atomically; equal tensors give equal bytes."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    require_finite(plain, path)
    with explain_write_failure(path), atomic_path(path) as temporary:
        mode = temporary.stat().st_mode
        save_file(plain, temporary, metadata={"format": "pt"})
        temporary.chmod(mode)  # safetensors ignores the umask and creates files with mode 0600


@contextmanager
def blame_file(file: Path | str, remedy: str = COPY_AGAIN) -> Generator[None]:
    """Raise `CheckpointError` for settings read from a file that are not allowed."""
    try:
        yield
    except (ConfigError, ScheduleError) as error:
        raise CheckpointError(f"{file}: {error} {remedy}") from error


@contextmanager
def explain_write_failure(path: Path) -> Generator[None]:
    """Raise a `CheckpointError` if writing a model file fails, for example on a full disk."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        remedy = "Free disk space, fix the permissions, or write to another folder."
        raise CheckpointError(f"{path} could not be written: {error}. {remedy}") from error


def read_shapes(path: Path) -> dict[str, Shape]:
    """Read names and shapes of the tensors of a safetensors file, all of floating point."""
    _require_safetensors(path)
    with explain_damage(str(path), _COPY_WHOLE, CheckpointError):
        with path.open("rb") as file:
            num_bytes = int.from_bytes(file.read(8), "little")
        if num_bytes < path.stat().st_size:  # otherwise it is not a safetensors file
            RECORD_BYTES.require(num_bytes, f"the header of {path}", CheckpointError)
        shapes: dict[str, Shape] = {}
        with safe_open(path, framework="numpy") as file:
            names: list[str] = file.keys()
            for name in names:
                part = file.get_slice(name)
                dtype = str(part.get_dtype())
                if dtype not in _DTYPES:
                    must = "float32, float64, float16 or bfloat16"
                    required = f"tensor {shorten(name)} must be {must}, got {shorten(dtype)}"
                    raise CheckpointError(f"{path}: {required}. Convert the weights.")
                shapes[name] = tuple(part.get_shape())
    return shapes


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Read all tensors of a safetensors file, which must be finite; call `read_shapes` first."""
    _require_safetensors(path)
    with explain_damage(str(path), _COPY_WHOLE, CheckpointError):
        tensors = load_file(path)
        require_finite(tensors, path)
    return tensors


def _require_safetensors(path: Path) -> None:
    if path.suffix in PICKLE_SUFFIXES:
        raise CheckpointError(f"{path} {_PICKLE}")
    if path.exists() and not path.is_file():
        raise CheckpointError(f"{path} must be a regular file, got a {file_kind(path)}.")
    if not path.is_file():
        pickled = sorted(p.name for p in path.parent.glob("*") if p.suffix in PICKLE_SUFFIXES)
        pickles = f"{', '.join(pickled[:_SHOWN])} in the same folder {_PICKLE}"
        hint = pickles if pickled else "Check the path, or download the checkpoint again."
        raise CheckpointError(f"{path} does not exist. {hint}")


def require_finite(tensors: Mapping[str, Tensor], file: Path | str) -> None:
    """Refuse NaN and infinity, of which no sample or score could be computed."""
    for name, tensor in tensors.items():
        # extremes are NaN if any element is; unlike isfinite() this makes no copy
        if tensor.numel() and not torch.stack(torch.aminmax(tensor.detach())).isfinite().all():
            problem = f"tensor {shorten(name)} holds NaN or infinity"
            raise CheckpointError(f"{file}: {problem}. Use a checkpoint from before it diverged.")


def require_tensors(expected: Mapping[str, Shape], shapes: Mapping[str, Shape], file: Path) -> None:
    """Refuse missing and unexpected tensors, and other shapes than expected."""

    def wrong() -> Iterator[str]:
        for name in (name for name in expected if name not in shapes):
            yield f"tensor {shorten(name)} is missing"
        for name, shape in shapes.items():
            if name not in expected:
                yield f"tensor {shorten(name)} is not part of this model"
            elif shape != expected[name]:
                right, got = (shorten(list(sizes)) for sizes in (expected[name], shape))
                yield f"tensor {shorten(name)} must have shape {right}, got {got}"

    if problems := list(islice(wrong(), _SHOWN + 1)):
        shown = "; ".join(problems[:_SHOWN]) + ("; ..." if len(problems) > _SHOWN else "")
        raise CheckpointError(f"{file}: {shown}. {COPY_BOTH_AGAIN}")


@contextmanager
def keep_tied(model: nn.Module) -> Generator[None]:
    """Tie again what was tied before: torch replaces a parameter once for each of its names."""
    groups: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        groups.setdefault(id(parameter), []).append(name)
    yield
    for first, *others in groups.values():
        for name in others:
            owner, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(owner), attribute, model.get_parameter(first))
