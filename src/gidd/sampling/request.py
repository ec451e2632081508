"""What a caller wants: given tokens, blanks, what may change, and how it is sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from gidd.errors import ConfigError, DataError
from gidd.sampling.plan import Plan
from gidd.sampling.processors import Processor
from gidd.sampling.trace import Edit, Frame
from gidd.vocab import Vocab

Tokens = tuple[int | None, ...]
"""Token ids; None is a blank that the sampler fills."""


@final
@dataclass(frozen=True, kw_only=True)
class Request:
    """One sequence to sample, to infill or to correct.

    Given tokens condition masked diffusion exactly. Other noise lets the network doubt them while t
    is large; Gibbs calls at t = 0 after the walk leave no doubt.
    """

    tokens: Tokens
    """The whole sequence; `prompt`, `blanks` and `template.parse_template` make it."""

    plan: Plan
    """The moves to make, e.g. `sampling_plan(even_mesh(128))`; a plan that starts at t < 1 edits text."""

    seed: int = 0

    sample_index: int = 0
    """Which of the seed's sequences this is. The same (seed, number) is the same sequence."""

    protected: tuple[bool, ...] | None = None
    """Positions that must not change; by default all that are not blank."""

    processors: tuple[Processor, ...] = ()
    """Applied to x_theta in this order."""

    stop: tuple[int, ...] = ()
    """The text ends before the first of these that the sampler wrote: end-of-text, padding."""

    def check(self, vocab: Vocab, max_length: int | None = None) -> None:
        """Refuse tokens that the vocabulary has not and sequences that do not fit."""
        if not self.tokens:
            raise DataError(
                "a request must have at least one token or blank, got an empty sequence. "
                "Ask for blanks(length) to sample without a prompt."
            )
        if max_length is not None and len(self.tokens) > max_length:
            raise DataError(
                f"a request must fit into the model's context of {max_length} tokens, got "
                f"{len(self.tokens)}. Ask for a smaller length, a shorter prompt or fewer blanks."
            )
        given = [v for v in (*self.tokens, *self.stop) if v is not None]
        unknown = [v for v in given if not 0 <= v < vocab.size]
        if unknown:
            raise DataError(
                f"token ids must be in [0, {vocab.size}), the ids of the vocabulary, got "
                f"{unknown[:10]}. Encode the text with the model's own tokenizer."
            )
        for name in ("seed", "sample_index"):
            if not 0 <= getattr(self, name) < 2**63:
                raise ConfigError(
                    f"request.{name} must be in [0, 2**63), got {getattr(self, name)}. "
                    "Any such number will do."
                )
        if self.protected is not None and len(self.protected) != len(self.tokens):
            raise ConfigError(
                f"request.protected must have one entry for each of the {len(self.tokens)} tokens, "
                f"got {len(self.protected)}. Leave it out to protect all that is given."
            )
        if any(p and v is None for v, p in zip(self.tokens, self.are_protected, strict=True)):
            raise ConfigError(
                "request.protected must not cover a blank: what is not given cannot be kept. "
                "Give a token there, or leave the position unprotected."
            )

    @property
    def are_protected(self) -> tuple[bool, ...]:
        """For every position whether it must not change."""
        return self.protected or tuple(v is not None for v in self.tokens)


@final
@dataclass(frozen=True)
class Sample:
    """What became of a request."""

    tokens: tuple[int, ...]
    """The whole canvas."""

    text: tuple[int, ...]
    """The tokens before the first `stop` that the sampler wrote; all of them if there is none."""

    protected: tuple[bool, ...]

    calls: int
    """Network calls that this sequence needed."""

    edits: tuple[Edit, ...]
    """Every token that was replaced, in order; noise and undone changes included."""

    frames: tuple[Frame, ...] = ()
    """What the network thought before every move, if the engine was asked to watch."""


def blanks(length: int) -> Tokens:
    """Nothing given: `length` tokens to sample."""
    if length < 1:
        raise ConfigError(
            f"the number of blanks must be at least 1, got {length}. "
            "It is the length of the text to sample, in tokens."
        )
    return (None,) * length


def prompt(length: int, prefix: Sequence[int] = (), suffix: Sequence[int] = ()) -> Tokens:
    """`length` tokens that begin with `prefix` and end with `suffix`, blank in between.

    For text of at most `length` tokens give the request a `stop` token.
    """
    if length < 1:
        raise ConfigError(f"the length of a text must be at least 1 token, got {length}.")
    missing = length - len(prefix) - len(suffix)
    if missing < 0:
        raise DataError(
            f"a prompt must fit into the length of {length} tokens, got {len(prefix)} before and "
            f"{len(suffix)} after the blank. Shorten it, or ask for a longer text."
        )
    return (*prefix, *(None,) * missing, *suffix)


def end_at(
    stop: Sequence[int], tokens: Sequence[int], protected: Sequence[bool]
) -> tuple[int, ...]:
    """The tokens before the first unprotected one of `stop`."""
    for i, (token, kept) in enumerate(zip(tokens, protected, strict=True)):
        if token in stop and not kept:
            return tuple(tokens[:i])
    return tuple(tokens)
