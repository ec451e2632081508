"""Changes to x_theta that a caller asks for: temperature, cut-offs, banned and required tokens.

A processor takes rows [K, V] and returns rows [K, V]. Samplers see the result wherever the formulas
say x_theta, so a cut-off means the same for any number of steps. (Applied to the reverse step's
probabilities, which shrink with the step, it would cut more the more steps there are.)
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
from gidd.vocab import Vocab

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

Processor = Callable[[Tensor], Tensor]
"""Rows of x_theta [K, V] -> rows [K, V]. Equal processors (==) share a batch."""


def temper(p: Float[Tensor, "*batch V"], temperature: float) -> Float[Tensor, "*batch V"]:
    """softmax(logits / temperature), from probabilities; 0 puts all mass on the most likely token.

    Of equally likely tokens the one with the smallest id is the most likely.
    """
    if temperature == 1:
        return p
    if temperature < TINY:  # smaller than float32 can divide by
        return torch.zeros_like(p).scatter(-1, p.argmax(-1, keepdim=True), 1)
    logits = (p / p.amax(-1, keepdim=True)).log() / temperature
    # what is below TINY times the largest is nothing: denormal numbers would take most of the time
    return F.threshold(logits, math.log(TINY), -torch.inf).softmax(-1)


def require_temperature(field: str, temperature: float) -> None:
    """Refuse what is not a temperature."""
    if not 0 <= temperature < float("inf"):
        raise ConfigError(
            f"{field} must be a finite number of at least 0, got {temperature}. 0 always takes the "
            "most likely token, 1 leaves x_theta as it is; the paper corrects with 0.1 to 0.5."
        )


@final
@dataclass(frozen=True)
class Temperature:
    """Below 1 likely tokens become likelier, above 1 all become more alike; 0 is greedy."""

    value: float

    def __post_init__(self) -> None:
        """Refuse negative temperatures."""
        require_temperature("temperature", self.value)

    def __call__(self, p: Tensor) -> Tensor:
        """p^(1 / value), normalised."""
        return temper(p, self.value)


@final
@dataclass(frozen=True)
class TopK:
    """Only the `number` most likely tokens; those as likely as the last of them stay too."""

    number: int

    def __post_init__(self) -> None:
        """Refuse to keep nothing."""
        if self.number < 1:
            raise ConfigError(
                f"top_k.number must be at least 1, got {self.number}. 1 is greedy; leave the "
                "processor out to cut nothing."
            )

    def __call__(self, p: Tensor) -> Tensor:
        """Cut and normalise."""
        least = p.topk(min(self.number, p.shape[-1]), dim=-1).values[..., -1:]
        return _normalised(torch.where(p >= least, p, 0))


@final
@dataclass(frozen=True)
class TopP:
    """The fewest tokens that together have at least `mass` (nucleus sampling)."""

    mass: float

    def __post_init__(self) -> None:
        """Refuse what is not a share."""
        if not 0 < self.mass <= 1:
            raise ConfigError(
                f"top_p must be in (0, 1], got {self.mass}. It is the probability that is "
                "kept; 0.9 is common, 1 cuts nothing."
            )

    def __call__(self, p: Tensor) -> Tensor:
        """Cut and normalise."""
        if self.mass == 1:
            return p
        ordered, order = p.sort(dim=-1, descending=True, stable=True)
        likelier = ordered.cumsum(-1) - ordered  # mass of all tokens before this one
        kept = torch.where(likelier < self.mass, ordered, 0)
        return _normalised(torch.zeros_like(p).scatter(-1, order, kept))


@final
@dataclass(frozen=True)
class CutOff:
    """Drop tokens less likely than `minimum`: what the paper's App. G calls min-p."""

    minimum: float

    def __post_init__(self) -> None:
        """Refuse what is not a probability."""
        require_cut("minimum", self.minimum)

    def __call__(self, p: Tensor) -> Tensor:
        """Cut and normalise; the most likely token always stays."""
        return cut_below(p, self.minimum)


@final
@dataclass(frozen=True)
class MinP:
    """Drop tokens less likely than `ratio` times the most likely one (min-p proper)."""

    ratio: float

    def __post_init__(self) -> None:
        """Refuse what is not a ratio."""
        require_cut("ratio", self.ratio)

    def __call__(self, p: Tensor) -> Tensor:
        """Cut and normalise."""
        return cut_below_max(p, self.ratio)


@final
@dataclass(frozen=True)
class Require:
    """Only these tokens may be predicted. If all of them have probability 0, each is as likely."""

    vocab: Vocab
    tokens: frozenset[int]

    def __post_init__(self) -> None:
        """Refuse ids that the vocabulary has not, the mask, and an empty set."""
        if not self.tokens or not self.tokens <= _data_tokens(self.vocab):
            raise ConfigError(
                f"required tokens must be ids in [0, {self.vocab.size}), at least one and never "
                f"the mask ({self.vocab.mask_id}), got {sorted(self.tokens)[:10]}. Encode the text "
                "with the model's own tokenizer."
            )

    @cached_property
    def _allowed(self) -> Bool[Tensor, " V"]:
        allowed = torch.zeros(self.vocab.size, dtype=torch.bool)
        allowed[sorted(self.tokens)] = True
        return allowed

    def __call__(self, p: Tensor) -> Tensor:
        """Cut and normalise."""
        allowed = self._allowed.to(p.device)
        kept = torch.where(allowed, p, 0)
        lost = kept.sum(-1, keepdim=True) == 0
        return _normalised(torch.where(lost & allowed, 1, kept))


def ban(vocab: Vocab, tokens: Iterable[int]) -> Require:
    """These tokens are never predicted."""
    banned, known = set(tokens), _data_tokens(vocab)
    if not banned <= set(range(vocab.size)) or banned >= known:
        raise ConfigError(
            f"banned tokens must be ids in [0, {vocab.size}) and leave at least one token, got "
            f"{len(banned)} ids such as {sorted(banned)[:10]}. Encode the text with the model's "
            "own tokenizer."
        )
    return Require(vocab, known - banned)


def _data_tokens(vocab: Vocab) -> frozenset[int]:
    return frozenset(range(vocab.size)) - {vocab.mask_id}


def _normalised(p: Tensor) -> Tensor:
    return p / p.sum(-1, keepdim=True)
