"""From token shards to batches.

Reading order: `shards` (tokens on disk), `loader` (their order, and batches).
"""

from gidd.data.loading.loader import BatchSource, Loader, LoaderConfig, open_split, shuffled
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
