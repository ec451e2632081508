"""Discrete diffusion language models with any interpolating noise.

The mathematics is in `gidd.diffusion`; sources whose posteriors are known exactly are in
`gidd.sources`.
"""

__version__ = "0.1.0.dev0"
