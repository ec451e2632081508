"""The pseudo-log-likelihood of texts: one forward pass each, since x_theta is leave-one-out."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, final

import gidd
from gidd.sampling import (
    PosteriorPass,
    WindowReader,
    WindowTokens,
    read_own_probability,
    run_sync,
)
from gidd_proof.confidence import Crop

CACHED_SCORES: Final = 1 << 16
"""Scores that are kept: a text that is checked again after an edit costs its new sentences only."""

_LEAST = 1e-4
"""Lower bound of probabilities, so that one character decides no comparison alone."""

_OTHER = "-"
"""What the network reads in place of characters that it does not know."""


_CROPS_PER_PASS = 16
"""Candidates in a forward pass: on a CPU, twice as fast as one by one."""


def likelihood_scorer(
    pipe: gidd.Pipeline, noise_rate: float
) -> Callable[[Sequence[Crop]], list[float]]:
    """Return the function that scores crops with the network of a pipeline, and keeps the scores.

    Args:
        pipe: A pipeline whose tokens are characters.
        noise_rate: Fraction of wrong characters at which the network reads texts.
    """
    known = map(pipe.decoder.decode_one, range(pipe.schedule.vocab.size))
    characters = frozenset(text for text in known if len(text) == 1)
    score = CandidateScorer(pipe.window_reader(_CROPS_PER_PASS), pipe.tokenizer, characters)
    time = PosteriorPass(pipe.window_reader()).time(noise_rate)
    return lambda crops: run_sync(score(crops, time))


class CharacterEncoder(Protocol):
    """A tokenizer with one token per character."""

    def encode(self, text: str, /) -> list[int]:
        """Return the tokens of a text."""
        ...


@final
@dataclass(frozen=True)
class CandidateScorer:
    """Computes sum_i log x_theta(z_i | Z, t) over the characters of crops.

    x_theta at position i does not depend on z_i, so this is the pseudo-log-likelihood in a single
    forward pass; a masked model needs one forward pass per position.
    """

    reader: WindowReader
    tokenizer: CharacterEncoder
    characters: frozenset[str]
    """The characters that the network knows."""

    _scores: dict[Crop, float] = field(default_factory=dict[Crop, float], repr=False)

    async def __call__(self, crops: Sequence[Crop], time: float) -> list[float]:
        """Return the pseudo-log-likelihood of each crop, in nats."""
        missing = list(dict.fromkeys(crop for crop in crops if crop not in self._scores))
        missing.sort(key=lambda crop: len(crop.text))  # crops of one length share forward passes
        windows = ((self._window(crop), time) for crop in missing)
        values = await self.reader.read(windows, read_own_probability)
        if len(self._scores) + len(missing) > CACHED_SCORES:
            self._scores.clear()
        for crop, (probability,) in zip(missing, values, strict=True):
            scored = probability[crop.start : crop.stop]
            self._scores[crop] = float(scored.clamp_min(_LEAST).log().double().sum())
        return [self._scores[crop] for crop in crops]

    def _window(self, crop: Crop) -> WindowTokens:
        tokens = tuple(self.tokenizer.encode("".join(map(self._known, crop.text))))
        return WindowTokens(tokens, tuple(crop.start <= i < crop.stop for i in range(len(tokens))))

    def _known(self, character: str) -> str:
        """Return a character that the network knows: itself, without its accent, or another."""
        if character in self.characters:
            return character
        plain = "'" if character == "’" else unicodedata.normalize("NFKD", character)[0]
        return plain if plain in self.characters else _OTHER
