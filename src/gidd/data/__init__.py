"""From documents to batches.

Reading order: `tokenizers`, `documents` (where texts come from), `corpora` (by name), `plan`,
`prepare` (token shards on disk), `manifest` (what they are, and whether they still are).
"""

from gidd.data.corpora import CORPORA
from gidd.data.manifest import Manifest, ShardRecord, Split, verify
from gidd.data.prepare import prepare
from gidd.data.tokenizers import Tokenizer, gpt2, train

__all__ = [
    "CORPORA",
    "Manifest",
    "ShardRecord",
    "Split",
    "Tokenizer",
    "gpt2",
    "prepare",
    "train",
    "verify",
]
