"""Shared by all layers.

Files and input from outside: `files` (atomic writes, bounded reads), `limits`, `urls` (secrets stay
out of records), `terminal` (printable text). Configuration: `registry` (parts by name), `options`,
`parts`, `codec` (dataclasses as JSON and YAML), `allowed` (ranges of values). Execution: `devices`,
`kernels`, `actors` (Ray). Imports: `lazy` (exports on first use), `optional` (extras).
"""
