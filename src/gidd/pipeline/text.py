"""Tokens and text: the text of each token, and the tokens that correction keeps or never writes."""

from bisect import bisect_right
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from itertools import accumulate, pairwise
from os.path import commonprefix
from threading import Lock
from typing import Any, NamedTuple, cast
from unicodedata import category

from gidd.common.config.allowed import integer, require_arguments
from gidd.common.terminal import shorten
from gidd.data.tokenizers import Tokenizer
from gidd.data.tokenizers.encoding import cut
from gidd.errors import ConfigError, DataError
from gidd.pipeline.options import STOP
from gidd.pipeline.results import Generation
from gidd.sampling import Ban, Budget, Require, ban
from gidd.vocab import Vocab

Span = tuple[int, int]
"""Characters start .. stop - 1 of a text."""

_INVALID = "\N{REPLACEMENT CHARACTER}"  # how bytes that are not a complete character are decoded
_LAYOUT = frozenset({"Cc", "Zl", "Zp"})
"""Unicode categories of control characters and of line and paragraph separators."""

_EXCERPT = 20  # characters of a text that an error message quotes
_PIECE = 10_000  # characters of a text that are encoded at once, in about 10 ms
_LONG = 50_000  # characters
_LONG_TEXTS = Lock()
"""Held while a long text is encoded: threads that wait for it leave the interpreter to others."""
_PATIENCE = 0.1  # seconds between two looks at limits
_MAX_PARTS = 16
"""Partial characters that are decoded together: a few characters, so that time stays linear."""


class EncodedText(NamedTuple):
    """A text given by a user, and its tokens."""

    tokens: tuple[int, ...]
    texts: tuple[str, ...]
    """Text of each token; joined, they are the text exactly.

    It is another one than the token's own where the text has a character outside the vocabulary.
    """
    fixed: tuple[bool, ...]
    """Whether correction skips the token: line breaks, tabs, parts of characters, unknown ones."""


class TokenDecoder:
    """Splits a text into the text of each of its tokens.

    A byte-level token may be part of a character. The tokens of such a character share its text: it
    is assigned to the first of them, and the others get "".

    If tokens are characters, those outside the vocabulary are encoded as similar ones in it, or as
    the unknown token; `encode_with_offsets` keeps the text, and `decode_like` restores it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._cache: dict[int, str] = {}

    def __call__(self, tokens: Sequence[int]) -> list[str]:
        """Return one string per token; joined, they are the text."""
        texts = [self.decode_one(token) for token in tokens]
        if self.tokenizer.is_character_level:
            return texts
        start = 0
        while start < len(texts):
            stop = start + 1
            if _INVALID in texts[start]:
                stop = self._end_of_characters(tokens, texts, start)
                text = self._decode(tokens[start:stop])
                texts[start:stop] = [text, *[""] * (stop - start - 1)]
            start = stop
        return texts

    def whole(self, tokens: Sequence[int], text: str = "") -> list[str]:
        """Return the texts of the tokens of a whole text, which begins as `text` does.

        A space that the tokenizer has put before the text is left out.
        """
        texts = self(tokens)
        if texts and texts[0][:1] == " " != text[:1] and self.drops_space:
            texts[0] = texts[0][1:]
        return texts

    def decode_one(self, token: int) -> str:
        """Return the text of one token; it contains U+FFFD if the token is part of a character."""
        if token not in self._cache:
            self._cache[token] = self._decode([token])
        return self._cache[token]

    @cached_property
    def begins_with_space(self) -> Require | None:
        """The tokens that are a space and something else; None if there are none."""
        vocab = self.tokenizer.vocab
        texts = ((token, self.decode_one(token)) for token in range(vocab.size))
        words = frozenset(v for v, text in texts if text[:1] == " " and len(text) > 1)
        words -= self.tokenizer.unknown_ids | self.tokenizer.terminator_ids | {vocab.mask_id}
        return Require(vocab, words) if words else None

    def is_fixed(self, token: int) -> bool:
        """Whether correction skips the token: line breaks, tabs, parts of characters, unknown."""
        return token in self.tokenizer.unknown_ids or _has_layout(self.decode_one(token))

    def encode_with_offsets(self, text: str, name: str) -> EncodedText:
        """Return the tokens of a text with the text of each; errors call the text `name`.

        Raise if a text cannot be restored: with other tokens than characters, if decoding does not.
        """
        if not self.tokenizer.is_character_level:
            tokens = tuple(self.encode(text, name))
            texts = self.whole(tokens, text)
            return EncodedText(tokens, tuple(texts), tuple(map(self.is_fixed, tokens)))
        require_text(text, name)
        tokens = tuple(self.tokenizer.encode(text))
        layout = {character for character in set(text) if _has_layout(character)}
        fixed = (v in self.fixed_ids or c in layout for v, c in zip(tokens, text, strict=True))
        return EncodedText(tokens, tuple(text), tuple(fixed))

    def encode_sample(self, sample: Generation) -> EncodedText:
        """Return the tokens of a sample, not those that its text would be encoded as."""
        texts = self.whole(sample.tokens, sample.text)
        cut = sample.text.removeprefix("".join(texts))  # of a token that a stop string begins in
        rest = self.encode_with_offsets(cut, "the end of the sample")
        fixed = (*map(self.is_fixed, sample.tokens), *rest.fixed)
        return EncodedText((*sample.tokens, *rest.tokens), (*texts, *rest.texts), fixed)

    def decode_like(self, tokens: Sequence[int], encoded: EncodedText) -> list[str]:
        """Return the texts of new tokens of an encoded text; unchanged tokens keep their texts."""
        if not self.tokenizer.is_character_level:
            return self.whole(tokens, "".join(encoded.texts[:1]))
        old = zip(encoded.tokens, encoded.texts, strict=True)
        return [
            text if new == token else self.decode_one(new)
            for new, (token, text) in zip(tokens, old, strict=True)
        ]

    @cached_property
    def drops_space(self) -> bool:
        """Whether the beginning of a text is encoded as if a space were before it.

        The text of its first token is then without this space.
        """
        return self._is_of_words or "".join(self(self.tokenizer.encode("a"))) == " a"

    @cached_property
    def _is_of_words(self) -> bool:
        return self.tokenizer.kind == "WordLevel"

    def encode(self, text: str, name: str, *, starts: bool = True) -> list[int]:
        """Return the tokens of a text; raise if decoding them does not restore it exactly.

        `starts` is False if other tokens are before it. Errors call the text `name`.
        """
        require_text(text, name)
        starts = starts or self._is_of_words or not self.drops_space
        with _turn(text):
            if self.drops_space and text[:1] == " ":
                tokens = self._encode(text[1:])
            elif starts:
                tokens = self._encode(text)
            else:  # after a line break, which no token joins with what follows
                tokens = self._encode(f"\n{text}")[len(self._encode("\n")) :]
            back = "".join(self.whole(tokens, text) if starts else self(tokens))
        if back == text:
            return tokens
        place = len(commonprefix([text, back]))
        if self.tokenizer.is_character_level:
            similar = self.tokenizer.with_similar_characters(text[place])
            advice = "Remove it" if similar == text[place] else f"Write {similar!r}"
            raise DataError(
                f"{name} must have characters of the model's vocabulary only, got {text[place]!r} "
                f"at character {place}. {advice}, or use a model of bytes."
            )
        original, got = text[place : place + _EXCERPT], back[place : place + _EXCERPT]
        raise DataError(
            f"{name} must be restored exactly by the model's tokenizer, but {original!r} at "
            f"character {place} decodes to {got!r}. Write it so, or use a model of bytes."
        )

    def _encode(self, text: str) -> list[int]:
        """Encode a long text in pieces: limits hold between them, and other threads run."""
        if len(text) <= _PIECE:
            return self.tokenizer.encode(text)
        tokens, budget = list[int](), Budget.current()
        for piece in cut(text, _PIECE) if self.tokenizer.encodes_pieces else [text]:
            budget.check()
            (part,) = self.tokenizer.encode_batch([piece])  # releases the interpreter's lock
            tokens += part
        return tokens

    @cached_property
    def fixed_ids(self) -> frozenset[int]:
        """All tokens that correction neither replaces nor writes."""
        # the slowest part of a first correction: GPT-2's 50,000 tokens take 0.15 s
        texts = enumerate(map(self.decode_one, range(self.tokenizer.vocab.size)))
        return self.tokenizer.unknown_ids | {v for v, text in texts if _has_layout(text)}

    @cached_property
    def never_written(self) -> frozenset[int]:
        """Tokens that correction never writes: fixed ones, end, padding."""
        return self.tokenizer.terminator_ids | self.fixed_ids

    @cached_property
    def _first(self) -> tuple[int, str]:
        tokenizer = self.tokenizer
        token = (tokenizer.vocab.mask_id or 0) if tokenizer.end is None else tokenizer.end_id
        return token, tokenizer.decode([token])

    def _decode(self, tokens: Sequence[int]) -> str:
        """Decode tokens as inside a text: some decoders drop a leading space at its start."""
        token, start = self._first
        text = self.tokenizer.decode([token, *tokens])
        if text.startswith(start):
            return text.removeprefix(start)
        return self.tokenizer.decode(tokens)

    def _end_of_characters(self, tokens: Sequence[int], texts: Sequence[str], start: int) -> int:
        """Return the end of the shortest run of partial characters that decodes completely.

        If no run of up to `_MAX_PARTS` does, as for U+FFFD in the text itself, return the end of
        all consecutive partial characters.
        """
        stop = start + 1
        while stop < len(texts) and _INVALID in texts[stop]:
            stop += 1
            if stop - start <= _MAX_PARTS and _INVALID not in self._decode(tokens[start:stop]):
                break
        return stop


@contextmanager
def _turn(text: str) -> Generator[None]:
    """Let one long text after the other be encoded, within the limits of a call."""
    if len(text) < _LONG:
        yield
        return
    budget = Budget.current()
    while not _LONG_TEXTS.acquire(timeout=_PATIENCE):
        budget.check()
    try:
        yield
    finally:
        _LONG_TEXTS.release()


def _has_layout(text: str) -> bool:
    if text.isprintable() and _INVALID not in text:  # nearly all tokens, 50 times as fast
        return False
    return any(c == _INVALID or category(c) in _LAYOUT for c in text)


def require_text(text: object, name: str) -> None:
    """Raise if a text is no string of valid Unicode; errors call the text `name`."""
    if not isinstance(text, str):
        raise ConfigError(f"{name} must be a string, got {shorten(text)}.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        got = f"{text[error.start]!r} at character {error.start}"
        raise DataError(f"{name} must be valid Unicode, got {got}. Remove it.") from error


def protected_tokens(encoded: EncodedText, spans: Sequence[Span]) -> list[bool]:
    """Return for each token whether it overlaps a protected span or is never corrected."""
    ends = list(accumulate(map(len, encoded.texts), initial=0))
    changes = [0] * (ends[-1] + 1)  # of the number of spans around a character
    place = integer(0, ends[-1])
    for span in cast("Sequence[object]", spans if isinstance(spans, list | tuple) else [spans]):
        pair = cast("Sequence[Any]", span if isinstance(span, list | tuple) else ())
        if len(pair) != 2 or not all(map(place.contains, pair)) or pair[0] > pair[1]:
            must = f"(start, stop) with 0 <= start <= stop <= {ends[-1]}, the length of the text"
            raise ConfigError(f"a protected span must be {must}, got {shorten(span)}.")
        changes[pair[0]] += 1
        changes[pair[1]] -= 1
    kept = list(accumulate(changes))
    places = zip(encoded.fixed, pairwise(ends), strict=True)
    return [is_fixed or any(kept[start:stop]) for is_fixed, (start, stop) in places]


def ban_unwritten_tokens(vocab: Vocab, decoder: TokenDecoder) -> Ban:
    """Return a processor for tokens that correction never writes: fixed ones, end, padding."""
    return ban(vocab, decoder.never_written)


def require_stop(stop: Sequence[str], suffix: str = "") -> None:
    """Raise `ConfigError` if the stop strings of a sample with this suffix are invalid."""
    require_arguments(stop=(stop, STOP))
    if stop and suffix:
        raise ConfigError(f"stop must be empty with a suffix, which ends the text, got {stop}.")


def end_of_text(text: str, stop: Sequence[str]) -> int:
    """Return where the first stop string of a text begins; its length if there is none."""
    return min((place for place in map(text.find, stop) if place >= 0), default=len(text))


def without_partial_stop(text: str, stop: Sequence[str]) -> str:
    """Return a text without the beginning of a stop string at its end, which may yet become one."""
    lengths = (n for string in stop for n in range(1, len(string)) if text.endswith(string[:n]))
    return text[: len(text) - max(lengths, default=0)]


def cut_at_stop(
    generation: Generation, decoder: TokenDecoder, num_given: int, stop: Sequence[str]
) -> Generation:
    """Return a generation cut before its first stop string after the prompt.

    `tokens` end before the token in which the string begins, of which `text` may have a part.
    """
    texts = decoder(generation.tokens)
    text = "".join(texts[num_given:])
    end = end_of_text(text, stop)
    if end == len(text):
        return generation
    kept = num_given + bisect_right(list(accumulate(map(len, texts[num_given:]))), end)
    return replace(
        generation,
        text="".join(texts[:num_given]) + text[:end],
        tokens=generation.tokens[:kept],
        filled=(text[:end],),
        confidence=generation.confidence and generation.confidence[:kept],
    )
