"""gidd-unif-3b, gidd-unif-10b and gidd-mask-3b: the authors' models of arXiv 2512.10858."""

from __future__ import annotations

import math
from typing import cast

from gidd.diffusion.schedules import MaskedSchedule, UniformSchedule
from gidd.errors import CheckpointError, ConfigError
from gidd.models.backbones.scaled import ScaledConfig
from gidd.models.denoiser import Backbone, Denoiser
from gidd.models.importers.checkpoint import MASKING_ALONE, ForeignCheckpoint
from gidd.models.networks import network_from_tensors, require_network
from gidd.models.weights import COPY_AGAIN, Pretrained
from gidd.vocab import Vocab

MASK_ID = 3
"""Of the tokenizer; `config.json` does not have it."""

_UNIFORM, _MASKED = 1000.0, -1000.0
"""`noise_type` b: noise is uniform with probability sigmoid(log SNR + b), otherwise a mask."""

_MAX_LOG_SNR = 9.0
_EPS = 1 / (1 + math.exp(_MAX_LOG_SNR))
"""Training times t = 1 - alpha lie in [eps, 1 - eps]."""

_REQUIRED = {
    "use_qk_norm": True,
    "attention_bias": True,
    "mlp_bias": True,
    "is_causal": False,
    "tie_word_embeddings": False,
    "rope_scaling": None,
    "weight_scaling": 1.0,
    "min_log_snr": -_MAX_LOG_SNR,
    "max_log_snr": _MAX_LOG_SNR,
}
"""Fields of the published models. Defaults of the authors' class differ: none may be missing."""

_PROMPT = (
    "A prompt attends to all tokens. In the authors' sampler it attends to itself only and begins "
    "with <|begin_of_text|>, and all sequences have 2,048 tokens: shorter ones were not trained."
)


def read(checkpoint: ForeignCheckpoint) -> Pretrained:
    """Read a model with alpha = 1 - t and uniform or masking noise.

    With uniform noise x_theta is the distribution given all other tokens, as everywhere here.
    """
    for name, value in _REQUIRED.items():
        checkpoint.require(name, value)
    is_uniform = checkpoint.require("noise_type", _UNIFORM, _MASKED) == _UNIFORM
    weights = checkpoint.safetensors()
    vocab_size, width = weights.shape("model.embed_tokens.weight", 2)
    num_heads, head_width = weights.shape("model.layers.0.self_attn.k_bias", 2)
    try:
        config = ScaledConfig(
            vocab_size=vocab_size,
            max_length=checkpoint.length("max_position_embeddings"),
            width=width,
            num_layers=weights.count("model.layers.0.attn_layernorm.weight"),
            num_heads=num_heads,
            residual_scale=checkpoint.number("resid_scale"),
            head_scale=checkpoint.number("head_scaling"),
            soft_cap=checkpoint.number("attn_soft_cap"),
            rotary_base=checkpoint.number("rope_theta"),
            norm_eps=checkpoint.number("rms_norm_eps"),
        )
        vocab = Vocab(vocab_size, mask_id=MASK_ID)
    except ConfigError as error:
        raise CheckpointError(f"{checkpoint.path}: {error} {COPY_AGAIN}") from error
    sizes = {"vocab_size": vocab_size, "hidden_size": width, "intermediate_size": 4 * width}
    sizes |= {"num_hidden_layers": config.num_layers, "num_attention_heads": num_heads}
    checkpoint.require_sizes(sizes | {"head_dim": head_width})
    require_network(config, weights.shapes, weights.file, _name_in_file)
    # copies of the vectors: a norm, float32 already, would keep its whole file mapped in float32
    tensors = {n: w.clone() if w.dim() == 1 else w for n, w in weights.read().items()}
    network = network_from_tensors(config, tensors, _name_in_file)
    return Pretrained(
        denoiser=Denoiser(cast(Backbone, network), vocab),
        schedule=UniformSchedule(vocab) if is_uniform else MaskedSchedule(vocab),
        summary={"times": [_EPS, 1 - _EPS]},
        sha256=weights.sha256,
        notes=(_PROMPT,) if is_uniform else (MASKING_ALONE, _PROMPT),
    )


def _name_in_file(name: str) -> str:
    return "lm_head.weight" if name == "head.weight" else f"model.{name}"
