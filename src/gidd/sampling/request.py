"""Requests: given tokens and blanks, what may change, how to sample; and their results."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, cast, final

from torch import Tensor

from gidd.common.allowed import (
    SEED,
    Allowed,
    choice,
    field_problems,
    integer,
    number,
    optional,
    require_arguments,
)
from gidd.diffusion.schedule import MixingSchedule
from gidd.errors import ConfigError, DataError
from gidd.sampling.plan import Plan, is_hashable_function
from gidd.sampling.processors import Processor, require_tokens_left
from gidd.vocab import Vocab

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


Tokens = tuple[int | None, ...]
"""Token ids; None is a blank to fill."""

_MAX_LENGTH = 1 << 24
"""Maximum length of a sequence, which is made before it is compared with the model's context."""

_BLANK = re.compile(r"\[MASK(?::([^\]]*))?\]")
_MAX_BLANKS = 1_000_000


@final
@dataclass(frozen=True, kw_only=True)
class Request:
    """One sequence to sample, to infill or to correct.

    Given tokens condition masked diffusion exactly. Under other noise the network treats them as
    possibly noisy while t is large; Gibbs steps at t = 0 after sampling condition exactly.
    """

    tokens: Tokens
    """The sequence, made by `prompt`, `blanks` or `parse_template`."""

    plan: Plan
    """Steps to take, e.g. `sampling_plan(even_mesh(128))`; a plan from t < 1 edits given tokens."""

    seed: int = 0

    sample_index: int = 0
    """Index among the samples of the seed; equal (seed, sample_index) give equal samples."""

    protected: tuple[bool, ...] | None = None
    """Positions that must not change; by default all given tokens."""

    processors: tuple[Processor, ...] = ()
    """Processors of x_theta, applied in this order."""

    stop: tuple[int, ...] = ()
    """Stop tokens: `Sample.text` ends before the first one generated (end-of-text, padding)."""

    def check(self, schedule: MixingSchedule, max_length: int | None = None) -> None:
        """Raise if a field is invalid, also given a schedule and the context of a model."""
        for problem in field_problems(self, "request.", **_FIELDS):
            raise ConfigError(problem)
        self._check_tokens(schedule.vocab, max_length)
        if self.protected is not None and len(self.protected) != len(self.tokens):
            raise ConfigError(
                f"request.protected must have one entry for each of the {len(self.tokens)} tokens, "
                f"got {len(self.protected)}. Omit it to protect all given tokens."
            )
        positions = enumerate(zip(self.tokens, self.are_protected, strict=True))
        if blank := [i for i, (v, is_protected) in positions if v is None and is_protected]:
            raise ConfigError(
                f"request.protected must not include blanks, got positions {blank[:10]}. "
                "Give a token there, or leave the position unprotected."
            )
        for processor in self.processors:
            if (check := getattr(processor, "check", None)) is not None:
                check(schedule.vocab)
        require_tokens_left(self.processors)

    def _check_tokens(self, vocab: Vocab, max_length: int | None) -> None:
        if not self.tokens:
            raise DataError(
                "a request must have at least one token or blank, got an empty sequence. "
                "Use blanks(length) to sample without a prompt."
            )
        if max_length is not None and len(self.tokens) > max_length:
            raise DataError(
                f"a request must fit into the model's context of {max_length} tokens, got "
                f"{len(self.tokens)}. Reduce the length, the prompt or the number of blanks."
            )
        given = [v for v in (*self.tokens, *self.stop) if v is not None]
        if unknown := [v for v in given if not 0 <= v < vocab.size]:
            raise DataError(
                f"token ids must be in [0, {vocab.size}), the vocabulary size, got "
                f"{unknown[:10]}. Encode the text with the model's own tokenizer."
            )

    @cached_property
    def are_protected(self) -> tuple[bool, ...]:
        """Whether each position must not change."""
        return self.protected or tuple(v is not None for v in self.tokens)

    def truncate_at_stop(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """Return the tokens before the first unprotected stop token."""
        for i, (token, is_protected) in enumerate(zip(tokens, self.are_protected, strict=True)):
            if token in self.stop and not is_protected:
                return tokens[:i]
        return tokens


_INTEGER = integer(-(2**63))


def _is_token(value: object) -> bool:
    return type(value) is int or _INTEGER.contains(value)  # the first is faster


def _are_tokens(value: object) -> bool:
    return isinstance(value, tuple) and all(
        v is None or _is_token(v) for v in cast("tuple[object, ...]", value)
    )


def _are_stops(value: object) -> bool:
    return _are_tokens(value) and None not in cast("tuple[object, ...]", value)


def _are_flags(value: object) -> bool:
    return isinstance(value, tuple) and all(
        type(v) is bool for v in cast("tuple[object, ...]", value)
    )


def _are_processors(value: object) -> bool:
    return isinstance(value, tuple) and all(
        map(is_hashable_function, cast("tuple[object, ...]", value))
    )


def _is_plan(value: object) -> bool:
    return isinstance(value, Plan)


_FIELDS: Final = {
    "tokens": Allowed(
        _are_tokens, "a tuple of token ids and None for blanks", "prompt() and blanks() make one."
    ),
    "plan": Allowed(_is_plan, "a Plan", "sampling_plan(even_mesh(128)) makes one."),
    "seed": SEED,
    "sample_index": SEED,
    "protected": optional(
        Allowed(_are_flags, "a tuple of True and False, one for each token", "Or omit it.")
    ),
    "processors": Allowed(
        _are_processors, "a tuple of processors", "A processor is a function or frozen dataclass."
    ),
    "stop": Allowed(_are_stops, "a tuple of token ids", "() keeps the whole sequence."),
}
"""Values that a field may have, whatever the model."""


@final
@dataclass(frozen=True, kw_only=True)
class Limits:
    """When a request ends before its plan does, and what happens then."""

    calls: int | None = None
    """Maximum forward passes."""

    seconds: float | None = None
    """Maximum time since it was submitted."""

    then: Literal["finish", "abort"] = "finish"
    """finish: one last step takes the most likely token at each position (`PosteriorCorrection`);
    it is one of `calls`, and comes after `seconds`. abort: the request fails (`LimitReached`)."""

    def check(self) -> None:
        """Raise `ConfigError` if a limit is invalid."""
        require_arguments(
            calls=(self.calls, optional(integer(1, fix="None is no limit."))),
            seconds=(
                self.seconds,
                optional(number(lambda x: 0 <= x < math.inf, "of at least 0", "None is no limit.")),
            ),
            then=(self.then, choice(("finish", "abort"))),
        )


@final
@dataclass(frozen=True)
class Sample:
    """The result of a request."""

    tokens: tuple[int, ...]
    """The complete sequence."""

    text: tuple[int, ...]
    """The tokens before the first generated `stop` token; all tokens if there is none."""

    protected: tuple[bool, ...]

    calls: int
    """Forward passes that this sequence needed."""

    edits: tuple[Edit, ...]
    """Every replacement of a token, in order; noise and reverted changes included."""

    frames: tuple[Frame, ...] = ()
    """State and predictions before every step, if frames were recorded."""

    values: tuple[Tensor, ...] = ()
    """`StepOutput.values` of the last step that had any, each [L, ...], on the CPU."""

    is_complete: bool = True
    """False if `Limits` ended the plan early."""


def blanks(length: int) -> Tokens:
    """Return `length` blanks, to sample without a prompt."""
    return prompt(length)


def prompt(length: int, prefix: Sequence[int] = (), suffix: Sequence[int] = ()) -> Tokens:
    """Return `length` tokens: `prefix`, at least one blank, `suffix`.

    For samples of at most `length` tokens set `Request.stop`.
    """
    meaning = "It is the length of the sample in tokens, prompt and suffix included."
    require_arguments(length=(length, integer(1, _MAX_LENGTH, meaning)))
    num_blanks = length - len(prefix) - len(suffix)
    if num_blanks < 1:
        raise DataError(
            f"prompt and suffix must leave room for at least one token in a length of {length} "
            f"tokens, got {len(prefix)} and {len(suffix)} tokens. Shorten them, or increase the "
            "length within the model's context."
        )
    return (*prefix, *(None,) * num_blanks, *suffix)


def parse_template(text: str, encode: Callable[[str], Sequence[int]]) -> Tokens:
    """Parse a template such as "The capital of [MASK:3] is Paris"; [MASK] is one blank, None.

    `encode` maps text to token ids. It is called for each piece between blanks and should not add
    special tokens.
    """
    tokens: list[int | None] = []
    for i, piece in enumerate(_BLANK.split(text)):  # text and numbers of blanks in turn
        if i % 2:
            tokens.extend([None] * _num_blanks(piece))
        elif piece:
            tokens.extend(encode(piece))
    if not tokens:
        raise DataError(
            "a template must have text or blanks, got an empty string. "
            'Write "[MASK:32]" for 32 tokens without a prompt.'
        )
    return tuple(tokens)


def _num_blanks(number: str | None) -> int:
    if number is None:  # [MASK]
        return 1
    digits = len(str(_MAX_BLANKS))
    if not (number.isdecimal() and len(number) <= digits and 1 <= int(number) <= _MAX_BLANKS):
        raise DataError(
            f"a blank must be [MASK] or [MASK:n] with n an integer number of tokens from 1 to "
            f"{_MAX_BLANKS:,}, got {f'[MASK:{number}]'[:40]}. Write [MASK:3] for three tokens."
        )
    return int(number)


class Edit(NamedTuple):
    """One token replaced by another."""

    step_index: int
    """Index in the plan of the step that made the edit."""

    step: str
    """Name of that step or corrector."""

    time: float
    """Time s at the end of that step."""

    position: int
    old: int
    new: int

    probability: float
    """x_theta of the new token when it was drawn; 0 if it was not drawn from x_theta. Of the
    corrector `posterior`, the posterior probability."""


class Frame(NamedTuple):
    """A sequence before one step, with the network's prediction at every position."""

    step_index: int
    step: str
    time: float
    tokens: Int[Tensor, " L"]

    probability: Float[Tensor, " L"]
    """x_theta of each current token: the network's confidence in it."""

    entropy: Float[Tensor, " L"]
    """Entropy of x_theta at each position, in nats."""

    top: Int[Tensor, " L"]
    """Most likely token at each position."""

    top_probability: Float[Tensor, " L"]

    def self_accuracy(self, free: Bool[Tensor, " L"]) -> float:
        """Fraction of free tokens that are the most likely ones (Sec. 5.4); 1 if none is free."""
        is_top = (self.probability >= self.top_probability)[free]
        return float(is_top.cpu().double().mean()) if len(is_top) else 1.0

    def mean_entropy(self, free: Bool[Tensor, " L"]) -> float:
        """Mean entropy of x_theta at free positions, in nats; 0 if none is free."""
        entropy = self.entropy[free]
        return float(entropy.cpu().double().mean()) if len(entropy) else 0.0
