"""Requests (tokens, blanks, plan, limits) and their results."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, cast

from torch import Tensor

from gidd.common.config.allowed import (
    SEED,
    Allowed,
    integer,
    number,
    problems_of,
    require_arguments,
    require_none,
)
from gidd.diffusion.schedule import MixingSchedule
from gidd.errors import ConfigError, DataError
from gidd.sampling.constrained import Constraint
from gidd.sampling.guidance import Guidance
from gidd.sampling.plan import Plan, is_hashable_function
from gidd.sampling.processors import Processor, require_three_arguments, require_tokens_left
from gidd.vocab import Vocab

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


Tokens = tuple[int | None, ...]
"""Token ids; None is a blank to fill."""

_MAX_LENGTH = 1 << 24
"""Maximum length of a sequence, which is made before it is compared with the model's context."""

_BLANK = re.compile(r"\[MASK(?:\]|:([^\]]{0,20}\]?))")  # bounded: no search for the end of each
_MAX_BLANKS = 1_000_000


_INTEGER = integer(-(2**63))


def _is_token(value: object) -> bool:
    return type(value) is int or _INTEGER.contains(value)  # the first is faster


def _is_token_or_blank(value: object) -> bool:
    return value is None or _is_token(value)


def _instance(kind: type, fix: str) -> Allowed:
    def contains(value: object) -> bool:
        return isinstance(value, kind)

    return Allowed(contains, f"a {kind.__name__}", fix)


def _tuple_of(is_item: Callable[[Any], bool], values: str, fix: str) -> Allowed:
    def contains(value: Any) -> bool:
        return isinstance(value, tuple) and all(map(is_item, cast("tuple[Any, ...]", value)))

    return Allowed(contains, f"a tuple of {values}", fix)


_TOKENS = _tuple_of(
    _is_token_or_blank, "token ids and None for blanks", "prompt() and blanks() make one."
)
_PLAN = _instance(Plan, "sampling_plan(even_times(128)) makes one.")
_FLAGS = _tuple_of(lambda v: type(v) is bool, "True and False, one for each token", "Or omit it.")
_BLOCK_LENGTH = integer(1, fix="None reads all tokens together.")
_PROCESSORS = _tuple_of(
    is_hashable_function, "processors", "A processor is a function or frozen dataclass."
)
_STOP = _tuple_of(_is_token, "token ids", "() keeps the whole sequence.")
_GUIDANCE = _instance(Guidance, "None is no guidance.")
_CONSTRAINTS = _tuple_of(
    lambda v: isinstance(v, Constraint), "Constraints", "() leaves all blanks free."
)


@dataclass(frozen=True, kw_only=True)
class Request:
    """One sequence to sample, to infill or to correct.

    Given tokens condition masked diffusion exactly. Under other noise they are taken as possibly
    noisy while t is large; Gibbs steps at t = 0 after sampling condition exactly.
    """

    tokens: Annotated[Tokens, _TOKENS]
    """The sequence, made by `prompt`, `blanks` or `parse_template`."""
    plan: Annotated[Plan, _PLAN]
    """Steps, e.g. `sampling_plan(even_times(128))`; a plan from t < 1 edits given tokens."""
    seed: Annotated[int, SEED] = 0
    sample_index: Annotated[int, SEED] = 0
    """Index among the samples of the seed; equal (seed, sample_index) give equal samples."""
    protected: Annotated[tuple[bool, ...], _FLAGS] | None = None
    """Positions that must not change; by default all given tokens."""
    processors: Annotated[tuple[Processor, ...], _PROCESSORS] = ()
    """Processors of x_theta, applied in this order."""
    stop: Annotated[tuple[int, ...], _STOP] = ()
    """Stop tokens: `Sample.text` ends before the first one generated (end-of-text, padding)."""
    guidance: Annotated[Guidance, _GUIDANCE] | None = None
    """Classifier-free guidance; a forward pass then has a second row, without the condition."""
    constraints: Annotated[tuple[Constraint, ...], _CONSTRAINTS] = ()
    """Automata that accept the tokens of some positions, from left to right."""
    block_length: Annotated[int, _BLOCK_LENGTH] | None = None
    """Read the sequence in blocks of this many tokens: those before the last one are finished, and
    their keys and values come from the cache of the session. None: all tokens are read together."""
    num_open: Annotated[int, integer(1)] = 1
    """With `block_length`: number of blocks at the end that are read together, and may change."""
    first_step: Annotated[int, integer(0)] = 0
    """Number of the first step, which addresses random numbers: other requests of a text have the
    steps before it."""

    def check(self, schedule: MixingSchedule, max_length: int | None = None) -> None:
        """Raise if a field is invalid, by itself or for a model's schedule and context."""
        require_none(problems_of(self, "request."))
        self._check_tokens(schedule.vocab, max_length)
        unconditional = None if self.guidance is None else self.guidance.tokens
        for name, entries, fix in (
            ("protected", self.protected, "Omit it to protect all given tokens."),
            ("guidance", unconditional, "None is a token of the sequence itself."),
        ):
            if entries is not None and len(entries) != len(self.tokens):
                raise ConfigError(
                    f"request.{name} must have one entry for each of the {len(self.tokens)} "
                    f"tokens, got {len(entries)}. {fix}"
                )
        positions = enumerate(zip(self.tokens, self.are_protected, strict=True))
        if blank := [i for i, (v, is_protected) in positions if v is None and is_protected]:
            raise ConfigError(
                f"request.protected must not include blanks, got positions {blank[:10]}. "
                "Give a token there, or leave the position unprotected."
            )
        self._check_constraints(schedule.vocab)
        self._check_blocks(max_length)
        for processor in self.processors:
            if (check := getattr(processor, "check", None)) is not None:
                check(schedule.vocab)
            require_three_arguments(processor)
        require_tokens_left(self.processors)

    def _check_blocks(self, max_length: int | None) -> None:
        if self.block_length is None:
            if self.num_open != 1:
                raise ConfigError(
                    f"request.num_open must be 1 without blocks, got {self.num_open}."
                )
            return
        if self.is_guided or self.constraints:
            name = (
                "constraints (pattern, choices)"
                if self.constraints
                else "guidance (guidance_scale)"
            )
            raise ConfigError(
                f"request.{name} must be left out with request.block_length: text in blocks is "
                "read by keys and values of one condition."
            )
        if blank := [i for i, token in enumerate(self.tokens[: self.row_start]) if token is None]:
            raise ConfigError(
                "request.tokens must have no blanks before the last request.num_open blocks of "
                f"{self.block_length} tokens, got positions {blank[:10]}. sample_blocks fills them."
            )
        if max_length is not None and 2 * self.row_length > max_length:
            raise ConfigError(
                f"request.block_length must be at most half of the context, {max_length // 2} "
                f"tokens, got {self.num_open} blocks of {self.block_length}."
            )

    def _check_constraints(self, vocab: Vocab) -> None:
        tokens = [
            token if is_protected else None
            for token, is_protected in zip(self.tokens, self.are_protected, strict=True)
        ]
        for constraint in self.constraints:
            constraint.check(tokens, vocab)
        for constraint, following in pairwise(self.constraints):
            if following.start < constraint.stop:
                raise ConfigError(
                    "request.constraints must be in order, each behind the one before, got start "
                    f"{following.start} after stop {constraint.stop}."
                )
        if self.constraints and all(step.s > 0 for step in self.plan.steps):
            raise ConfigError(
                "request.plan must reach time 0 for constraints. Add a step to s = 0."
            )

    def _check_tokens(self, vocab: Vocab, max_length: int | None) -> None:
        if not self.tokens:
            raise DataError(
                "a request must have at least one token or blank, got an empty sequence. "
                "Use blanks(length) to sample without a prompt."
            )
        is_fixed = self.block_length is None  # else the oldest blocks are left out
        if is_fixed and max_length is not None and len(self.tokens) > max_length:
            raise DataError(
                f"a request must fit into the model's context of {max_length} tokens, got "
                f"{len(self.tokens)}. Reduce the length, the prompt or the number of blanks."
            )
        unconditional = () if self.guidance is None else self.guidance.tokens
        tokens = (*self.tokens, *self.stop, *unconditional)
        given = [v for v in tokens if v is not None]
        if unknown := [v for v in given if not 0 <= v < vocab.size]:
            raise DataError(
                f"token ids must be in [0, {vocab.size}), the vocabulary size, got "
                f"{unknown[:10]}. Encode the text with the model's own tokenizer."
            )

    @cached_property
    def are_protected(self) -> tuple[bool, ...]:
        """Whether each position must not change."""
        return self.protected or tuple(v is not None for v in self.tokens)

    @property
    def is_guided(self) -> bool:
        """Whether guidance changes its predictions."""
        return self.guidance is not None and self.guidance.scale != 1

    @property
    def row_start(self) -> int:
        """Position of the first token that is not in a finished block."""
        if self.block_length is None:
            return 0
        last = (len(self.tokens) - 1) // self.block_length
        return max(0, last + 1 - self.num_open) * self.block_length

    @property
    def row_length(self) -> int:
        """Tokens of a row of a forward pass, without padding that rows of a batch may need."""
        return len(self.tokens) if self.block_length is None else self.block_length * self.num_open

    def window_start(self, max_length: int | None) -> int:
        """Position of the first token that is read: 0 while the sequence fits into the context.

        Then whole blocks are left out at the beginning, as many as fit into half of the context,
        so that keys and values are computed again once in half a context.
        """
        over = self.row_start + self.row_length - (max_length or _MAX_LENGTH)
        if self.block_length is None or over <= 0:
            return 0
        half = (max_length or 0) // 2 // self.block_length * self.block_length
        return -(-over // half) * half

    def first(self, num: int) -> Request:
        """Return the request of the first `num` tokens."""
        guidance = self.guidance and self.guidance.first(num)
        constraints = tuple(c for c in self.constraints if c.start < num)
        return replace(self, tokens=self.tokens[:num], guidance=guidance, constraints=constraints)

    @property
    def first_blank(self) -> int:
        """Position of the first blank; the number of tokens if there is none."""
        return self.tokens.index(None) if None in self.tokens else len(self.tokens)

    def truncate_at_stop(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """Return the tokens before the first unprotected stop token."""
        for i, (token, is_protected) in enumerate(zip(tokens, self.are_protected, strict=True)):
            if token in self.stop and not is_protected:
                return tokens[:i]
        return tokens


_SECONDS = number(lambda x: 0 <= x < math.inf, "of at least 0", "None is no limit.")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When a request ends before its plan does, and what happens then."""

    forward_passes: Annotated[int, integer(1, fix="None is no limit.")] | None = None
    """Maximum forward passes."""
    seconds: Annotated[float, _SECONDS] | None = None
    """Maximum time since it was submitted."""
    on_limit: Literal["finish", "abort"] = "finish"
    """finish: one last step takes the most likely token at each position (`PosteriorCorrection`);
    it is one of `forward_passes`, and comes after `seconds`. abort: `LimitReached`."""


@dataclass(frozen=True)
class Sample:
    """The result of a request."""

    tokens: tuple[int, ...]
    """The complete sequence."""
    text: tuple[int, ...]
    """The tokens before the first generated `stop` token; all tokens if there is none."""
    protected: tuple[bool, ...]
    forward_passes: int
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
            f"tokens, got {len(prefix)} and {len(suffix)} tokens. Shorten them."
        )
    return (*prefix, *(None,) * num_blanks, *suffix)


class Template(NamedTuple):
    """Text with blanks, as tokens."""

    tokens: Tokens
    spaced: frozenset[int] = frozenset()
    """Positions of blanks that took the space before them: their tokens begin with it."""


def parse_template(
    text: str, encode: Callable[[str, bool], Sequence[int]], *, takes_space: bool = False
) -> Template:
    """Parse a template such as "The capital of [MASK:3] is Paris"; [MASK] is one blank, None.

    `encode` maps a piece between blanks, and whether the text starts there, to token ids without
    special tokens. With `takes_space`, the space before a blank is part of the blank.
    """
    tokens: list[int | None] = []
    num_blanks, spaced = 0, set[int]()
    pieces = _BLANK.split(text)  # text and numbers of blanks in turn
    for i, piece in enumerate(pieces):
        if i % 2 == 0:
            is_taken = takes_space and i + 1 < len(pieces) and piece.endswith(" ")
            prefix = piece[:-1] if is_taken else piece
            tokens.extend(encode(prefix, not tokens) if prefix else ())
            if is_taken:
                spaced.add(len(tokens))
            continue
        length = 1 if piece is None else _blank_length(piece)
        num_blanks += length
        if num_blanks > _MAX_BLANKS:
            raise DataError(
                f"a template must have at most {_MAX_BLANKS:,} blanks, got {num_blanks:,} or more."
            )
        tokens.extend([None] * length)
    if not tokens:
        raise DataError(
            "a template must have text or blanks, got an empty string. "
            'Write "[MASK:32]" for 32 tokens without a prompt.'
        )
    return Template(tuple(tokens), frozenset(spaced))


def _blank_length(suffix: str) -> int:
    """Return the number of tokens of "3]", what follows "[MASK:" in a template."""
    digits = suffix.removesuffix("]")
    if suffix != digits and digits.isdecimal() and len(digits) < 8:
        length = int(digits)
        if 1 <= length <= _MAX_BLANKS:
            return length
    raise DataError(
        "a blank must be [MASK] or [MASK:n] with n an integer number of tokens from 1 to "
        f"{_MAX_BLANKS:,}, got [MASK:{suffix}. Write [MASK:3] for three tokens."
    )


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
