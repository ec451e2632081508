"""The network that MDLM, Duo, SEDD, XDLM and SCDD share with the authors' code: our `DiT`.

They differ in what is given for the time, in the noise, and in the names of configuration fields.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from gidd.common.terminal import shorten
from gidd.diffusion.schedule import MixingSchedule
from gidd.errors import CheckpointError, ConfigError
from gidd.models.backbones.dit import DiT, dit_from_tensors, require_dit
from gidd.models.backbones.dit_config import TimeMappedConfig
from gidd.models.backbones.layers import ROTARY_BASE
from gidd.models.denoiser import Denoiser
from gidd.models.importers.checkpoint import ROTARY_BUFFER, ForeignCheckpoint, Weights
from gidd.models.importers.gidd_v1 import reference_name
from gidd.models.weights import COPY_AGAIN, Pretrained, Shape
from gidd.vocab import Vocab

_PREFIX = "backbone."
_HUB = {
    "width": "hidden_dim",
    "num_layers": "n_blocks",
    "num_heads": "n_heads",
    "vocab_size": "vocab_size",
}
"""Fields of `DiTConfig` and their names on the hub. Their `cond_dim` can be wrong: not checked."""

_HYDRA = {
    "width": "model.hidden_size",
    "num_layers": "model.n_blocks",
    "num_heads": "model.n_heads",
}
"""The same in the configuration of a training run, which does not hold the vocabulary size."""

_BERT = Vocab(30522, mask_id=103)


class ImportedDiT(NamedTuple):
    """A network and the SHA-256 of its weights."""

    dit: DiT
    sha256: str

    def pretrained(self, schedule: MixingSchedule, *notes: str) -> Pretrained:
        """Return the model with the noise that it was trained with."""
        return Pretrained(
            denoiser=Denoiser(self.dit, schedule.vocab),
            schedule=schedule,
            sha256=self.sha256,
            notes=notes,
        )


def import_dit(checkpoint: ForeignCheckpoint, time: str) -> ImportedDiT:
    """Read the network; `time` is what it was given, "zero" or "sigma".

    Sizes are inferred from the tensors; those of the configuration must be the same.
    """
    is_hub = checkpoint.field("hidden_dim") is not None
    max_length = checkpoint.length("model_length" if is_hub else "model.length")
    weights = checkpoint.weights()
    prefix = _PREFIX if all(name.startswith(_PREFIX) for name in weights.shapes) else ""
    config = _infer_config(weights, prefix, max_length, time)
    names = _HUB if is_hub else _HYDRA
    checkpoint.require_sizes({theirs: getattr(config, ours) for ours, theirs in names.items()})

    def name_in_file(name: str) -> str:
        return prefix + reference_name(name)

    shapes = {name: s for name, s in weights.shapes.items() if name != prefix + ROTARY_BUFFER}
    require_dit(config, shapes, weights.file, name_in_file)
    tensors = weights.read()
    _require_rotary(tensors.pop(prefix + ROTARY_BUFFER), config, weights.file)
    return ImportedDiT(dit_from_tensors(config, tensors, name_in_file).float(), weights.sha256)


def masked_vocab(checkpoint: ForeignCheckpoint, rows: int) -> Vocab:
    """Return the vocabulary: the mask is `mask_token_id`, else BERT's or the last id."""
    if checkpoint.field("mask_token_id") is None:
        return _BERT if rows == _BERT.size else Vocab(rows, mask_id=rows - 1)
    mask_id = checkpoint.integer("mask_token_id")
    if mask_id >= rows:
        raise CheckpointError(
            f"{checkpoint.path}: mask_token_id must be in [0, {rows}), got {shorten(mask_id)}. "
            f"{COPY_AGAIN}"
        )
    return Vocab(rows, mask_id=mask_id)


def _infer_config(weights: Weights, prefix: str, max_length: int, time: str) -> TimeMappedConfig:
    file, shapes = weights.file, weights.shapes
    if (
        f"{prefix}sigma_map.mlp.2.weight" not in shapes
        and f"{prefix}blocks.0.norm1.weight" in shapes
    ):
        raise CheckpointError(
            f"{file}: tensor {prefix}sigma_map.mlp.2.weight is missing: this is an autoregressive "
            "baseline, which is not a diffusion model. Use another checkpoint of the project."
        )
    vocab_size, width = _shape(shapes, f"{prefix}vocab_embed.embedding", 2, file)
    time_width, _ = _shape(shapes, f"{prefix}sigma_map.mlp.2.weight", 2, file)
    (half,) = _shape(shapes, prefix + ROTARY_BUFFER, 1, file)
    block = re.compile(rf"{re.escape(prefix)}blocks\.\d+\.norm1\.weight")
    try:
        return TimeMappedConfig(
            vocab_size=vocab_size,
            max_length=max_length,
            width=width,
            num_layers=sum(bool(block.fullmatch(name)) for name in shapes),
            num_heads=width // max(1, 2 * half),
            time_width=time_width,
            time=time,
        )
    except ConfigError as error:
        raise CheckpointError(f"{file} does not hold a DiT: {error} {COPY_AGAIN}") from error


def _shape(shapes: Mapping[str, Shape], name: str, dims: int, file: Path) -> Shape:
    if name not in shapes or len(shapes[name]) != dims:
        raise CheckpointError(
            f"{file}: tensor {name} is missing or does not have {dims} dimensions; the model sizes "
            f"are inferred from it. {COPY_AGAIN}"
        )
    return shapes[name]


def _require_rotary(found: Tensor, config: TimeMappedConfig, file: Path) -> None:
    head_width = config.width // config.num_heads
    exponent = torch.arange(0, head_width, 2, dtype=torch.float32) / head_width
    expected = ROTARY_BASE**-exponent
    is_close = (found.float() / expected - 1).abs() < 1e-2  # bf16 rounds by 4e-3
    if found.shape != expected.shape or not bool(is_close.all()):
        raise CheckpointError(
            f"{file}: tensor {ROTARY_BUFFER} does not hold the rotary frequencies of base 10000. "
            "The file is damaged, or its position embedding is not supported by DiT."
        )
