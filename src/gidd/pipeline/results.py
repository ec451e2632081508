"""What a pipeline gives back: text, what the network thinks of it, and how it came about."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, final

from gidd.sampling import Edit, Frame

ResultManifest = dict[str, Any]
"""All that is needed to get the result again: versions, model, schedule, plan, seed, device."""


@final
@dataclass(frozen=True, kw_only=True)
class Trace:
    """What happened to one sequence that the engine worked on."""

    tokens: tuple[int, ...]
    """The whole sequence at the end, tokens after end-of-text included."""

    protected: tuple[bool, ...]
    """What could not change: given text, and the context of a window."""

    edits: tuple[Edit, ...]
    """Every token that was replaced, in order; noise and undone changes included."""

    frames: tuple[Frame, ...] = ()
    """The sequence before every move and at the end, if it was watched; else empty."""

    calls: int = 0
    """Network calls that the sequence needed."""

    offset: int = 0
    """Where the sequence begins in the text, in tokens."""


@final
@dataclass(frozen=True, kw_only=True)
class Generation:
    """A text that was sampled."""

    text: str
    tokens: tuple[int, ...]
    """Those of the text: up to end-of-text."""

    filled: tuple[str, ...]
    """What was written into each blank, in order."""

    confidence: tuple[float, ...]
    """x_theta of each token given all others: how sure the network is of it, in the end.

    A network of masking noise alone cannot judge tokens that it sees. For such a network it is what
    x_theta was when the token was written, and 1 for tokens that were given.
    """

    calls: int
    """Network calls that the sampler made for this text."""

    trace: Trace
    manifest: ResultManifest


class Replacement(NamedTuple):
    """A token of a text that was corrected."""

    position: int
    """Which token of the text."""

    start: int
    """Where it begins in the original text, in characters."""

    old: str
    new: str

    confidence_before: float
    """x_theta of the old token in the original text."""

    confidence_after: float
    """x_theta of the new token in the corrected text."""


@final
@dataclass(frozen=True, kw_only=True)
class Correction:
    """A text that was corrected."""

    text: str
    original: str
    tokens: tuple[int, ...]
    replacements: tuple[Replacement, ...]
    """Where original and corrected text differ, in order."""

    confidence: tuple[float, ...]
    """x_theta of each token of the corrected text given all others; 1 for line breaks and all else
    that is not for correction."""

    self_accuracy: tuple[float, float]
    """Share of tokens that the network finds most likely, in the original and in the end."""

    calls: int
    traces: tuple[Trace, ...]
    """One for each window of the text."""

    manifest: ResultManifest


@final
@dataclass(frozen=True, kw_only=True)
class Scores:
    """How likely a model finds a text."""

    text: str
    tokens: tuple[int, ...]

    confidence: tuple[float, ...] | None
    """x_theta of each token given all others; None if noise was masking alone.

    A network of masking noise has never been asked about tokens that it sees.
    """

    nelbo: float
    """Estimate of the bound -log p(text) <= NELBO, in nats; `manifest["estimator"]` says how."""

    standard_error: float
    """Of `nelbo`, over repetitions with other times and other noise."""

    calls: int
    manifest: ResultManifest

    @property
    def nats_per_token(self) -> float:
        """The bound for one token."""
        return self.nelbo / len(self.tokens)

    @property
    def perplexity(self) -> float:
        """At most this, per token."""
        return math.exp(min(self.nats_per_token, 700.0))
