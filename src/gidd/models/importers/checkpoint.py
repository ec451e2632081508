"""A folder with a checkpoint of another project: its `config.json` and its weights, not trusted."""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast, final

import torch
from torch import Tensor, nn

from gidd.common.files import (
    CONTEXT_TOKENS,
    MANIFEST_BYTES,
    RECORD_BYTES,
    explain_damage,
    read_json,
    sha256,
)
from gidd.common.terminal import shorten
from gidd.diffusion.schedule import MixingSchedule
from gidd.errors import CheckpointError
from gidd.models.denoiser import Backbone, Denoiser
from gidd.models.networks import network_from_tensors, require_network
from gidd.models.weights import (
    COPY_AGAIN,
    COPY_BOTH_AGAIN,
    WEIGHTS,
    Pretrained,
    Shape,
    read_safetensors,
    read_shapes,
    require_finite,
    require_tensors,
)

CONFIG = "config.json"
ROTARY_BUFFER = "rotary_emb.inv_freq"
MASKING_ALONE = (
    "The model was trained with masking alone: it predicts masked tokens only. Confidence in "
    "visible tokens is not available, and `correct` is refused."
)
_INDEX = "model.safetensors.index.json"
_SHARD = r"model-\d{5}-of-\d{5}\.safetensors"
_PICKLES = ("*.ckpt", "*.pth")
_NEUTRAL = re.compile(
    r"_?name_or_path|architectures|auto_map|(torch_)?dtype|transformers_version|model_type|"
    r"initializer_range|.*_token_id|.*_dropout|use_cache|(id2)?label(2id)?|num_labels|"
    r"(output|return|vision|audio|video|image)_.*|generation_config"
)
"""Fields of any configuration that do not change what a network for text computes."""
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_CONVERT = f"Convert it if you trust it: save its EMA with safetensors.torch as {WEIGHTS}."


@final
@dataclass(frozen=True)
class Weights:
    """Tensors of a checkpoint: their shapes are read first, their values when asked for."""

    file: Path
    """The file that messages name."""
    shapes: dict[str, Shape]
    read: Callable[[], dict[str, Tensor]]
    sha256: str

    def shape(self, name: str, dims: int) -> Shape:
        """Return the shape of a tensor, which must have this number of dimensions."""
        if len(shape := self.shapes.get(name, ())) != dims:
            problem = f"tensor {name} is missing or does not have {dims} dimensions"
            raise CheckpointError(f"{self.file}: {problem}. {COPY_AGAIN}")
        return shape

    def count(self, name: str) -> int:
        """Return the number of tensors with a name like this one of block 0."""
        pattern = re.escape(name).replace("0", r"\d+", 1)
        return sum(bool(re.fullmatch(pattern, other)) for other in self.shapes)

    def network(
        self, config: Any, name_in_file: Callable[[str], str], constants: Constants | None = None
    ) -> nn.Module:
        """Build a network of all tensors, but of `constants`, which must have their values."""
        stored = constants or Constants({}, dict)
        present = {name: shape for name, shape in self.shapes.items() if name in stored.shapes}
        require_tensors(stored.shapes, present, self.file)
        rest = {name: shape for name, shape in self.shapes.items() if name not in present}
        require_network(config, rest, self.file, name_in_file)
        tensors = self.read()
        for name, value in stored.values().items():
            if not torch.allclose(tensors.pop(name).float(), value, rtol=1e-2, atol=stored.atol):
                problem = f"tensor {name} does not hold the rotary constants of base 10000"
                raise CheckpointError(f"{self.file}: {problem}. {COPY_AGAIN}")
        return network_from_tensors(config, tensors, name_in_file)

    def pretrained(self, network: nn.Module, schedule: MixingSchedule, *notes: str) -> Pretrained:
        """Return the model with the noise that it was trained with."""
        denoiser = Denoiser(cast(Backbone, network), schedule.vocab)
        return Pretrained(denoiser=denoiser, schedule=schedule, sha256=self.sha256, notes=notes)


class Constants(NamedTuple):
    """Buffers of a file, which are computed here: their shapes, and their values."""

    shapes: Mapping[str, Shape]
    values: Callable[[], dict[str, Tensor]]
    """Called after the shapes have been found in the file."""
    atol: float = 0.0
    """Absolute tolerance, in addition to a relative one: bf16 rounds by 4e-3."""


@final
@dataclass(frozen=True)
class ForeignCheckpoint:
    """A folder and its parsed `config.json`."""

    folder: Path
    config: Mapping[str, Any]
    p_uniform: float | None = None
    """Fraction of uniform noise as the caller gave it; only for layouts that do not record it."""

    @property
    def path(self) -> Path:
        """The configuration file."""
        return self.folder / CONFIG

    def field(self, name: str) -> Any:
        """Return an entry of the configuration, nested ones as "model.length"; None if missing."""
        value: Any = self.config
        for key in name.split("."):
            value = cast("dict[str, Any]", value).get(key) if isinstance(value, dict) else None
        return value

    def invalid(self, name: str, must: str, remedy: str = COPY_AGAIN) -> CheckpointError:
        """Return the error of an entry that is not what it must be."""
        value = shorten(self.field(name))
        return CheckpointError(f"{self.path}: {name} must be {must}, got {value}. {remedy}")

    def require(self, name: str, *allowed: object) -> Any:
        """Return an entry, which must have one of these values; 1 is 1.0, but not True."""
        value = self.field(name)
        is_bool = isinstance(value, bool)
        if not any(value == option and is_bool is isinstance(option, bool) for option in allowed):
            must = " or ".join(map(repr, allowed))
            raise self.invalid(name, must, "Other models of this project are not supported.")
        return value

    def integer(self, name: str, least: int = 0, most: int | None = None) -> int:
        """Return an entry that must be an integer in a range."""
        value = self.field(name)
        if type(value) is not int or value < least or (most is not None and value > most):
            must = f"of at least {least}" if most is None else f"in [{least}, {most}]"
            raise self.invalid(name, f"an integer {must}")
        return value

    def number(self, name: str, most: float = 1e30) -> float:
        """Return an entry that must be a positive, finite number."""
        value = self.field(name)
        if type(value) not in (int, float) or not 0 < value <= most:
            raise self.invalid(name, f"a number in (0, {most:g}]")
        return float(value)

    def length(self, name: str) -> int:
        """Return an entry that is the longest sequence, which no tensor shows."""
        length = self.integer(name)
        CONTEXT_TOKENS.require(length, f"{self.path}: {name}", CheckpointError)
        return length

    def mask_id(self, num_rows: int) -> int:
        """Return `mask_token_id`, which must be a row of the embedding."""
        mask_id = self.integer("mask_token_id")
        if mask_id >= num_rows:
            raise self.invalid("mask_token_id", f"in [0, {num_rows})")
        return mask_id

    def require_sizes(self, sizes: Mapping[str, int]) -> None:
        """Refuse a configuration with other sizes than those of the tensors."""
        for name, size in sizes.items():
            if self.integer(name) != size:
                raise self.invalid(name, f"{size}, the size of the tensors", COPY_BOTH_AGAIN)

    def require_known(self, name: str, *known: str) -> None:
        """Refuse fields of an entry ("": of the file) that have no meaning here but a value."""
        fields = cast("object", self.field(name) if name else self.config)
        if not isinstance(fields, Mapping):
            raise self.invalid(name, "an object")
        for field, value in cast("Mapping[str, Any]", fields).items():
            if value and field not in known and not _NEUTRAL.fullmatch(field):
                must = "absent, as its meaning is not known here"
                raise self.invalid(f"{name}.{field}".removeprefix("."), must, "Use another model.")

    def weights(self) -> Weights:
        """Return the weights: safetensors, in one or several files, or else a plain pickle."""
        pickles = sorted(path for pattern in _PICKLES for path in self.folder.glob(pattern))
        has_safetensors = (self.folder / WEIGHTS).exists() or (self.folder / _INDEX).is_file()
        if len(pickles) == 1 and not has_safetensors:
            return _open_pickle(pickles[0])
        return self.safetensors()

    def safetensors(self) -> Weights:
        """Return the weights of one safetensors file, or of the files of an index."""
        if not (self.folder / WEIGHTS).exists() and (self.folder / _INDEX).is_file():
            return _open_shards(self.folder / _INDEX)
        return open_safetensors(self.folder / WEIGHTS)


def read_checkpoint(folder: Path, p_uniform: float | None = None) -> ForeignCheckpoint:
    """Read the configuration of a folder."""
    config = read_json(folder / CONFIG, COPY_AGAIN, CheckpointError)
    return ForeignCheckpoint(folder, config, p_uniform)


def open_safetensors(file: Path) -> Weights:
    """Open one file."""
    shapes = read_shapes(file)
    return Weights(file, shapes, lambda: read_safetensors(file), sha256(file))


def _open_shards(index: Path) -> Weights:
    """Open the files of an index, each of which must hold exactly the tensors listed for it."""
    listed: object = read_json(index, COPY_AGAIN, CheckpointError, MANIFEST_BYTES).get("weight_map")
    names = cast("dict[str, object]", listed) if isinstance(listed, dict) else {}
    shards = sorted(set(map(str, names.values())))
    wrong = [name for name in shards if not re.fullmatch(_SHARD, name)]
    if not names or wrong:
        required = "weight_map must map tensors to files model-00001-of-00002.safetensors"
        raise CheckpointError(f"{index}: {required}, got {shorten(wrong or listed)}. {COPY_AGAIN}")
    shapes: dict[str, Shape] = {}
    for shard in shards:
        shapes_of_shard = read_shapes(index.parent / shard)
        if shapes_of_shard.keys() != {name for name, place in names.items() if place == shard}:
            required = f"must hold the tensors that {index.name} lists for it"
            raise CheckpointError(f"{index.parent / shard} {required}. {COPY_AGAIN}")
        shapes |= shapes_of_shard

    def read() -> dict[str, Tensor]:
        files = [read_safetensors(index.parent / shard) for shard in shards]
        return {name: tensor for tensors in files for name, tensor in tensors.items()}

    digests = "".join(sha256(index.parent / shard) for shard in shards)
    return Weights(index, shapes, read, hashlib.sha256(digests.encode()).hexdigest())


def _open_pickle(file: Path) -> Weights:
    """Open the EMA of a training checkpoint of plain dictionaries and tensors (`weights_only`).

    The archive is not compressed and is mapped into memory: nothing larger than the file is read.
    """
    if not file.is_file():
        raise CheckpointError(f"{file} must be a regular file. {COPY_AGAIN}")
    with explain_damage(str(file), _CONVERT, CheckpointError):
        if not zipfile.is_zipfile(file):
            raise CheckpointError(f"{file} is not an archive of torch.save. {_CONVERT}")
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                if member.compress_type != zipfile.ZIP_STORED:
                    raise CheckpointError(f"{file} must not be compressed. {_CONVERT}")
                if member.filename.endswith(".pkl"):
                    RECORD_BYTES.require(member.file_size, f"{file}: the pickle", CheckpointError)
        content: object = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        tensors = _ema(content, file)
        total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        if total > file.stat().st_size:
            raise CheckpointError(f"{file}: tensors must not share memory. {_CONVERT}")

    def read() -> dict[str, Tensor]:
        require_finite(tensors, file)
        return tensors

    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    return Weights(file, shapes, read, sha256(file))


def _ema(content: object, file: Path) -> dict[str, Tensor]:
    """Return the EMA by name: a list in the order of the weights, without the rotary buffer."""
    parts = cast("dict[str, Any]", content) if isinstance(content, dict) else {}
    raw = parts.get("state_dict", parts.get("model"))  # Lightning, SEDD
    ema = parts.get("ema")
    shadow = cast("dict[str, Any]", ema).get("shadow_params") if isinstance(ema, dict) else None
    if not isinstance(raw, dict) or not isinstance(shadow, list):
        got = shorten(sorted(map(str, parts)))
        required = "must hold state_dict or model, and ema with shadow_params"
        raise CheckpointError(f"{file} {required}, got {got}. {_CONVERT}")
    named = {str(name): tensor for name, tensor in cast("dict[object, Any]", raw).items()}
    trained = [name for name in named if not name.endswith(ROTARY_BUFFER)]
    averages = cast("list[Any]", shadow)
    if len(trained) != len(averages):
        required = f"ema.shadow_params must have one tensor for each of the {len(trained)} weights"
        raise CheckpointError(f"{file}: {required}, got {len(averages)}. {_CONVERT}")
    merged = named | dict(zip(trained, averages, strict=True))
    for name, tensor in merged.items():
        is_dense = isinstance(tensor, Tensor) and tensor.layout is torch.strided
        is_plain = is_dense and tensor.device.type == "cpu" and tensor.is_contiguous()
        if not is_plain or tensor.dtype not in _DTYPES:
            required = f"{shorten(name)} must be a dense tensor of float32, float16 or bfloat16"
            raise CheckpointError(f"{file}: {required}. {_CONVERT}")
    return {name: tensor.detach() for name, tensor in merged.items()}
