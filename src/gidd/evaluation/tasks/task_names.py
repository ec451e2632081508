"""Names of tasks: those of the paper, and how it writes them."""

from __future__ import annotations

from collections.abc import Sequence

PAPER = "paper"
"""All tasks of the paper."""

PAPER_TASKS = {
    "arc_easy": "arc",
    "arc_challenge": "arc",
    "boolq": "super_glue/boolq",
    "hellaswag": "hellaswag",
    "piqa": "piqa",
    "openbookqa": "openbookqa",
    "winogrande": "winogrande",
}
"""Tasks of the paper (Tab. on zero-shot accuracy): their folders in lm_eval."""

_ALIASES = {"arc-e": "arc_easy", "arc-c": "arc_challenge", "obqa": "openbookqa"}


def resolve_names(names: Sequence[str]) -> list[str]:
    """Return tasks without repetition, with the paper's names as those of lm_eval."""
    found: list[str] = []
    for name in names:
        key = name.lower()
        if key == PAPER:
            found += PAPER_TASKS
        elif key in _ALIASES or key in PAPER_TASKS:
            found.append(_ALIASES.get(key, key))
        else:
            found.append(name)
    return list(dict.fromkeys(found))
