"""Discrete diffusion language models with any interpolating noise.

`gidd.from_pretrained` loads a model to generate, infill, correct and score text; `gidd.train`
trains one; `gidd.diffusion_loss` is the loss for a loop of your own; `gidd.register` adds a noise
schedule, a network or another component by name. docs/architecture.md has the reading order.
"""

from typing import TYPE_CHECKING

from gidd.common.lazy import lazy_exports

if TYPE_CHECKING:
    from gidd.common.config.components import component as component
    from gidd.common.config.registry import register as register
    from gidd.diffusion.loss import diffusion_loss as diffusion_loss
    from gidd.pipeline.load import from_pretrained as from_pretrained
    from gidd.pipeline.pipeline import Pipeline as Pipeline
    from gidd.runs.python_api import train as train
    from gidd.vocab import Vocab as Vocab

__version__ = "0.1.0"
__getattr__, __dir__ = lazy_exports(__name__)
