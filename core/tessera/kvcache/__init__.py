"""The paged KV cache: its blocks, which requests hold them, and which of them hold a cached prefix."""

from __future__ import annotations

from tessera.kvcache.groups import solve
from tessera.kvcache.manager import KVCacheManager
from tessera.kvcache.pool import BlockPool
from tessera.kvcache.prefix_cache import HashChain, PrefixCache, PrefixHit
from tessera.kvcache.tables import BlockTables

__all__ = ["BlockPool", "BlockTables", "HashChain", "KVCacheManager", "PrefixCache", "PrefixHit", "solve"]
