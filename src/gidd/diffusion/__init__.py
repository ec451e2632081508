"""The mathematics of interpolating discrete diffusion. It needs torch and nothing else.

Reading order: `schedule` (what noise is), `schedules/`, `process` (what it does to tokens), `elbo`
(what it costs to undo), `weighting/`, `times`, `randomness`, `categorical`.
"""
