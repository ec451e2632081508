"""From documents to batches.

Reading order: `tokenizers`, `documents` and `formats` (where texts come from), `remote` (behind
URLs), `corpora` (by name), `plan`, `tasks`, `prepare` (token shards on disk), `executors` (on many
machines), `manifest` (what the shards are, and whether they still are).
"""

from gidd.data.corpora import CORPORA
from gidd.data.manifest import DataManifest, ShardRecord, Split, verify
from gidd.data.preparation.prepare import prepare
from gidd.data.tokenizers import Tokenizer, gpt2, train_tokenizer

__all__ = [
    "CORPORA",
    "DataManifest",
    "ShardRecord",
    "Split",
    "Tokenizer",
    "gpt2",
    "prepare",
    "train_tokenizer",
    "verify",
]
