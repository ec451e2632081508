"""Networks that predict clean tokens, and how they are saved and loaded.

Reading order: `backbones/dit` (the diffusion transformer), `denoiser` (from hidden states to
x_theta), `weights` and `hub` (save, load, push), `importers/` (checkpoints of other projects).
"""

from typing import TYPE_CHECKING

from gidd.common.lazy import lazy_exports

if TYPE_CHECKING:
    from gidd.models.backbones.dit import DiT as DiT
    from gidd.models.backbones.dit_config import SIZES as SIZES, DiTConfig as DiTConfig
    from gidd.models.denoiser import Backbone as Backbone, Denoiser as Denoiser, Head as Head
    from gidd.models.hub import (
        load as load,
        load_pretrained as load_pretrained,
        push_to_hub as push_to_hub,
        save as save,
    )
    from gidd.models.importers.gidd_v1 import read_training as read_training
    from gidd.models.weights import Pretrained as Pretrained

__getattr__, __dir__ = lazy_exports(__name__)
