"""How an engine hands caches to others and gets theirs: what --kv-transfer-config says, with vLLM's keys."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from tessera.errors import ConfigError

FLAG = "kv_transfer_config"
ROLES = ("kv_producer", "kv_consumer", "kv_both")
_MAX_CHARS = 256
_MAX_EXTRA = 64
_LAST_PORT = 65_535
_NO_EXTRA: Mapping[str, Any] = MappingProxyType({})
_SECONDS = {"lease_seconds": (1.0, 3600.0), "timeout_seconds": (0.1, 3600.0)}


@dataclass(frozen=True)
class KVTransferConfig:
    """vLLM's fields, as far as they mean something here."""

    # Of the registry's connectors.
    kv_connector: str
    # Who computes prompts for others, who goes on with them, or both.
    kv_role: str
    # What others call this engine; "": a random one at each start.
    engine_id: str = ""
    # Where a producer listens, and what others are told.
    kv_ip: str = "127.0.0.1"
    # Of the first data-parallel engine; those of others follow. 0: any that is free.
    kv_port: int = 14579
    # Seconds for which blocks are kept without a sign of whoever wants them.
    lease_seconds: float = 30.0
    # Seconds after which a request computes its prompt itself, once there is room for what it waits for.
    timeout_seconds: float = 30.0
    # For the connector: the other keys of kv_connector_extra_config.
    extra: Mapping[str, Any] = field(default_factory=dict)

    def of_rank(self, rank: int) -> KVTransferConfig:
        """As the data-parallel engine of this number has it: ports follow each other. Raises ConfigError for a port
        above the last."""
        if not rank or not self.kv_port:
            return self
        if self.kv_port + rank > _LAST_PORT:
            raise ConfigError(
                f"{FLAG}: the port of engine {rank} is above {_LAST_PORT}; choose a lower one.", param=FLAG
            )
        engine_id = f"{self.engine_id}_dp{rank}" if self.engine_id else ""
        return replace(self, kv_port=self.kv_port + rank, engine_id=engine_id)

    @property
    def lends(self) -> bool:
        return self.kv_role != "kv_consumer"

    @property
    def fetches(self) -> bool:
        return self.kv_role != "kv_producer"


def is_loopback(host: str) -> bool:
    """Whether only processes of this host can be there."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def kv_transfer_config(value: Any, *, has_key: bool) -> KVTransferConfig:
    """has_key: whether there is a cluster's key. Raises ConfigError."""
    names = ("kv_connector", "kv_role", "engine_id", "kv_ip", "kv_port", "kv_load_failure_policy",
             "kv_connector_extra_config")  # fmt: skip
    if not isinstance(value, Mapping):
        raise ConfigError(f"{FLAG} must be a JSON object with the keys {', '.join(names)}.", param=FLAG)
    for key in value.keys() - set(names):
        raise ConfigError(f"{FLAG} has no key '{str(key)[:80]}'; it takes {', '.join(names)}.", param=FLAG)
    for name in ("kv_connector", "kv_role"):
        if name not in value:
            raise ConfigError(f"{FLAG} needs {name}.", param=FLAG)
    for name in ("kv_connector", "kv_role", "engine_id", "kv_ip"):
        text = value.get(name, "")
        if not isinstance(text, str) or len(text) > _MAX_CHARS:
            raise ConfigError(f"{FLAG}: {name} must be a text of at most {_MAX_CHARS} characters.", param=FLAG)
    if value["kv_role"] not in ROLES:
        raise ConfigError(f"{FLAG}: kv_role must be one of {', '.join(ROLES)}.", param=FLAG)
    if value.get("kv_load_failure_policy", "recompute") != "recompute":
        raise ConfigError(
            f'{FLAG}: kv_load_failure_policy can only be "recompute": the prompt of a cache that is lost is computed.',
            param=FLAG,
        )
    port = value.get("kv_port", KVTransferConfig.kv_port)
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= _LAST_PORT:
        raise ConfigError(f"{FLAG}: kv_port must be a whole number from 0 to {_LAST_PORT}.", param=FLAG)
    given = {
        name: value[name] for name in ("kv_connector", "kv_role", "engine_id", "kv_ip", "kv_port") if name in value
    }
    config = KVTransferConfig(**given, **_extra(value.get("kv_connector_extra_config", _NO_EXTRA)))
    if config.lends and not has_key and not is_loopback(config.kv_ip):
        raise ConfigError(
            f"{FLAG}: with kv_ip '{config.kv_ip}' other hosts can reach the caches; set cluster_key_file to a secret "
            "that the engines share.",
            param=FLAG,
        )
    return config


def _extra(value: Any) -> dict[str, Any]:
    """Fields of KVTransferConfig. Raises ConfigError."""
    if not isinstance(value, Mapping) or len(value) > _MAX_EXTRA or not all(isinstance(key, str) for key in value):
        raise ConfigError(
            f"{FLAG}: kv_connector_extra_config must be an object of at most {_MAX_EXTRA} keys.", param=FLAG
        )
    found: dict[str, Any] = {"extra": {name: one for name, one in value.items() if name not in _SECONDS}}
    for name, (low, high) in _SECONDS.items():
        if name in value:
            number = value[name]
            is_number = isinstance(number, int | float) and not isinstance(number, bool) and math.isfinite(number)
            if not is_number or not low <= number <= high:
                raise ConfigError(f"{FLAG}: {name} must be a number from {low:g} to {high:g}.", param=FLAG)
            found[name] = float(number)
    return found
