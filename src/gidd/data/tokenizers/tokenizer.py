"""`Tokenizer`: text to token ids and back, with a mask token and an end-of-text token."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, wraps
from pathlib import Path
from typing import Any, Protocol, TypeVar, final

from gidd.common.files import explain_damage, write_text
from gidd.common.terminal import shorten
from gidd.data.similar_characters import SimilarCharacters
from gidd.data.tokenizers.encoding import can_cut, is_bytes, is_character_level, unit_encoder
from gidd.data.tokenizers.files import TOKENIZER_FILE, find_tokenizer, read_tokenizer
from gidd.data.tokenizers.special import (
    COPY_TOKENIZER,
    SETTINGS_FILES,
    SPECIAL_FIELDS,
    ensure_special_tokens,
    names_of,
    read_special_tokens,
    settings_file,
)
from gidd.errors import ConfigError, DataError
from gidd.vocab import Vocab

_A = TypeVar("_A")
_T = TypeVar("_T")
_log = logging.getLogger(__package__)


class FastTokenizer(Protocol):
    """A fast tokenizer of `transformers`, which need not be installed."""

    @property
    def backend_tokenizer(self) -> Any:
        """The `tokenizers.Tokenizer` that it wraps."""
        ...

    @property
    def special_tokens_map(self) -> Mapping[str, Any]:
        """Its special tokens, such as {"eos_token": "</s>"}; only those that it has."""
        ...


def _explain_failure(method: Callable[[Tokenizer, _A], _T]) -> Callable[[Tokenizer, _A], _T]:
    """Raise a `DataError` for any failure of the library, also a panic in Rust."""

    @wraps(method)
    def call(self: Tokenizer, given: _A) -> _T:
        try:
            return method(self, given)
        except BaseException:  # without an error, `try` takes no time
            with explain_damage("the tokenizer or the text", COPY_TOKENIZER, DataError):
                raise

    return call


@final
class Tokenizer:
    """A tokenizer of the `tokenizers` library with the special tokens that diffusion needs.

    `inner` is such a tokenizer, or a fast one of `transformers`; it is copied, never changed.
    Special tokens are looked up by the given names, otherwise by common names. Missing end-of-text
    and mask tokens are added, the mask last, with a warning that `notes` keeps; without a padding
    token, end-of-text is used. If `model` is given, the vocabulary of the model that uses the
    tokenizer, end-of-text is added only if the model has a row for it. Text that contains the name
    of a special token ("[MASK]") is encoded as ordinary text.
    """

    def __init__(
        self,
        inner: Any,
        *,
        end: str | None = None,
        pad: str | None = None,
        mask: str | None = None,
        model: Vocab | None = None,
    ) -> None:
        copied, named = _copy_of(inner)
        self._adopt(copied, named | names_of(end, pad, mask), model)

    @classmethod
    def owning(cls, inner: Any, names: Mapping[str, str], model: Vocab | None = None) -> Tokenizer:
        """Build a tokenizer that takes over `inner`, without the 0.2 s of copying GPT-2."""
        tokenizer = cls.__new__(cls)
        tokenizer._adopt(inner, names, model)
        return tokenizer

    def _adopt(self, inner: Any, names: Mapping[str, str], model: Vocab | None) -> None:
        self._inner = inner
        inner.no_padding()
        inner.no_truncation()
        inner.encode_special_tokens = True  # text must never encode to the mask token
        self.end, self.pad, self.mask, self.notes = ensure_special_tokens(inner, names, model)
        self._encode_units = unit_encoder(inner)
        for note in self.notes:
            _log.warning("warning: %s", note)

    @classmethod
    def load(
        cls,
        name: str | Path,
        *,
        end: str | None = None,
        pad: str | None = None,
        mask: str | None = None,
        revision: str | None = None,
        model: Vocab | None = None,
    ) -> Tokenizer:
        """Load a `tokenizer.json`, a folder with one, or a repository on the Hugging Face hub.

        Args:
            name: File, folder, or name on the hub.
            end: End-of-text token; by default the `eos_token` of `tokenizer_config.json` or
                `special_tokens_map.json`, otherwise one with a common name.
            pad: Padding token, found in the same way.
            mask: Mask token, found in the same way.
            revision: Branch, tag or commit on the hub; by default the newest.
            model: Vocabulary of the model that uses it; None: any.
        """
        path = find_tokenizer(name, revision)
        names = read_special_tokens(path) | names_of(end, pad, mask)
        return cls.owning(read_tokenizer(path, model), names, model)

    @_explain_failure
    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, without special tokens."""
        if self._encode_units is not None:
            return self._encode_units(text)
        return self._inner.encode(text, add_special_tokens=False).ids

    @_explain_failure
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of several texts, encoded in parallel threads."""
        if self._encode_units is not None:
            return list(map(self.encode, texts))
        encodings = self._inner.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    @_explain_failure
    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids; special tokens are written by name."""
        return self._inner.decode(list(ids), skip_special_tokens=False)

    @cached_property
    def encodes_pieces(self) -> bool:
        """Whether a text can be encoded in pieces (`gidd.data.tokenizers.encoding`)."""
        return self._encode_units is not None or can_cut(self._definition)

    @cached_property
    def is_character_level(self) -> bool:
        """Whether every character is one token: its own, a similar one, or the unknown token."""
        return bool(self.unknown_ids) and is_character_level(self._definition)

    def with_similar_characters(self, text: str) -> str:
        """Return the text as it is encoded, if tokens are characters, with the same length.

        Characters outside the vocabulary, such as curly quotes, long dashes and accented letters,
        are replaced by similar ones in it, if there are any.
        """
        return text.translate(self._similar) if self.is_character_level else text

    @cached_property
    def _similar(self) -> SimilarCharacters:
        vocab = self._inner.get_vocab(with_added_tokens=False)
        return SimilarCharacters(token for token in vocab if len(token) == 1)

    @cached_property
    def kind(self) -> str:
        """What tokens are: "bytes", "chars", or the kind of model, such as "BPE"."""
        definition = self._definition
        if is_character_level(definition):
            return "chars"
        return "bytes" if is_bytes(definition) else definition["model"]["type"]

    @cached_property
    def vocab(self) -> Vocab:
        """Vocabulary size and the ids of the mask and padding tokens."""
        ids = list(self._inner.get_vocab(with_added_tokens=True).values())
        for token in filter(None, (self.end, self.pad, self.mask)):
            if ids.count(self._id(token)) > 1:
                raise DataError(
                    f"the special token {shorten(token)} must have an id of its own, but another "
                    f"token has its id {self._id(token)} as well. {COPY_TOKENIZER}"
                )
        pad_id = None if self.pad is None else self._id(self.pad)
        return Vocab(max(ids) + 1, mask_id=self._id(self.mask), pad_id=pad_id)

    @cached_property
    def end_id(self) -> int:
        """Id of the end-of-text token, which is appended to each document."""
        if self.end is None:
            raise ConfigError(
                "the tokenizer must have an end-of-text token for this, it has none. Name a token "
                f"that ends a text as eos_token in {SETTINGS_FILES[0]}."
            )
        return self._id(self.end)

    @cached_property
    def terminator_ids(self) -> frozenset[int]:
        """Ids of end-of-text and padding, which may only occur at the end of a document."""
        return frozenset(self._id(token) for token in (self.end, self.pad) if token is not None)

    @cached_property
    def unknown_ids(self) -> frozenset[int]:
        """Id of the special token for text outside the vocabulary, if there is one.

        Like the mask, it stands for text that is not known: it is never sampled.
        """
        name: str | None = getattr(self._inner.model, "unk_token", None)
        added = self._inner.get_added_tokens_decoder()
        return frozenset(i for i, t in added.items() if t.special and t.content == name)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the canonical `tokenizer.json`; equal for tokenizers with the same ids."""
        return hashlib.sha256(self._canonical.encode()).hexdigest()

    @cached_property
    def _canonical(self) -> str:
        """Compact JSON with sorted keys, independent of the layout of the file that was read."""
        return json.dumps(
            self._definition, sort_keys=True, ensure_ascii=False, separators=(",", ":")
        )

    @property
    def _definition(self) -> dict[str, Any]:
        return json.loads(self._inner.to_str())

    def num_bytes(self) -> list[int]:
        """Return the length in bytes of each token of a byte-level or character-level tokenizer.

        Special tokens have length 0. For other tokenizers all lengths are 0, meaning unknown.
        """
        definition = self._definition
        is_byte_level = (definition["decoder"] or {}).get("type") == "ByteLevel"
        sizes = [0] * self.vocab.size
        if is_byte_level or is_character_level(definition):
            special = (self.end, self.pad, self.mask, definition["model"].get("unk_token"))
            for token, number in self._inner.get_vocab(with_added_tokens=False).items():
                if token not in special:
                    sizes[number] = len(token) if is_byte_level else len(token.encode())
        return sizes

    def save(self, folder: str | Path) -> None:
        """Write `tokenizer.json` and the names of the special tokens to a folder."""
        for name, text in self.files().items():
            write_text(Path(folder) / name, text)

    def files(self) -> dict[str, str]:
        """Return the texts of the files of a saved tokenizer by name."""
        names = dict(zip(SPECIAL_FIELDS, (self.end, self.pad, self.mask), strict=True))
        return {TOKENIZER_FILE: self._canonical} | settings_file(names)

    def _id(self, token: str) -> int:
        return self._inner.token_to_id(token)


def as_tokenizer(tokenizer: Tokenizer | FastTokenizer, model: Vocab | None = None) -> Tokenizer:
    """Return the tokenizer, or one that works on a copy of another library's object."""
    return tokenizer if isinstance(tokenizer, Tokenizer) else Tokenizer(tokenizer, model=model)


def _copy_of(tokenizer: Any) -> tuple[Any, dict[str, str]]:
    """Return a copy of an object's `tokenizers.Tokenizer`, and the special tokens it names."""
    from tokenizers import Tokenizer as Inner

    inner = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not isinstance(inner, Inner):
        raise ConfigError(
            "tokenizer must be a gidd.data.Tokenizer, a tokenizers.Tokenizer or a fast tokenizer "
            f"of transformers, got {type(tokenizer).__name__}. Load a fast one with "
            "transformers.AutoTokenizer.from_pretrained, or convert a slow one with "
            "transformers.convert_slow_tokenizer.convert_slow_tokenizer."
        )
    try:
        copied = Inner.from_str(inner.to_str())
    except Exception as error:  # the library has no other class
        raise ConfigError(
            f"tokenizer must be one that tokenizer.json can describe: {error}. Replace the parts "
            "that are written in Python by those of the tokenizers library."
        ) from error
    named: Mapping[str, Any] = getattr(tokenizer, "special_tokens_map", {})
    tokens = {field: named.get(field) for field in SPECIAL_FIELDS}
    return copied, {field: str(token) for field, token in tokens.items() if token is not None}
