"""Processors of x_theta: temperature, truncation, banned and required tokens.

A processor maps rows [K, V] to rows [K, V], and its result replaces x_theta in every formula. So a
truncation has the same effect for any number of steps. (Applied to the probabilities of the reverse
step, which shrink with the step size, it would remove more tokens the more steps there are.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, final

import torch
import torch.nn.functional as F
from torch import Tensor

from gidd.diffusion.categorical import cut_below, cut_below_max, require_cut
from gidd.diffusion.schedule import TINY
from gidd.errors import ConfigError
from gidd.sampling.defaults import MAX_TEMPERATURE
from gidd.vocab import Vocab

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

Processor = Callable[[Tensor], Tensor]
"""Rows of x_theta [K, V] -> rows [K, V]. Equal processors (==) share a batch."""


def temper(p: Float[Tensor, "*batch V"], temperature: float) -> Float[Tensor, "*batch V"]:
    """Compute softmax(logits / temperature) from probabilities; 0 is the one-hot argmax.

    Ties are resolved in favour of the smallest token id.
    """
    if temperature == 1:
        return p
    if temperature < TINY:  # float32 cannot divide by it
        return torch.zeros_like(p).scatter(-1, p.argmax(-1, keepdim=True), 1)
    logits = (p / p.amax(-1, keepdim=True)).log() / temperature
    # probabilities below TINY times the largest become 0: denormal numbers would be slow
    return F.threshold(logits, math.log(TINY), -torch.inf).softmax(-1)


def require_temperature(field: str, temperature: float) -> None:
    """Check that a temperature is not negative and that float32 can represent it."""
    if not 0 <= temperature <= MAX_TEMPERATURE:
        raise ConfigError(
            f"{field} must be a number in [0, {MAX_TEMPERATURE:g}], got {temperature}. 0 always "
            "takes the most likely token, 1 leaves x_theta unchanged; the paper corrects with 0.1 "
            "to 0.5."
        )


@final
@dataclass(frozen=True)
class Temperature:
    """Sampling temperature: below 1 sharpens the distribution, above 1 flattens it; 0 is greedy."""

    value: float

    def __post_init__(self) -> None:
        require_temperature("temperature", self.value)

    def __call__(self, p: Tensor) -> Tensor:
        """Return p^(1 / value), normalised."""
        return temper(p, self.value)


@final
@dataclass(frozen=True)
class TopK:
    """Keep the `number` most likely tokens, and tokens tied with the last of them."""

    number: int

    def __post_init__(self) -> None:
        if self.number < 1:
            raise ConfigError(
                f"top_k.number must be at least 1, got {self.number}. 1 is greedy; omit the "
                "processor to keep all tokens."
            )

    def __call__(self, p: Tensor) -> Tensor:
        """Truncate and normalise."""
        least = p.topk(min(self.number, p.shape[-1]), dim=-1).values[..., -1:]
        return _normalise(torch.where(p >= least, p, 0))


@final
@dataclass(frozen=True)
class TopP:
    """Keep the smallest set of tokens with a total probability of at least `mass` (nucleus)."""

    mass: float

    def __post_init__(self) -> None:
        if not 0 < self.mass <= 1:
            raise ConfigError(
                f"top_p must be in (0, 1], got {self.mass}. It is the probability mass to "
                "keep; 0.9 is common, 1 keeps all tokens."
            )

    def __call__(self, p: Tensor) -> Tensor:
        """Truncate and normalise."""
        if self.mass == 1:
            return p
        ordered, order = p.sort(dim=-1, descending=True, stable=True)
        before = ordered.cumsum(-1) - ordered  # mass of all more likely tokens
        # float32 rounds a smaller mass to 0, and not even the first token would be kept
        kept = torch.where(before < max(self.mass, TINY), ordered, 0)
        return _normalise(torch.zeros_like(p).scatter(-1, order, kept))


@final
@dataclass(frozen=True)
class CutOff:
    """Drop tokens with a probability below `minimum`; called min-p in the paper's App. G."""

    minimum: float

    def __post_init__(self) -> None:
        require_cut("minimum", self.minimum)

    def __call__(self, p: Tensor) -> Tensor:
        """Truncate and normalise; the most likely token is always kept."""
        return cut_below(p, self.minimum)


@final
@dataclass(frozen=True)
class MinP:
    """Drop tokens less likely than `ratio` times the most likely token (standard min-p)."""

    ratio: float

    def __post_init__(self) -> None:
        require_cut("ratio", self.ratio)

    def __call__(self, p: Tensor) -> Tensor:
        """Truncate and normalise."""
        return cut_below_max(p, self.ratio)


@final
@dataclass(frozen=True)
class Require:
    """Allow only these tokens; uniform over them if all have probability 0."""

    vocab: Vocab
    tokens: frozenset[int]

    def __post_init__(self) -> None:
        if not self.tokens or not self.tokens <= _data_tokens(self.vocab):
            raise ConfigError(
                f"required tokens must be at least one token id in [0, {self.vocab.size}), without "
                f"the mask ({self.vocab.mask_id}), got {sorted(self.tokens)[:10]}. Encode the text "
                "with the model's own tokenizer."
            )

    @cached_property
    def _allowed(self) -> Bool[Tensor, " V"]:
        allowed = torch.zeros(self.vocab.size, dtype=torch.bool)
        allowed[sorted(self.tokens)] = True
        return allowed

    def __call__(self, p: Tensor) -> Tensor:
        """Truncate and normalise."""
        allowed = self._allowed.to(p.device)
        kept = torch.where(allowed, p, 0)
        is_empty = kept.sum(-1, keepdim=True) == 0
        return _normalise(torch.where(is_empty & allowed, 1, kept))


def ban(vocab: Vocab, tokens: Iterable[int]) -> Require:
    """Make a processor that never predicts these tokens."""
    banned, known = set(tokens), _data_tokens(vocab)
    if not banned <= set(range(vocab.size)) or banned >= known:
        raise ConfigError(
            f"banned tokens must be token ids in [0, {vocab.size}) and leave at least one token, "
            f"got {len(banned)} ids such as {sorted(banned)[:10]}. Encode the text with the "
            "model's own tokenizer."
        )
    return Require(vocab, known - banned)


def _data_tokens(vocab: Vocab) -> frozenset[int]:
    return frozenset(range(vocab.size)) - {vocab.mask_id}


def _normalise(p: Tensor) -> Tensor:
    return p / p.sum(-1, keepdim=True)
