"""From token shards to batches.

Reading order: `shards` (tokens on disk), `order` (of an epoch), `loader` (batches).
"""

from gidd.data.loading.loader import (
    BatchSource as BatchSource,
    Loader as Loader,
    LoaderConfig as LoaderConfig,
    open_split as open_split,
)
from gidd.data.loading.order import (
    BLOCK_BYTES as BLOCK_BYTES,
    shuffled as shuffled,
)
from gidd.data.loading.shards import (
    ShardSet as ShardSet,
    TokenShard as TokenShard,
    open_shard as open_shard,
)
