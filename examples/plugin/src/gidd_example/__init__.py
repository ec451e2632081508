"""One part of each kind; importing the package registers them.

The entry point in pyproject.toml names this module: gidd imports it when it lists names of parts,
or looks for one that it does not know.
"""

from gidd_example import (
    corpus,
    importer,
    metric,
    network,
    noise,
    objective,
    optimizer,
    sampler,
    weighting,
)

__all__ = [
    "corpus",
    "importer",
    "metric",
    "network",
    "noise",
    "objective",
    "optimizer",
    "sampler",
    "weighting",
]
