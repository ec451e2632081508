"""Readers of other projects' checkpoints: a function per layout, all with `checkpoint`.

`hf` reads networks that are not diffusion models, to fine-tune them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from gidd.common.config.components import component
from gidd.common.config.registry import component_names
from gidd.common.terminal import shorten
from gidd.errors import CheckpointError, ConfigError
from gidd.models.importers import dit_family, gidd_v1
from gidd.models.importers.checkpoint import ForeignCheckpoint, read_checkpoint
from gidd.models.importers.transformer_family import read_diffusion_gemma, read_dream, read_llada
from gidd.models.weights import Pretrained


class Importer(ABC):
    """One layout: to add one, register a subclass with @gidd.register("importer", NAME)."""

    @abstractmethod
    def matches(self, checkpoint: ForeignCheckpoint) -> bool:
        """Return whether a configuration has this layout."""

    @abstractmethod
    def read(self, checkpoint: ForeignCheckpoint) -> Pretrained:
        """Read the model; what is wrong with its files is a `CheckpointError`."""


class Layout(NamedTuple):
    """The importer of a layout that gidd reads itself."""

    matches: Callable[[ForeignCheckpoint], bool]
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


COMPONENTS: dict[str, Layout] = {
    "gidd": Layout(_has("model_type", "dit"), gidd_v1.read),
    "gidd-scaling": Layout(_has("model_type", "gidd"), gidd_v1.read_scaling),
    "scdd": Layout(_has("parameterization", "scdd"), dit_family.read_scdd),
    "xdlm": Layout(_has("algo.name", "xdlm"), dit_family.read_xdlm),
    "mdlm": Layout(_is_mdlm, dit_family.read_mdlm),
    "duo": Layout(_is_duo, dit_family.read_duo),
    "sedd": Layout(_is_sedd, dit_family.read_sedd),
    "llada": Layout(_has("model_type", "llada"), read_llada),
    "dream": Layout(_has("model_type", "Dream"), read_dream),
    "diffusion-gemma": Layout(_has("model_type", "diffusion_gemma"), read_diffusion_gemma),
}
"""Layouts by name, in the order in which they are tried; registered ones follow."""


def find_importer(checkpoint: ForeignCheckpoint) -> tuple[str, Importer | Layout] | None:
    """Return name and importer of the layout that a configuration has, or None."""
    for name in component_names("importer"):
        importer = COMPONENTS.get(name) or component("importer", name).build()
        if importer.matches(checkpoint):
            return name, importer
    return None


def read_foreign(folder: Path, p_uniform: float | None = None) -> Pretrained:
    """Read a checkpoint of another project, whose layout is told by its `config.json`."""
    checkpoint = read_checkpoint(folder, p_uniform)
    checkpoint.require("quantization_config", None)
    if entry := find_importer(checkpoint):
        name, importer = entry
        if p_uniform is not None and name != "gidd":
            raise ConfigError(
                f"p_uniform is a setting of checkpoints of gidd, got {p_uniform} for one of "
                f"{name}, whose noise is in its configuration. Leave it out."
            )
        return importer.read(checkpoint)
    names, model_type = ", ".join(component_names("importer")), checkpoint.field("model_type")
    kind = "a Llama, which is not a diffusion model" if model_type == "llama" else "none of them"
    raise CheckpointError(
        f"{checkpoint.path} must describe a model of {names}, got model_type "
        f"{shorten(model_type)}: {kind}. See docs/importers.md."
    )
