"""DiffusionGemma: google/diffusiongemma-26B-A4B-it and models of its layout, without images."""

from __future__ import annotations

from typing import cast

from gidd.common.files import explain_damage
from gidd.common.limits import CONTEXT_TOKENS
from gidd.diffusion.schedules import UniformSchedule
from gidd.errors import CheckpointError
from gidd.models.backbones.diffusion_gemma import (
    MIN_TIME,
    DiffusionGemmaConfig,
    require_transformers,
)
from gidd.models.denoiser import Backbone, Denoiser
from gidd.models.importers.checkpoint import ForeignCheckpoint
from gidd.models.networks import network_from_tensors, require_network
from gidd.models.weights import COPY_BOTH_AGAIN, Pretrained
from gidd.vocab import Vocab

_VISION = ("model.encoder.vision_tower.", "model.encoder.embed_vision.")
_REQUIRED = {
    "tie_word_embeddings": (True,),
    "text_config.tie_word_embeddings": (True, None),
    "text_config.use_bidirectional_attention": ("vision", None),
}

_POSTERIOR = (
    "The model predicts the posterior of a token given all tokens of its canvas, at a noise level "
    "that it infers. x_theta is converted from it for the time of a step, which is exact only "
    "where the canvas reveals that time. `correct` uses the posterior itself."
)
_CANVAS = (
    "Tokens are predicted in canvases of {} from the end of a sequence on: a token is conditioned "
    "on its canvas and on the text before it, never on text after the canvas."
)


def read(checkpoint: ForeignCheckpoint) -> Pretrained:
    """Read a model with alpha = 1 - t and uniform noise over all tokens; there is no mask."""
    require_transformers()
    for name, allowed in _REQUIRED.items():
        checkpoint.require(name, *allowed)
    weights = checkpoint.safetensors()
    vocab_size, width = weights.shape("model.decoder.embed_tokens.weight", 2)
    num_layers = weights.count("model.decoder.layers.0.layer_scalar")
    sizes = {"vocab_size": vocab_size, "hidden_size": width, "num_hidden_layers": num_layers}
    checkpoint.require_sizes({f"text_config.{name}": size for name, size in sizes.items()})
    num_positions = checkpoint.integer("text_config.max_position_embeddings")
    config = DiffusionGemmaConfig(
        text_config=checkpoint.field("text_config"),
        vocab_size=vocab_size,
        max_length=min(num_positions - 1, CONTEXT_TOKENS.value),  # the first is the bos token
        num_layers=num_layers,
        canvas_length=int(checkpoint.number("canvas_length")),
        bos_id=checkpoint.integer("text_config.bos_token_id"),
    )
    shapes = {n: s for n, s in weights.shapes.items() if not n.startswith(_VISION)}
    with explain_damage(str(checkpoint.path), COPY_BOTH_AGAIN, CheckpointError):
        require_network(config, shapes, weights.file, _name_in_file)
        network = network_from_tensors(config, weights.read(), _name_in_file)
    vocab = Vocab(vocab_size)
    return Pretrained(
        denoiser=Denoiser(cast(Backbone, network), vocab),
        schedule=UniformSchedule(vocab),
        summary={"times": [MIN_TIME, 1.0]},
        sha256=weights.sha256,
        notes=(_POSTERIOR, _CANVAS.format(config.canvas_length)),
    )


def _name_in_file(name: str) -> str:
    return f"model.{name}".replace("model.encoder.", "model.encoder.language_model.", 1)
