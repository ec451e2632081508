"""Readers of other projects' checkpoints, one module per layout.

`checkpoint` reads configurations and weights; `dit_family` and `transformer_family` build the
networks. `hf` reads networks that are not diffusion models, to fine-tune them. Every other module
is a layout: `matches` tells it by its configuration, `read` loads it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from gidd.common.terminal import shorten
from gidd.errors import CheckpointError, ConfigError
from gidd.models.importers import dream, duo, gidd_v1, llada, mdlm, scdd, sedd, xdlm
from gidd.models.importers.checkpoint import ForeignCheckpoint, read_checkpoint
from gidd.models.weights import Pretrained


class Importer(NamedTuple):
    """One layout."""

    name: str
    matches: Callable[[ForeignCheckpoint], bool]
    read: Callable[[ForeignCheckpoint], Pretrained]


IMPORTERS = (
    Importer("GIDD", gidd_v1.matches, gidd_v1.read),
    Importer("SCDD", scdd.matches, scdd.read),
    Importer("XDLM", xdlm.matches, xdlm.read),
    Importer("MDLM", mdlm.matches, mdlm.read),
    Importer("Duo", duo.matches, duo.read),
    Importer("SEDD", sedd.matches, sedd.read),
    Importer("LLaDA", llada.matches, llada.read),
    Importer("Dream", dream.matches, dream.read),
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
    model_type = checkpoint.field("model_type")
    kind = "a Llama, which is not a diffusion model" if model_type == "llama" else "none of them"
    raise CheckpointError(
        f"{checkpoint.path} must describe a model of {', '.join(i.name for i in IMPORTERS)}, got "
        f"model_type {shorten(model_type)}: {kind}. docs/importers.md lists the files that are "
        "read."
    )
