"""From documents to batches.

Reading order: `tokenizers`; `corpora` (where documents come from); `preparation` (documents to
shards of tokens on disk); `manifest` (contents and checksums of the shards); `loading` and `batch`
(shards to batches).

This module imports neither torch nor optional packages, because every worker process of a
preparation imports it. `gidd.data.loading` imports torch.
"""

from gidd.data.corpora import CORPORA, Corpus
from gidd.data.manifest import DataManifest, ShardRecord, Split, verify
from gidd.data.preparation import prepare
from gidd.data.tokenizers import Tokenizer, gpt2, tokenizer_by_name, train_tokenizer

__all__ = [
    "CORPORA",
    "Corpus",
    "DataManifest",
    "ShardRecord",
    "Split",
    "Tokenizer",
    "gpt2",
    "prepare",
    "tokenizer_by_name",
    "train_tokenizer",
    "verify",
]
