"""Tokenizers of all kinds of the `tokenizers` library, in the layouts of known models."""

import base64
from collections.abc import Callable, Mapping
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer as Inner,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

TEXT = "the cat's 2,024 hats  sat on 東京\n\n and naïve ﬁsh…"
SPACE = "▁"
LETTERS = "abcdefghijklmnopqrstuvwxyz"

# expressions of the same kind as those of published models
WORDS_AND_DIGITS = (
    r"(?i:'[sdmt]|'ll|'ve|'re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CASES = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MOLECULES = r"(\[[^\]]+\]|Br|Cl|[BCNOSPFIbcnops]|[()=#@+\\/:~*$.-]|%[0-9]{2}|[0-9])"


def charsmap(replacements: Mapping[str, str]) -> str:
    """Return a character map as SentencePiece writes it: a double-array trie, then the strings."""
    keys = {key.encode(): value.encode() for key, value in replacements.items()}
    prefixes = sorted({key[:end] for key in keys for end in range(len(key) + 1)})
    block = {prefix: 256 * (number + 1) for number, prefix in enumerate(prefixes)}
    units = [0] * (256 * (len(prefixes) + 1))
    units[0] = block[b""] << 10
    strings = b""
    for prefix in prefixes[1:]:
        place = block[prefix[:-1]] ^ prefix[-1]
        units[place] = (place ^ block[prefix]) << 10 | (prefix in keys) << 8 | prefix[-1]
        if prefix in keys:
            units[block[prefix]] = 1 << 31 | len(strings)
            strings += keys[prefix] + b"\0"
    trie = b"".join(unit.to_bytes(4, "little") for unit in units)
    data = len(trie).to_bytes(4, "little") + trie + strings
    return base64.b64encode(data).decode()


def precompiled() -> Any:
    """Return a few of SentencePiece's replacements, with the longest: 18 characters for one."""
    longest = "صلى الله عليه وسلم"
    table = {"\ufdfa": longest, "ﬁ": "fi", "…": "...", "\n": " ", "\t": " "}
    return normalizers.Precompiled(base64.b64decode(charsmap(table)))


def byte_level_bpe(pattern: str | None = None) -> Inner:
    """GPT-2; with a pattern Llama 3, Qwen and others."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {symbol: i for i, symbol in enumerate([*alphabet, "th", "the"])}
    inner = Inner(models.BPE(vocab, [("t", "h"), ("th", "e")]))
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    if pattern:
        first = pre_tokenizers.Split(Regex(pattern), "isolated")
        split = pre_tokenizers.Sequence([first, split])
    inner.pre_tokenizer = split
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(["<|endoftext|>"])
    template = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", len(vocab))]
    )
    inner.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return inner


def sentencepiece_bpe() -> Inner:
    """Llama 2 and Gemma: spaces are replaced, unknown characters are bytes."""
    symbols = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), SPACE, *LETTERS]
    vocab = {symbol: i for i, symbol in enumerate(symbols)}
    inner = Inner(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    inner.normalizer = normalizers.Sequence(
        [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
    )
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    inner.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    return inner


def clip() -> Inner:
    """CLIP: spaces are merged, words end with a suffix."""
    symbols = [*sorted(pre_tokenizers.ByteLevel.alphabet())]
    symbols += [f"{symbol}</w>" for symbol in symbols]
    vocab = {symbol: i for i, symbol in enumerate(symbols)}
    inner = Inner(models.BPE(vocab, [], end_of_word_suffix="</w>"))
    spaces = normalizers.Replace(Regex(r"\s+"), " ")
    inner.normalizer = normalizers.Sequence([normalizers.NFC(), spaces, normalizers.Lowercase()])
    words = pre_tokenizers.Split(Regex(r"'s|'t|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"), "removed", True)
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    inner.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.BPEDecoder()])
    return inner


def wordpiece() -> Inner:
    """BERT."""
    words = ["[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "hat", "##s", "sat", "on", "'", "s"]
    inner = Inner(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    inner.normalizer = normalizers.BertNormalizer()
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece()
    inner.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    return inner


def unigram(*first: Any) -> Inner:
    """T5 and XLM-R; ALBERT and XLNet have other normalizers first."""
    pieces = ["<unk>", "<pad>", "</s>", SPACE, *LETTERS, *"0123456789,.'", f"{SPACE}the"]
    inner = Inner(models.Unigram([(piece, -float(i)) for i, piece in enumerate(pieces)], 0, False))
    spaces = normalizers.Replace(Regex(" {2,}"), " ")
    inner.normalizer = normalizers.Sequence([*first, precompiled(), spaces])
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    inner.decoder = decoders.Metaspace()
    inner.add_tokens([AddedToken("<extra_id_0>", normalized=True)])
    return inner


def albert() -> Inner:
    """ALBERT: Unicode's longest form before SentencePiece's replacements."""
    quotes = (normalizers.Replace(mark, '"') for mark in ("``", "''"))
    forms = (normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase())
    return unigram(*quotes, *forms)


def word_level() -> Inner:
    vocab = {"<unk>": 0, "the": 1, "cat": 2, "sat": 3, "on": 4}
    inner = Inner(models.WordLevel(vocab, unk_token="<unk>"))
    inner.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.Strip()])
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation(), pre_tokenizers.Digits(True)]
    )
    return inner


def letters_of_speech() -> Inner:
    """Speech recognition: a closed vocabulary, without a token for unknown text."""
    vocab = {symbol: i for i, symbol in enumerate(["<pad>", "|", *LETTERS])}
    inner = Inner(models.WordLevel(vocab))
    inner.normalizer = normalizers.Replace(" ", "|")
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(""), "isolated")
    inner.decoder = decoders.CTC()
    return inner


def molecules() -> Inner:
    """Atoms, with an expression that takes quadratic time on unclosed brackets."""
    vocab = {"<unk>": 0, "C": 1, "[C@@H]": 2, "(": 3, ")": 4, "=": 5, "O": 6}
    inner = Inner(models.WordLevel(vocab, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(MOLECULES), "isolated")
    inner.decoder = decoders.Fuse()
    return inner


KINDS: dict[str, Callable[[], Inner]] = {
    "gpt2": byte_level_bpe,
    "llama3": lambda: byte_level_bpe(WORDS_AND_DIGITS),
    "gpt4o": lambda: byte_level_bpe(CASES),
    "llama2": sentencepiece_bpe,
    "clip": clip,
    "bert": wordpiece,
    "t5": unigram,
    "albert": albert,
    "word_level": word_level,
    "speech": letters_of_speech,
    "molecules": molecules,
}
