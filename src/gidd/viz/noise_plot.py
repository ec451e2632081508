"""Figure of noise schedules: what tokens become over time, and the ELBO weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from gidd.diffusion.elbo import elbo_weight
from gidd.diffusion.schedule import MixingSchedule
from gidd.viz.figure import COLOURS, Values, add_legend, drawing, finish, line_handle, require_few

_KINDS = {"clean": "-", "masked": "--", "replaced": ":"}  # kinds of noisy tokens, their lines


def plot_noise(schedules: Sequence[tuple[str, MixingSchedule]], out: Path) -> None:
    """Plot the fractions of noisy tokens over t, and the ELBO weights (Fig. 2), with labels.

    The weights are w_t(z_t, x) of Eq. 13 for a token that is clean, masked or replaced.
    """
    require_few(len(schedules), "schedules")
    logits = np.linspace(-9.2, 9.2, 400)  # t from 1e-4 to 1 - 1e-4, the times of training
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
        names = [*(label for label, _ in schedules), *_KINDS]
        add_legend(figure, handles, names, loc="outside lower center", ncols=len(names))


def _fractions(schedule: MixingSchedule, times: Values) -> dict[str, Values]:
    """Return the marginal probability of every kind of noisy token (Eq. 3)."""
    t, mask_id = torch.from_numpy(times), schedule.vocab.mask_id
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
    found: dict[str, Values] = {}
    for kind, token in {"clean": x, "masked": mask_id, "replaced": other}.items():
        if token is not None:
            parts = torch.from_numpy(times).split(16)
            tokens = [(torch.full((len(t), 1), x), torch.full((len(t), 1), token)) for t in parts]
            weights = [elbo_weight(schedule, t, *z) for t, z in zip(parts, tokens, strict=True)]
            found[kind] = torch.cat(weights)[:, 0].numpy()
    return found
