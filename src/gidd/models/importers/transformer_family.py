"""The network of LLaDA and Dream: a bidirectional Llama or Qwen2 that is trained with masks."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from gidd.common.terminal import shorten
from gidd.diffusion.schedules import MaskedSchedule
from gidd.errors import CheckpointError, ConfigError
from gidd.models.backbones.bidirectional import (
    BidirectionalConfig,
    bidirectional_from_tensors,
    require_bidirectional,
)
from gidd.models.denoiser import Denoiser
from gidd.models.importers.checkpoint import MASKING_ALONE, ForeignCheckpoint
from gidd.models.weights import COPY_AGAIN, Pretrained
from gidd.vocab import Vocab

NameInFile = Callable[[str], str]


def import_transformer(
    checkpoint: ForeignCheckpoint, name_in_file: NameInFile, sizes: dict[str, str], **fixed: Any
) -> Pretrained:
    """Read the network; sizes are inferred from the tensors and compared with the configuration.

    Args:
        checkpoint: The folder.
        name_in_file: From names of `BidirectionalTransformer` to those in the file.
        sizes: Fields of `BidirectionalConfig` and their names in the configuration.
        **fixed: Fields of `BidirectionalConfig` that no tensor shows.
    """
    weights, mask_id = checkpoint.weights(), checkpoint.integer("mask_token_id")

    def shape(name: str) -> tuple[int, int]:
        found = weights.shapes.get(name_in_file(name), ())
        if len(found) != 2:
            raise CheckpointError(
                f"{weights.file}: tensor {name_in_file(name)} is missing or does not have 2 "
                f"dimensions; the model sizes are inferred from it. {COPY_AGAIN}"
            )
        return found[0], found[1]

    num_heads = checkpoint.integer(sizes["num_heads"])
    norm = re.escape(name_in_file("layers.0.input_layernorm.weight")).replace("0", r"\d+", 1)
    vocab_size, width = shape("embed_tokens.weight")
    try:
        config = BidirectionalConfig(
            vocab_size=vocab_size,
            width=width,
            mlp_width=shape("layers.0.mlp.gate_proj.weight")[0],
            num_layers=sum(bool(re.fullmatch(norm, name)) for name in weights.shapes),
            num_heads=num_heads,
            num_kv_heads=shape("layers.0.self_attn.k_proj.weight")[0] * num_heads // max(1, width),
            **fixed,
        )
    except ConfigError as error:
        raise CheckpointError(f"{checkpoint.path}: {error} {COPY_AGAIN}") from error
    checkpoint.require_sizes({theirs: getattr(config, ours) for ours, theirs in sizes.items()})
    if mask_id >= vocab_size:
        raise CheckpointError(
            f"{checkpoint.path}: mask_token_id must be in [0, {vocab_size}), got "
            f"{shorten(mask_id)}. {COPY_AGAIN}"
        )
    require_bidirectional(config, weights.shapes, weights.file, name_in_file)
    network = bidirectional_from_tensors(config, weights.read(), name_in_file)
    vocab = Vocab(vocab_size, mask_id=mask_id)
    return Pretrained(
        denoiser=Denoiser(network, vocab),
        schedule=MaskedSchedule(vocab),
        sha256=weights.sha256,
        notes=(MASKING_ALONE,),
        has_unused_rows=True,
    )
