"""Which settings of a run may change when it is resumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from gidd.common.codec import to_plain
from gidd.errors import ConfigError

MAY_CHANGE_ON_RESUME = frozenset(
    {
        "train.steps",
        "train.accumulate",
        "train.compile",
        "train.report_every",
        "train.evaluate_every",
        "train.evaluate_samples",
        "train.generate_samples",
        "train.save_every",
        "train.max_steps_ahead_of_save",
        "train.keep",
        "train.keep_every",
        "train.timeout",
        "data.folder",
        "data.workers",
        "backbone.checkpoint_activations",
        # to recover a run that has diverged
        "optim.learning_rate",
        "optim.warmup",
        "optim.final_lr_ratio",
        "optim.max_grad_norm",
    }
)
"""Settings that may change on resume, besides those of `parallel`."""


def require_same_training(before: Any, now: Any) -> list[str]:
    """Refuse to resume a run with other settings; return the permitted changes as lines."""
    old, new = _leaves(to_plain(before)), _leaves(to_plain(now))
    changed = sorted(name for name in old | new if old.get(name) != new.get(name))
    changed = [name for name in changed if not name.startswith("parallel")]
    lines = {name: f"{name}: {old.get(name)} -> {new.get(name)}" for name in changed}
    # with a prepared folder, sources are not read
    allowed = MAY_CHANGE_ON_RESUME | ({"data.sources"} if new.get("data.folder") else set())
    refused = [line for name, line in lines.items() if name not in allowed]
    if refused:
        raise ConfigError(
            "the checkpoint belongs to a run with other settings:\n  "
            + "\n  ".join(refused)
            + "\nUse the same settings to resume it, or another --out to start a new run."
        )
    return list(lines.values())


def _leaves(plain: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for name, value in plain.items():
        if isinstance(value, Mapping):
            leaves |= _leaves(cast("Mapping[str, Any]", value), f"{prefix}{name}.")
        else:
            leaves[prefix + name] = value
    return leaves
