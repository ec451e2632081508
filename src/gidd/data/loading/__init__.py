"""From token shards to batches.

Reading order: `shards` (tokens on disk), `order` (the shuffle), `loader` (batches).
"""

from gidd.data.loading.loader import BatchSource, Loader, LoaderConfig, open_split
from gidd.data.loading.order import shuffled
from gidd.data.loading.shards import ShardSet, TokenShard, open_shard

__all__ = [
    "BatchSource",
    "Loader",
    "LoaderConfig",
    "ShardSet",
    "TokenShard",
    "open_shard",
    "open_split",
    "shuffled",
]
