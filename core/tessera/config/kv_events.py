"""Where an engine publishes its KV events: what --kv-events-config says, with the keys that vLLM has for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tessera.errors import ConfigError

FLAG = "kv_events_config"
_SCHEMES = ("tcp://", "ipc://", "inproc://")
_MAX_CHARS = 1024
_MAX_NUMBER = 2**31 - 1
_LAST_PORT = 65_535


@dataclass(frozen=True)
class KVEventsConfig:
    """vLLM's fields, but enable_kv_cache_events and publisher: a record is there only where events are published."""

    # Of the ZMQ socket that publishes.
    endpoint: str = "tcp://*:5557"
    # Of the ZMQ socket that answers who missed something; None: nobody can ask.
    replay_endpoint: str | None = None
    # Batches that can be asked for again.
    buffer_steps: int = 10_000
    # Messages that wait for a slow subscriber before it misses some.
    hwm: int = 100_000
    # Events that wait to be published before some are dropped.
    max_queue_size: int = 100_000
    # Of every message; subscribers choose by it.
    topic: str = ""

    def of_rank(self, rank: int) -> KVEventsConfig:
        """As the data-parallel engine of this number has it: the ports of engines follow each other, and their paths
        end in the number. Raises ConfigError for a port above the last."""
        replay = None if self.replay_endpoint is None else endpoint_of_rank(self.replay_endpoint, rank)
        return replace(self, endpoint=endpoint_of_rank(self.endpoint, rank), replay_endpoint=replay)


def endpoint_of_rank(endpoint: str, rank: int) -> str:
    """Raises ConfigError."""
    if not rank:
        return endpoint
    if not endpoint.startswith("tcp://"):
        return f"{endpoint}_dp{rank}"
    address, _, port = endpoint.rpartition(":")
    if int(port) and int(port) + rank > _LAST_PORT:
        raise ConfigError(f"{FLAG}: the port of engine {rank} is above {_LAST_PORT}; choose a lower one.", param=FLAG)
    return f"{address}:{int(port) + rank if int(port) else 0}"


def kv_events_config(value: Any) -> KVEventsConfig | None:
    """None if nothing is to be published. Raises ConfigError."""
    names = ("enable_kv_cache_events", "publisher", *KVEventsConfig.__dataclass_fields__)
    if not isinstance(value, Mapping):
        raise ConfigError(f"{FLAG} must be a JSON object with the keys {', '.join(names)}.", param=FLAG)
    for key in value.keys() - set(names):
        raise ConfigError(f"{FLAG} has no key '{str(key)[:80]}'; it takes {', '.join(names)}.", param=FLAG)
    enabled, publisher = value.get("enable_kv_cache_events", False), value.get("publisher")
    if not isinstance(enabled, bool):
        raise ConfigError(f"{FLAG}: enable_kv_cache_events must be true or false.", param=FLAG)
    if publisher not in (None, "null", "zmq"):
        raise ConfigError(f'{FLAG}: publisher must be "zmq" or "null".', param=FLAG)
    config = KVEventsConfig(
        **{name: one for name, one in value.items() if name in KVEventsConfig.__dataclass_fields__ and one is not None}
    )
    for endpoint in (config.endpoint, config.replay_endpoint):
        if endpoint is not None:
            _check_endpoint(endpoint)
    for name in ("buffer_steps", "hwm", "max_queue_size"):
        number = getattr(config, name)
        if isinstance(number, bool) or not isinstance(number, int) or not 0 < number <= _MAX_NUMBER:
            raise ConfigError(f"{FLAG}: {name} must be a whole number from 1 to {_MAX_NUMBER}.", param=FLAG)
    topic: Any = config.topic
    if not isinstance(topic, str) or len(topic) > _MAX_CHARS:
        raise ConfigError(f"{FLAG}: topic must be a text of at most {_MAX_CHARS} characters.", param=FLAG)
    return config if enabled and publisher != "null" else None


def _check_endpoint(endpoint: Any) -> None:
    endpoint = str(endpoint)
    whole = endpoint.startswith(_SCHEMES) and len(endpoint) <= _MAX_CHARS
    port = endpoint.rpartition(":")[2]
    if not whole or (endpoint.startswith("tcp://") and not (port.isdecimal() and int(port) <= _LAST_PORT)):
        raise ConfigError(
            f"{FLAG}: '{endpoint[:80]}' is no endpoint; write one such as tcp://*:5557 or ipc:///run/kv-events.",
            param=FLAG,
        )
