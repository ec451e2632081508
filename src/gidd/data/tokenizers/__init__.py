"""Tokenizers: text to token ids and back, with a mask token and an end-of-text token.

Models, losses and samplers depend on `tokenizer.vocab` only. Reading order: `files` (reading and
checking files, special tokens), `encoding` (tables, long texts), `tokenizer` (the class), `kinds`
(building and training tokenizers).
"""

from gidd.data.tokenizers.files import (
    END as END,
    MASK as MASK,
    PAD as PAD,
    TOKENIZER_FILE as TOKENIZER_FILE,
    UNKNOWN as UNKNOWN,
    find_tokenizer as find_tokenizer,
)
from gidd.data.tokenizers.kinds import (
    BUILT_KINDS as BUILT_KINDS,
    BYTES_VOCAB_SIZE as BYTES_VOCAB_SIZE,
    GPT2_VOCAB_SIZES as GPT2_VOCAB_SIZES,
    byte_level as byte_level,
    character_level as character_level,
    gpt2 as gpt2,
    tokenizer_for as tokenizer_for,
    train_characters as train_characters,
    train_tokenizer as train_tokenizer,
    word_level as word_level,
)
from gidd.data.tokenizers.tokenizer import (
    FastTokenizer as FastTokenizer,
    Tokenizer as Tokenizer,
    as_tokenizer as as_tokenizer,
)
