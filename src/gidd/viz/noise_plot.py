"""Figure of noise schedules: what tokens become over time, and the ELBO weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from gidd.diffusion.elbo import elbo_weight
from gidd.diffusion.schedule import MixingSchedule
from gidd.viz.figure import (
    COLOURS,
    Values,
    add_legend,
    drawing,
    finish,
    line_handle,
    require_few,
)

_KINDS = {"clean": "-", "masked": "--", "replaced": ":"}
"""Kind of noisy token -> line style."""

_LOGITS = 9.2
"""log(t / (1 - t)) runs over +- this: t from 1e-4 to 1 - 1e-4, the times of training."""


class NamedSchedule(NamedTuple):
    """The noise of a model."""

    label: str
    schedule: MixingSchedule


def plot_noise(schedules: Sequence[NamedSchedule], out: Path) -> None:
    """Plot the fractions of noisy tokens over t, and the ELBO weights (Fig. 2 of the paper).

    The weights are w_t(z_t, x) of Eq. 13 for a token that is clean, masked or replaced.
    """
    require_few(len(schedules), "schedules")
    logits = np.linspace(-_LOGITS, _LOGITS, 400)
    even = np.linspace(0.0, 1.0, 400)
    with drawing(out, (12.0, 5.0)) as figure:
        left, right = figure.subplots(1, 2)
        for (_, schedule), colour in zip(schedules, COLOURS, strict=False):
            for kind, values in _fractions(schedule, even).items():
                left.plot(even, values, _KINDS[kind], color=colour)
            for kind, values in _weights(schedule, 1 / (1 + np.exp(-logits))).items():
                keep = np.isfinite(values) & (values > 0)
                right.semilogy(logits[keep], values[keep], _KINDS[kind], color=colour)
        finish(left, "t", "fraction of tokens")
        finish(right, "log t / (1 - t): from clean to noise", "ELBO weight of a token")
        handles = [line_handle(color=colour) for colour in COLOURS[: len(schedules)]]
        handles += [line_handle(color="grey", linestyle=line) for line in _KINDS.values()]
        names = [*(schedule.label for schedule in schedules), *_KINDS]
        add_legend(figure, handles, names, loc="outside lower center", ncols=len(names))


def _fractions(schedule: MixingSchedule, times: Values) -> dict[str, Values]:
    """Return the marginal probability of every kind of noisy token (Eq. 3)."""
    t = torch.from_numpy(times)
    mask_id = schedule.vocab.mask_id
    # a row of the noise has an entry per token: in chunks, for large vocabularies
    noise = [schedule.beta_pi(part) for part in t.split(16)]
    clean = schedule.alpha(t).numpy()
    total = torch.cat([part.sum(-1) for part in noise]).numpy()
    if mask_id is None:
        return {"clean": clean, "replaced": total}
    masked = torch.cat([part[:, mask_id] for part in noise]).numpy()
    return {"clean": clean, "masked": masked, "replaced": total - masked}


def _weights(schedule: MixingSchedule, times: Values) -> dict[str, Values]:
    """Return w_t(z_t, x) (Eq. 13) of every kind of noisy token."""
    mask_id = schedule.vocab.mask_id
    x, other = [token for token in range(3) if token != mask_id][:2]
    kinds = {"clean": x, "masked": mask_id, "replaced": other}
    found: dict[str, Values] = {}
    for kind, token in kinds.items():
        if token is not None:
            parts = [
                elbo_weight(schedule, t, torch.full((len(t), 1), x), torch.full((len(t), 1), token))
                for t in torch.from_numpy(times).split(16)
            ]
            found[kind] = torch.cat(parts)[:, 0].numpy()
    return found
