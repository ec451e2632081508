"""Shared by all layers.

Files and input from outside: `files` (atomic writes, bounded reads), `limits`, `urls` (secrets stay
out of records), `terminal` (printable text), `messages` (and progress). Configuration: `registry`
(components by name), `options`, `components`, `codec` (dataclasses as JSON and YAML), `allowed`
(ranges of values). Execution: `devices`, `kernels`, `actors` (Ray). Imports: `lazy`, `optional`.
"""
