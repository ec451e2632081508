"""From token shards to batches.

Reading order: `shards` (tokens on disk), `loader` (their order, and batches).
"""

from gidd.data.loading.loader import (
    BatchSource as BatchSource,
    Loader as Loader,
    LoaderConfig as LoaderConfig,
    open_split as open_split,
    shuffled as shuffled,
)
from gidd.data.loading.shards import (
    ShardSet as ShardSet,
    TokenShard as TokenShard,
    open_shard as open_shard,
)
