"""Networks for a `Denoiser`, registered by their configurations, dataclasses with a `build`."""

from typing import TYPE_CHECKING

from gidd.common.lazy import lazy_exports

if TYPE_CHECKING:
    from gidd.models.backbones.bidirectional import BidirectionalConfig as BidirectionalConfig
    from gidd.models.backbones.dit_config import (
        DiTConfig as DiTConfig,
        TimeMappedConfig as TimeMappedConfig,
    )
    from gidd.models.backbones.hf_config import (
        BidirectionalLMConfig as BidirectionalLMConfig,
        MaskedLMConfig as MaskedLMConfig,
    )
    from gidd.models.backbones.scaled import GiddScalingConfig as GiddScalingConfig

COMPONENTS = {
    "dit": "DiTConfig",
    "time_mapped_dit": "TimeMappedConfig",
    "bidirectional": "BidirectionalConfig",
    "scaled": "GiddScalingConfig",
    "llama-bidirectional": "BidirectionalLMConfig",
    "masked-lm": "MaskedLMConfig",
}
"""Configurations by name."""
__getattr__, __dir__ = lazy_exports(__name__)
