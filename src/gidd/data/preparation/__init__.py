"""From documents to token shards."""
