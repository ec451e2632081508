"""Requests: given tokens and blanks, what may change, and how to sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from gidd.common.allowed import SEED, field_problems, integer, require_arguments
from gidd.errors import ConfigError, DataError
from gidd.sampling.plan import Plan
from gidd.sampling.processors import Processor
from gidd.sampling.trace import Edit, Frame
from gidd.vocab import Vocab

Tokens = tuple[int | None, ...]
"""Token ids; None is a blank to fill."""

_MAX_LENGTH = 1 << 24
"""Of a sequence, which is made before its length is compared with the model's context."""


@final
@dataclass(frozen=True, kw_only=True)
class Request:
    """One sequence to sample, to infill or to correct.

    Given tokens condition masked diffusion exactly. Under other noise the network treats them as
    possibly noisy while t is large; Gibbs steps at t = 0 after sampling condition exactly.
    """

    tokens: Tokens
    """The sequence, made by `prompt`, `blanks` or `template.parse_template`."""

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

    def check(self, vocab: Vocab, max_length: int | None = None) -> None:
        """Check length, token ids, seeds and protected positions."""
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
        for problem in field_problems(self, "request.", seed=SEED, sample_index=SEED):
            raise ConfigError(problem)
        if self.protected is not None and len(self.protected) != len(self.tokens):
            raise ConfigError(
                f"request.protected must have one entry for each of the {len(self.tokens)} tokens, "
                f"got {len(self.protected)}. Omit it to protect all given tokens."
            )
        if blank := [i for i, v in enumerate(self.tokens) if v is None and self.are_protected[i]]:
            raise ConfigError(
                f"request.protected must not include blanks, got positions {blank[:10]}. "
                "Give a token there, or leave the position unprotected."
            )

    @property
    def are_protected(self) -> tuple[bool, ...]:
        """Whether each position must not change."""
        return self.protected or tuple(v is not None for v in self.tokens)

    def truncate_at_stop(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """Return the tokens before the first unprotected stop token."""
        for i, (token, is_protected) in enumerate(zip(tokens, self.are_protected, strict=True)):
            if token in self.stop and not is_protected:
                return tokens[:i]
        return tokens


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
