"""Networks that predict clean tokens, and how they are saved.

Reading order: `layers`, `dit` (the diffusion transformer), `denoiser` (from features to x_theta),
`hub` (save, load), `reference` (the authors' checkpoints), `autoregressive` (the baseline).
"""

from gidd.models.backbones.dit import SIZES, DiT, DiTConfig
from gidd.models.backbones.llama import AutoregressiveModel, llama_config
from gidd.models.denoiser import Backbone, Denoiser, Head
from gidd.models.hub import load, load_pretrained, push_to_hub, save
from gidd.models.importers.gidd_v1 import export_reference, read_published, read_training
from gidd.models.weights import Pretrained

__all__ = [
    "SIZES",
    "AutoregressiveModel",
    "Backbone",
    "Denoiser",
    "DiT",
    "DiTConfig",
    "Head",
    "Pretrained",
    "export_reference",
    "load_pretrained",
    "llama_config",
    "load",
    "push_to_hub",
    "read_published",
    "read_training",
    "save",
]
