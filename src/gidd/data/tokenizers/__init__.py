"""Tokenizers: text to token ids and back, with a mask token and an end-of-text token.

    tokenizer = Tokenizer.load("gpt2")           # a name on the Hugging Face hub
    tokenizer = Tokenizer.load("runs/tokenizer")  # a folder with tokenizer.json, or that file
    tokenizer = gpt2()                            # 50,258 tokens; end-of-text is the padding token
    tokenizer = train_tokenizer(["some text", Path("speeches.txt")], 4096)  # byte-level BPE
    tokenizer = byte_level()                      # 256 bytes
    tokenizer = train_characters(["some text"])   # its characters
    tokenizer.decode(tokenizer.encode("any text")) == "any text"

Models, losses and samplers depend on `tokenizer.vocab` only. Reading order: `special` (special
tokens), `files` (reading and checking files), `encoding` (tables, long texts), `tokenizer` (the
class), `kinds` (tokenizers by name, and training them).
"""

from gidd.data.tokenizers.files import TOKENIZER_FILE, find_tokenizer
from gidd.data.tokenizers.kinds import (
    BUILT_KINDS,
    BYTES_VOCAB_SIZE,
    GPT2_VOCAB_SIZES,
    byte_level,
    character_level,
    gpt2,
    tokenizer_by_name,
    tokenizer_for,
    train_characters,
    train_tokenizer,
)
from gidd.data.tokenizers.special import END, MASK, PAD, UNKNOWN
from gidd.data.tokenizers.tokenizer import FastTokenizer, Tokenizer, as_tokenizer

__all__ = [
    "BUILT_KINDS",
    "BYTES_VOCAB_SIZE",
    "END",
    "GPT2_VOCAB_SIZES",
    "MASK",
    "PAD",
    "TOKENIZER_FILE",
    "UNKNOWN",
    "FastTokenizer",
    "Tokenizer",
    "as_tokenizer",
    "byte_level",
    "character_level",
    "find_tokenizer",
    "gpt2",
    "tokenizer_by_name",
    "tokenizer_for",
    "train_characters",
    "train_tokenizer",
]
