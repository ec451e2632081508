"""A training run from its configuration to a model.

Reading order: `presets` (named configurations), `fit` (train), `data` (prepare what a run reads),
`evaluate`, `export` (from the newest checkpoint to a model). Names are imported on first use;
import `fit` and `export` from their modules, which have the same names.
"""

from typing import TYPE_CHECKING

from gidd.common.lazy import lazy_exports

if TYPE_CHECKING:
    from gidd.runs.data import ensure_prepared as ensure_prepared
    from gidd.runs.evaluate import unigram_entropy as unigram_entropy, validate as validate
    from gidd.runs.presets import PRESETS as PRESETS

__getattr__, __dir__ = lazy_exports(__name__)
