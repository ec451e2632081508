"""`Tokenizer`: text to token ids and back, with a mask token and an end-of-text token."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from gidd.common.files import explain_damage, write_text
from gidd.common.terminal import shorten
from gidd.data.tokenizers.encoding import (
    SimilarCharacters,
    byte_characters,
    can_cut,
    is_bytes,
    is_character_level,
    unit_encoder,
)
from gidd.data.tokenizers.files import (
    COPY_TOKENIZER,
    SETTINGS_FILES,
    SPECIAL_FIELDS,
    TOKENIZER_FILE,
    ensure_special_tokens,
    find_tokenizer,
    read_settings,
    read_tokenizer,
)
from gidd.errors import ConfigError, DataError
from gidd.vocab import Vocab

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


_explain_failure = explain_damage("the tokenizer or the text", COPY_TOKENIZER, DataError)


class Tokenizer:
    """A tokenizer of the `tokenizers` library with the special tokens that diffusion needs.

    `inner` is such a tokenizer, or a fast one of `transformers`; it is changed only without `copy`.
    Special tokens are found by the given names or common ones; missing ones are added, the mask
    last, with a warning that `notes` keeps. `model` is the vocabulary of the model that uses it:
    it must have a row for an added end-of-text. Names of special tokens in text are just text.
    """

    def __init__(
        self,
        inner: Any,
        *,
        end: str | None = None,
        pad: str | None = None,
        mask: str | None = None,
        model: Vocab | None = None,
        chat_template: str | None = None,
        named_tokens: Mapping[str, str] | None = None,
        copy: bool = True,
    ) -> None:
        self.chat_template = chat_template or getattr(inner, "chat_template", None)
        """Jinja template of a conversation (`gidd.data.chat`); None: a plain one is used."""
        tokens: Mapping[str, object] = getattr(inner, "special_tokens_map", {})
        named = {field: str(token) for field, token in tokens.items() if token is not None}
        self._named_tokens = named = named | {**(named_tokens or {})}
        self._inner = inner = _copy_of(inner) if copy else inner
        inner.no_padding()
        inner.no_truncation()
        inner.encode_special_tokens = True  # text must never encode to the mask token
        names = {name: named[field] for name, field in SPECIAL_FIELDS.items() if field in named}
        names |= _given(end=end, pad=pad, mask=mask)
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
        """Load a `tokenizer.json`, a folder with one, or a tokenizer by name.

        Args:
            name: File; folder; "gpt2" (50,258 tokens), "gpt2+pad" or "bytes" (a folder of that name
                is "./bytes"); or the name of a repository on the Hugging Face hub.
            end: End-of-text token; by default as the settings beside the file name it, otherwise
                one with a common name. `pad` and `mask` are found in the same way.
            pad: Padding token.
            mask: Mask token.
            revision: Branch, tag or commit on the hub; by default the newest.
            model: Vocabulary of the model that uses it; None: any.
        """
        from gidd.data.tokenizers import kinds  # they build this class

        named = _given(end=end, pad=pad, mask=mask)
        is_plain = not named and revision is None
        if is_plain and name in kinds.GPT2_VOCAB_SIZES and not Path(name).exists():
            return kinds.gpt2(own_padding=name == "gpt2+pad")
        if name in kinds.BUILT_KINDS and not is_plain:
            raise ConfigError(
                f"end, pad, mask and revision must be left out for the tokenizer {name}."
            )
        if name == "bytes":
            return kinds.byte_level()
        if name == "chars" and not Path(name).is_dir():
            raise ConfigError(
                "the tokenizer chars is made from a corpus, and here is none. Use the folder of "
                "data prepared with it, or of a model trained with it."
            )
        path = find_tokenizer(name, revision)
        tokens, template = read_settings(path)
        return cls(
            read_tokenizer(path, model),
            model=model,
            chat_template=template,
            named_tokens=tokens,
            copy=False,
            **named,
        )

    @_explain_failure
    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, without special tokens."""
        if self._encode_units is not None:
            return self._without_special(self._encode_units(text))
        return self._without_special(self._inner.encode(text, add_special_tokens=False).ids)

    @_explain_failure
    def encode_with_special(self, text: str) -> list[int]:
        """Return the token ids of a text in which names of special tokens stand for them."""
        text = self.with_similar_characters(text)
        return self._special_encoder.encode(text, add_special_tokens=False).ids

    @cached_property
    def _special_encoder(self) -> Any:
        copied = _copy_of(self._inner)
        known = {token.content for token in copied.get_added_tokens_decoder().values()}
        copied.add_special_tokens([name for name in self._special_names if name not in known])
        copied.encode_special_tokens = False
        return copied

    def special_name_in(self, text: str) -> str | None:
        """Return the name of a special token that `encode_with_special` would find, or None."""
        text = self.with_similar_characters(text)
        if self._inner.normalizer is None:
            return next((name for name in self._special_names if name in text), None)
        ids = (self.special_ids - self.unknown_ids).intersection(self.encode_with_special(text))
        return self._inner.id_to_token(min(ids)) if ids else None

    @cached_property
    def _special_names(self) -> list[str]:
        added = self._inner.get_added_tokens_decoder().values()
        names = [token.content for token in added if token.special]
        return list(dict.fromkeys(filter(None, (*names, self.end, self.pad, self.mask))))

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of all special tokens, those of a chat template among them."""
        return frozenset(map(self._id, self._special_names))

    @property
    def named_tokens(self) -> dict[str, str]:
        """Special tokens by the names that chat templates use, such as eos_token."""
        tokens = {field: getattr(self, name) for name, field in SPECIAL_FIELDS.items()}
        return self._named_tokens | {field: token for field, token in tokens.items() if token}

    @_explain_failure
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of several texts, encoded in parallel threads."""
        if self._encode_units is not None:
            return list(map(self.encode, texts))
        encodings = self._inner.encode_batch_fast(list(texts), add_special_tokens=False)
        return [self._without_special(encoding.ids) for encoding in encodings]

    def _without_special(self, ids: list[int]) -> list[int]:
        if self._spelled_ids and not self._spelled_ids.isdisjoint(ids):
            name = self._inner.id_to_token(min(self._spelled_ids.intersection(ids)))
            raise DataError(
                f"a text must not contain {name}: this tokenizer encodes it as the special token. "
                "Remove it, or use a byte-level tokenizer, such as gpt2."
            )
        return ids

    @cached_property
    def _spelled_ids(self) -> frozenset[int]:
        """Special tokens that text may encode to: the model of the tokenizer has their names."""
        added = self._inner.get_added_tokens_decoder().values()
        vocab = self._inner.get_vocab(with_added_tokens=False)
        only_added = {token.content for token in added if token.special} - vocab.keys()
        names = filter(None, {self.end, self.pad, self.mask} - only_added)
        return frozenset(map(self._id, names)) - self.unknown_ids

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
        """Return the text, if tokens are characters, with similar ones for unknown ones."""
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
        """Id of the special token for text outside the vocabulary, if any; it is never sampled."""
        name: str | None = getattr(self._inner.model, "unk_token", None)
        added = self._inner.get_added_tokens_decoder()
        return frozenset(i for i, t in added.items() if t.special and t.content == name)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the canonical `tokenizer.json`; equal for tokenizers with the same ids."""
        return hashlib.sha256(self._canonical.encode()).hexdigest()

    @cached_property
    def _canonical(self) -> str:
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
            for token, index in self._inner.get_vocab(with_added_tokens=False).items():
                if token not in special:
                    sizes[index] = len(token) if is_byte_level else len(token.encode())
        return sizes

    @cached_property
    def longest_token(self) -> int | None:
        """The most characters of a text that a token stands for; None if that has no limit.

        It has one if each byte of a text belongs to a token of byte-level BPE.
        """
        added = self._inner.get_added_tokens_decoder().values()
        has_limit = self.encodes_pieces
        has_limit &= self._inner.get_vocab(with_added_tokens=False).keys() >= {*byte_characters()}
        if not has_limit or any(token.lstrip or token.rstrip for token in added):
            return None
        return max(map(len, self._inner.get_vocab(with_added_tokens=True)))

    def save(self, folder: str | Path) -> None:
        """Write `tokenizer.json` and the names of the special tokens to a folder."""
        for name, text in self.files().items():
            write_text(Path(folder) / name, text)

    def files(self) -> dict[str, str]:
        """Return the texts of the files of a saved tokenizer by name."""
        settings = dict(sorted(self.named_tokens.items()))
        if self.chat_template is None:
            special = SPECIAL_FIELDS.values()
            settings = {field: token for field, token in settings.items() if field in special}
        else:
            settings["chat_template"] = self.chat_template
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
        text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
        return {TOKENIZER_FILE: self._canonical, SETTINGS_FILES[0]: text}

    def _id(self, token: str) -> int:
        return self._inner.token_to_id(token)


def _given(**names: str | None) -> dict[str, str]:
    return {name: token for name, token in names.items() if token is not None}


def as_tokenizer(tokenizer: Tokenizer | FastTokenizer, model: Vocab | None = None) -> Tokenizer:
    """Return the tokenizer, or one that works on a copy of another library's object."""
    return tokenizer if isinstance(tokenizer, Tokenizer) else Tokenizer(tokenizer, model=model)


def _copy_of(tokenizer: Any) -> Any:
    """Return a copy of an object's `tokenizers.Tokenizer`."""
    from tokenizers import Tokenizer as Inner

    inner = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not isinstance(inner, Inner):
        raise ConfigError(
            "tokenizer must be a gidd.data.Tokenizer, a tokenizers.Tokenizer or a fast tokenizer "
            f"of transformers (AutoTokenizer.from_pretrained), got {type(tokenizer).__name__}."
        )
    try:
        return Inner.from_str(inner.to_str())
    except Exception as error:  # the library has no other class
        raise ConfigError(
            f"tokenizer must be one that tokenizer.json can describe, without parts written in "
            f"Python: {error}."
        ) from error
