"""Processors of x_theta: temperature, truncation, banned and required tokens.

A processor maps rows of x_theta [K, V] to rows [K, V], given their positions [K] in the sequence
and the request. Its result replaces x_theta in every formula, so a truncation has the same effect
for any number of steps. (Applied to the probabilities of the reverse step, which shrink with the
step size, it would remove more tokens the more steps there are.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from inspect import signature
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor

from gidd.common.config.allowed import problems_of, require_none
from gidd.common.terminal import shorten
from gidd.diffusion.categorical import CUT_OFF, cut_below, cut_below_max
from gidd.diffusion.schedule import TINY
from gidd.errors import ConfigError
from gidd.sampling.ranges import TEMPERATURE, TOP_K, TOP_P
from gidd.vocab import Vocab

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

Processor = Callable[[Tensor, Tensor, Any], Tensor]
"""(rows of x_theta [K, V], their positions [K], the `Request`) -> rows [K, V].

A processor with the attribute `ignores_request = True` is called once for the rows of all requests
that have an equal one (==), with None in place of the request. A processor that depends on a
vocabulary may have a method `check(vocab)`, which raises `ConfigError` if it is another one; it is
called before a request is admitted.
"""

MAX_LOGIT_BIAS = 100
"""The largest bias of a token, as in OpenAI's API."""

_KEPT_MASKS = 256  # number of sets of tokens whose masks are kept, on each device


class _RowProcessor:
    """Base of processors that change each row of x_theta by itself; fields are checked."""

    ignores_request = True

    def __post_init__(self) -> None:
        require_none(problems_of(self, f"{type(self).__name__}."))


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


@final
@dataclass(frozen=True)
class Temperature(_RowProcessor):
    """Sampling temperature: below 1 sharpens the distribution, above 1 flattens it; 0 is greedy."""

    value: Annotated[float, TEMPERATURE]

    def __call__(self, p: Tensor, *_: object) -> Tensor:
        """Return p^(1 / value), normalised."""
        return temper(p, self.value)


@final
@dataclass(frozen=True)
class TopK(_RowProcessor):
    """Keep the `k` most likely tokens, and tokens tied with the last of them."""

    k: Annotated[int, TOP_K]

    def __call__(self, p: Tensor, *_: object) -> Tensor:
        """Truncate and normalise."""
        least = p.topk(min(self.k, p.shape[-1]), dim=-1).values[..., -1:]
        return _normalise(torch.where(p >= least, p, 0))


@final
@dataclass(frozen=True)
class TopP(_RowProcessor):
    """Keep the smallest set of tokens with a total probability of at least `mass` (nucleus)."""

    mass: Annotated[float, TOP_P]

    def __call__(self, p: Tensor, *_: object) -> Tensor:
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
class EpsilonCutoff(_RowProcessor):
    """Drop tokens with a probability below `minimum`; called min-p in the paper's App. G."""

    minimum: Annotated[float, CUT_OFF]

    def __call__(self, p: Tensor, *_: object) -> Tensor:
        """Truncate and normalise; the most likely token is always kept."""
        return cut_below(p, self.minimum)


@final
@dataclass(frozen=True)
class MinP(_RowProcessor):
    """Drop tokens less likely than `ratio` times the most likely token (standard min-p)."""

    ratio: Annotated[float, CUT_OFF]

    def __call__(self, p: Tensor, *_: object) -> Tensor:
        """Truncate and normalise."""
        return cut_below_max(p, self.ratio)


@dataclass(frozen=True)
class _TokenSet(_RowProcessor):
    """Allow or ban a set of tokens; uniform over the allowed ones if all have probability 0."""

    vocab: Vocab
    tokens: frozenset[int]
    are_allowed: ClassVar[bool]

    def __post_init__(self) -> None:
        size, mask = self.vocab.size, self.vocab.mask_id
        wrong = [v for v in self.tokens if v not in range(size) or self.are_allowed and v == mask]
        if wrong or self.num_allowed < 1:
            raise ConfigError(
                f"{self._name} must be token ids in [0, {size}) and allow at least one token, "
                f"not the mask ({mask}), got {(wrong or sorted(self.tokens))[:10]}. Encode the "
                "text with the model's own tokenizer."
            )

    @property
    def _name(self) -> str:
        return "required tokens" if self.are_allowed else "banned tokens"

    @property
    def num_allowed(self) -> int:
        """Number of tokens that may be predicted; the mask never is."""
        num_tokens = len(self.tokens - {self.vocab.mask_id})
        return num_tokens if self.are_allowed else self.vocab.num_data_tokens - num_tokens

    def check(self, vocab: Vocab) -> None:
        """Raise `ConfigError` if the tokens belong to another vocabulary."""
        _require_vocab(self._name, self.vocab, vocab)

    def allowed(self, device: torch.device) -> Bool[Tensor, " V"]:
        """Return the tokens that may be predicted; the same tensor for equal processors."""
        return _mask(self, device)

    def __call__(self, p: Tensor, *_: object) -> Tensor:
        """Truncate and normalise."""
        allowed = self.allowed(p.device)
        kept = torch.where(allowed, p, 0)
        is_empty = kept.sum(-1, keepdim=True) == 0
        return _normalise(torch.where(is_empty & allowed, 1, kept))


@final
class Require(_TokenSet):
    """Allow only these tokens; uniform over them if all have probability 0."""

    are_allowed = True


@final
class Ban(_TokenSet):
    """Never predict these tokens; uniform over all others if those have probability 0."""

    are_allowed = False


@final
@dataclass(frozen=True)
class RequireAt(_RowProcessor):
    """Allow only some tokens at some positions."""

    tokens: Require
    positions: frozenset[int]

    def check(self, vocab: Vocab) -> None:
        """Raise `ConfigError` if the tokens belong to another vocabulary."""
        self.tokens.check(vocab)

    def __call__(self, p: Tensor, positions: Tensor, _: object) -> Tensor:
        """Truncate and normalise the rows at these positions."""
        is_here = torch.isin(positions, torch.tensor(sorted(self.positions), device=p.device))
        return torch.where(is_here[:, None], self.tokens(p), p)


@final
@dataclass(frozen=True)
class LogitBias(_RowProcessor):
    """Add numbers to the logits of some tokens: -100 excludes a token, 100 requires it."""

    vocab: Vocab
    biases: frozenset[tuple[int, float]]
    """Pairs of a token and its bias."""

    def __post_init__(self) -> None:
        size, mask_id = self.vocab.size, self.vocab.mask_id
        tokens = [token for token, _ in self.biases]
        wrong = sorted(v for v in tokens if v not in range(size) or v == mask_id)
        large = [bias for _, bias in self.biases if not abs(bias) <= MAX_LOGIT_BIAS]
        if wrong or large or len(set(tokens)) < len(tokens):
            raise ConfigError(
                f"logit_bias must be numbers in [-{MAX_LOGIT_BIAS}, {MAX_LOGIT_BIAS}] by token id "
                f"in [0, {size}), each once, not the mask ({mask_id}), got {(wrong or large)[:10]}."
            )

    def check(self, vocab: Vocab) -> None:
        """Raise `ConfigError` if the tokens belong to another vocabulary."""
        _require_vocab("logit_bias", self.vocab, vocab)

    def __call__(self, p: Tensor, *_: object) -> Tensor:
        """Return p exp(bias), normalised."""
        return (p.log() + _bias_row(self, p.device)).softmax(-1)


def ban(vocab: Vocab, tokens: Iterable[int]) -> Ban:
    """Return a processor that never predicts these tokens; the same object for equal sets."""
    return _kept_ban(vocab, frozenset(tokens))


_kept_ban = lru_cache(maxsize=_KEPT_MASKS)(Ban)


# kept, so that a call uploads nothing; also used outside of inference mode
@lru_cache(maxsize=_KEPT_MASKS)
@torch.inference_mode(False)
def _mask(processor: _TokenSet, device: torch.device) -> Bool[Tensor, " V"]:
    vocab = processor.vocab
    allowed = torch.full((vocab.size,), not processor.are_allowed)
    allowed[sorted(processor.tokens)] = processor.are_allowed
    if vocab.mask_id is not None:
        allowed[vocab.mask_id] = False
    return allowed.to(device)


@lru_cache(maxsize=_KEPT_MASKS)
@torch.inference_mode(False)
def _bias_row(processor: LogitBias, device: torch.device) -> Float[Tensor, " V"]:
    row = torch.zeros(processor.vocab.size)
    for token, bias in processor.biases:
        row[token] = bias
    return row.to(device)


def _require_vocab(name: str, token_vocab: Vocab, vocab: Vocab) -> None:
    if (token_vocab.size, token_vocab.mask_id) != (vocab.size, vocab.mask_id):
        raise ConfigError(
            f"{name} must belong to the model's vocabulary, {vocab}, got tokens of "
            f"{token_vocab}. Encode the text with the model's own tokenizer."
        )


def require_three_arguments(processor: Processor) -> None:
    """Raise `ConfigError` if a function cannot be called with rows, positions and request."""
    if getattr(processor, "ignores_request", False):
        return
    try:
        signature(processor).bind(None, None, None)
    except TypeError as error:
        raise ConfigError(
            "a processor must be a function of (rows, positions, request), got "
            f"{shorten(processor)}: {error}. Write lambda rows, positions, request: ..."
        ) from error


def require_tokens_left(processors: Sequence[Processor]) -> None:
    """Raise `ConfigError` if required and banned tokens leave no token that may be predicted."""
    sets = [p for p in processors if isinstance(p, _TokenSet)]
    if len(sets) < 2:  # each set alone leaves a token
        return
    left = set(range(sets[0].vocab.size)) - {sets[0].vocab.mask_id}
    for processor in sets:
        left = left & processor.tokens if processor.are_allowed else left - processor.tokens
    if not left:
        raise ConfigError(
            f"request.processors must leave at least one token, but the {len(sets)} sets of banned "
            "and required tokens together leave no token. Remove one of them."
        )


def _normalise(p: Tensor) -> Tensor:
    return p / p.sum(-1, keepdim=True)
