"""The shared index and feed on Redis 6.2 or newer, or Valkey: one server, Sentinel, or a cluster."""

from laurels.adapters.redis.buckets import RedisBuckets
from laurels.adapters.redis.connection import RedisConnection
from laurels.adapters.redis.feed import RedisFeed
from laurels.adapters.redis.index import RedisIndex
from laurels.adapters.redis.urls import parse_redis_url

__all__ = ["RedisBuckets", "RedisConnection", "RedisFeed", "RedisIndex", "parse_redis_url"]
