"""MAUVE (Pillutla et al. 2021): how close samples are to reference texts, as distributions."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from gidd.common.optional import optional_package
from gidd.errors import DataError
from gidd.evaluation.results import Measurement

if TYPE_CHECKING:
    from gidd.evaluation.samples.grader import Grader

MAUVE_RULE: Final = (
    "mauve-text with its default settings, seed 25; features are the grader's last hidden state at "
    "the last token of a truncated text. Depends on the grader and on both numbers of texts."
)
_FEWEST = 4


def mauve_score(grader: Grader, samples: Sequence[str], reference: Sequence[str]) -> Measurement:
    """Return MAUVE of samples and reference texts, in (0, 1]; 1 if they cannot be told apart.

    It has no standard error. The authors of MAUVE use thousands of texts: compare only results with
    the same number of texts, and read differences from few texts with care.
    """
    library = optional_package("mauve", "eval")
    features: list[Any] = []
    for what, texts in (("samples", samples), ("reference texts", reference)):
        filled = [text for text in texts if text]
        if len(filled) < _FEWEST:
            raise DataError(
                f"MAUVE needs at least {_FEWEST} {what} that are not empty, got {len(filled)}."
            )
        features.append(grader.features(filled))
    with warnings.catch_warnings():  # of k-means about few points
        warnings.simplefilter("ignore")
        found = library.compute_mauve(p_features=features[0], q_features=features[1], verbose=False)
    return Measurement(float(found.mauve), None, min(map(len, features)))
