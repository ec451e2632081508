"""A tokenizer: text to token ids and back, with a mask token and an end-of-text token."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, final

from gidd.common.files import explain_damage, write_text
from gidd.common.terminal import shorten
from gidd.data.pieces import can_cut
from gidd.data.similar_characters import SimilarCharacters
from gidd.data.special_tokens import ensure_special_tokens, names_of
from gidd.data.tokenizer_files import (
    COPY_TOKENIZER,
    TOKENIZER_FILE,
    find_tokenizer,
    read_special_tokens,
    read_tokenizer,
    settings_file,
)
from gidd.data.tokenizer_objects import FastTokenizer, copy_of
from gidd.data.tokenizer_units import is_bytes, is_character_level, unit_encoder
from gidd.errors import DataError
from gidd.vocab import Vocab

_log = logging.getLogger(__name__)


@final
class Tokenizer:
    """A tokenizer of the `tokenizers` library with the special tokens that diffusion needs.

    `inner` is such a tokenizer, or a fast one of `transformers`; it is copied, never changed.
    Special tokens are looked up by the given names, otherwise by common names. Missing end-of-text
    and mask tokens are added, the mask last, with a warning that `notes` keeps; without a padding
    token, end-of-text is used. Text that contains the name of a special token ("[MASK]") is encoded
    as ordinary text.
    """

    def __init__(
        self, inner: Any, *, end: str | None = None, pad: str | None = None, mask: str | None = None
    ) -> None:
        copied, named = copy_of(inner)
        self._adopt(copied, named | names_of(end, pad, mask))

    @classmethod
    def owning(cls, inner: Any, names: Mapping[str, str]) -> Tokenizer:
        """Build a tokenizer that takes over `inner`, without the 0.2 s of copying GPT-2."""
        tokenizer = cls.__new__(cls)
        tokenizer._adopt(inner, names)
        return tokenizer

    def _adopt(self, inner: Any, names: Mapping[str, str]) -> None:
        self._inner = inner
        inner.no_padding()
        inner.no_truncation()
        inner.encode_special_tokens = True  # text must never encode to the mask token
        self.end, self.pad, self.mask, self.notes = ensure_special_tokens(inner, names)
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
    ) -> Tokenizer:
        """Load a `tokenizer.json`, a folder with one, or a repository on the Hugging Face hub.

        Args:
            name: File, folder, or name on the hub.
            end: End-of-text token; by default the `eos_token` of `tokenizer_config.json` or
                `special_tokens_map.json`, otherwise one with a common name.
            pad: Padding token, found in the same way.
            mask: Mask token, found in the same way.
            revision: Branch, tag or commit on the hub; by default the newest.
        """
        path = find_tokenizer(name, revision)
        names = read_special_tokens(path) | names_of(end, pad, mask)
        return cls.owning(read_tokenizer(path), names)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, without special tokens."""
        try:
            if self._encode_units is not None:
                return self._encode_units(text)
            return self._inner.encode(text, add_special_tokens=False).ids
        except BaseException:  # also a panic in Rust; without an error, `try` takes no time
            with explain_damage("the tokenizer or the text", COPY_TOKENIZER, DataError):
                raise

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of several texts, encoded in parallel threads."""
        if self._encode_units is not None:
            return list(map(self.encode, texts))
        try:
            encodings = self._inner.encode_batch_fast(list(texts), add_special_tokens=False)
        except BaseException:
            with explain_damage("the tokenizer or the text", COPY_TOKENIZER, DataError):
                raise
        return [encoding.ids for encoding in encodings]

    @cached_property
    def encodes_pieces(self) -> bool:
        """Whether a text can be encoded in pieces (`gidd.data.pieces`)."""
        return self._encode_units is not None or can_cut(self._definition)

    @cached_property
    def is_character_level(self) -> bool:
        """Whether every character is one token: its own, a similar one, or the unknown token."""
        return bool(self.unknown_ids) and is_character_level(self._definition)

    def with_similar_characters(self, text: str) -> str:
        """Return the text as it is encoded, if tokens are characters, with the same length.

        Those outside the vocabulary, such as curly quotes, long dashes and accented letters, are
        replaced by similar ones in it, if there are any.
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

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids; special tokens are written by name."""
        try:
            return self._inner.decode(list(ids), skip_special_tokens=False)
        except BaseException:
            with explain_damage("the tokenizer or the token ids", COPY_TOKENIZER, DataError):
                raise

    @cached_property
    def vocab(self) -> Vocab:
        """Vocabulary size and the ids of the mask and padding tokens."""
        ids = list(self._inner.get_vocab(with_added_tokens=True).values())
        for token in (self.end, self.pad, self.mask):
            if ids.count(self._id(token)) > 1:
                raise DataError(
                    f"the special token {shorten(token)} must have an id of its own, but another "
                    f"token has its id {self._id(token)} as well. {COPY_TOKENIZER}"
                )
        return Vocab(max(ids) + 1, mask_id=self._id(self.mask), pad_id=self._id(self.pad))

    @cached_property
    def end_id(self) -> int:
        """Id of the end-of-text token, which is appended to each document."""
        return self._id(self.end)

    @cached_property
    def terminator_ids(self) -> frozenset[int]:
        """Ids of end-of-text and padding, which may only occur at the end of a document."""
        return frozenset({self.end_id, self._id(self.pad)})

    @cached_property
    def unknown_ids(self) -> frozenset[int]:
        """Id of the special token for text outside the vocabulary, if there is one.

        Like the mask, it stands for text that is not known: no model may write it.
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
        return {TOKENIZER_FILE: self._canonical} | settings_file(self.end, self.mask, self.pad)

    def _id(self, token: str) -> int:
        return self._inner.token_to_id(token)


def as_tokenizer(tokenizer: Tokenizer | FastTokenizer) -> Tokenizer:
    """Return the tokenizer, or one that works on a copy of another library's object."""
    return tokenizer if isinstance(tokenizer, Tokenizer) else Tokenizer(tokenizer)
