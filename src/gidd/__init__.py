"""Discrete diffusion language models with any interpolating noise.

The mathematics is in `gidd.diffusion`; sources whose posteriors are known exactly are in
`gidd.sources`. `gidd.from_pretrained` makes a trained model a tool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gidd.pipeline import from_pretrained as from_pretrained

__version__ = "0.1.0.dev0"


def __getattr__(name: str) -> Any:
    """`from_pretrained` is imported when it is used: `import gidd` stays light."""
    if name != "from_pretrained":
        raise AttributeError(f"module 'gidd' has no attribute {name!r}")
    from gidd.pipeline import from_pretrained

    return from_pretrained
