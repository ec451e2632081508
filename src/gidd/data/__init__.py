"""From documents to batches.

Reading order: `tokenizers`; `corpora` (where documents come from); `preparation` (documents to
shards of tokens on disk); `manifest` (contents and checksums of the shards); `loading` and `batch`
(shards to batches), the only ones that import torch: worker processes do not need it.
"""

from gidd.data.corpora import CORPORA as CORPORA, Corpus as Corpus
from gidd.data.manifest import (
    DataManifest as DataManifest,
    ShardRecord as ShardRecord,
    Split as Split,
    verify as verify,
)
from gidd.data.preparation import prepare as prepare
from gidd.data.tokenizers import (
    Tokenizer as Tokenizer,
    gpt2 as gpt2,
    train_tokenizer as train_tokenizer,
)
