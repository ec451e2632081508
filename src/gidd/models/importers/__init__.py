"""Readers of other projects' checkpoints.

`checkpoint` reads configurations and weights; `gidd_v1`, `gidd_scaling`, `dit_family`,
`transformer_family` and `diffusion_gemma` have one function per layout. `hf` reads networks that
are not diffusion models, to fine-tune them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from gidd.common.terminal import shorten
from gidd.errors import CheckpointError, ConfigError
from gidd.models.importers import (
    diffusion_gemma,
    dit_family,
    gidd_scaling,
    gidd_v1,
    transformer_family,
)
from gidd.models.importers.checkpoint import ForeignCheckpoint, read_checkpoint
from gidd.models.weights import Pretrained


class Importer(NamedTuple):
    """One layout."""

    name: str
    matches: Callable[[ForeignCheckpoint], bool]
    """Whether a configuration has this layout."""

    read: Callable[[ForeignCheckpoint], Pretrained]


def _has(name: str, value: str) -> Callable[[ForeignCheckpoint], bool]:
    return lambda checkpoint: checkpoint.field(name) == value


def _is_mdlm(checkpoint: ForeignCheckpoint) -> bool:
    """Whether it is MDLM's: from the hub, or trained by the code of MDLM, Duo or XDLM."""
    if checkpoint.field("model_type") == "mdlm" or checkpoint.field("algo.name") == "mdlm":
        return True
    return checkpoint.field("diffusion") == "absorbing_state" and not checkpoint.field("forward")


def _is_duo(checkpoint: ForeignCheckpoint) -> bool:
    is_run = str(checkpoint.field("algo.name")).startswith("duo")
    return is_run or checkpoint.field("model_type") == "duo"


def _is_sedd(checkpoint: ForeignCheckpoint) -> bool:
    """Whether it is SEDD's, whose configuration has no `model_type`."""
    return checkpoint.field("graph.type") is not None and checkpoint.field("tokens") is not None


IMPORTERS = (
    Importer("GIDD", _has("model_type", "dit"), gidd_v1.read),
    Importer("GIDD scaling", _has("model_type", "gidd"), gidd_scaling.read),
    Importer("SCDD", _has("parameterization", "scdd"), dit_family.read_scdd),
    Importer("XDLM", _has("algo.name", "xdlm"), dit_family.read_xdlm),
    Importer("MDLM", _is_mdlm, dit_family.read_mdlm),
    Importer("Duo", _is_duo, dit_family.read_duo),
    Importer("SEDD", _is_sedd, dit_family.read_sedd),
    Importer("LLaDA", _has("model_type", "llada"), transformer_family.read_llada),
    Importer("Dream", _has("model_type", "Dream"), transformer_family.read_dream),
    Importer("DiffusionGemma", _has("model_type", "diffusion_gemma"), diffusion_gemma.read),
)
"""All layouts, in the order in which they are tried."""


def read_foreign(folder: Path, p_uniform: float | None = None) -> Pretrained:
    """Read a checkpoint of another project, whose layout is told by its `config.json`."""
    checkpoint = read_checkpoint(folder, p_uniform)
    for importer in IMPORTERS:
        if importer.matches(checkpoint):
            if p_uniform is not None and importer.read is not gidd_v1.read:
                raise ConfigError(
                    f"p_uniform is a setting of checkpoints of GIDD, got {p_uniform} for one of "
                    f"{importer.name}, whose noise is in its configuration. Leave it out."
                )
            return importer.read(checkpoint)
    names, model_type = ", ".join(i.name for i in IMPORTERS), checkpoint.field("model_type")
    kind = "a Llama, which is not a diffusion model" if model_type == "llama" else "none of them"
    raise CheckpointError(
        f"{checkpoint.path} must describe a model of {names}, got model_type "
        f"{shorten(model_type)}: {kind}. See docs/importers.md."
    )
