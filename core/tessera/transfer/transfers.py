"""The engine's half of transfers: lends caches of prompts that it has computed for others, and has those of others
before it begins with a request.

What arrives becomes part of the prefix cache, and the request then starts as with any prefix hit: whole units of the
prefix cache are used, the rest of the prompt is computed. Nothing in the scheduler knows whether a block was computed
here."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np

from tessera.config.kv_transfer import FLAG, KVTransferConfig
from tessera.errors import ConfigError, RequestError
from tessera.kv_transfer_params import NAME, RECEIVED, KVTransferParams
from tessera.kvcache.manager import KVCacheManager, Reservation
from tessera.kvcache.prefix_cache import HashChain, PrefixCache, SpanContent
from tessera.log import about
from tessera.platform.feature import EngineFeature, FeatureCounter, FeatureState
from tessera.platform.runner import unit_of
from tessera.platform.transfer import EngineCache, Fetch, KVConnector, Lease, TokenBlocks, TransferError
from tessera.plugins import load_path
from tessera.processes.peers import read_key
from tessera.transfer.leases import LeaseTable

if TYPE_CHECKING:
    from tessera.platform.runner import CacheGroup
    from tessera.platform.transfer import CacheFormat, TokenStore
    from tessera.plugins.registry import Registry
    from tessera.request import Request

log = logging.getLogger(__name__)

MOST_LENT = 0.5
"""Of the blocks of each group that rows can spare: a prompt beyond that is not lent, unless none is."""


class KVTransfers(EngineFeature):
    """Off unless --kv-transfer-config is set."""

    _cache: KVCacheManager

    def __init__(self, config: KVTransferConfig, registry: Registry, *, key_file: str, rank: int) -> None:
        """rank: of the engine among data-parallel ones. Raises ConfigError."""
        self._config = config.of_rank(rank)
        self._path = registry.kv_connectors.resolve(config.kv_connector)
        self._key = read_key(key_file)
        self._leases = LeaseTable(config.lease_seconds)
        # None until attach().
        self._connector: KVConnector | None = None
        # By request_id.
        self._lent: dict[str, Reservation] = {}
        # Fetches under way that have room.
        self._arriving: list[_Arrival] = []
        self._num_asked_tokens = self._num_received_tokens = self._num_received_bytes = self._num_recomputed = 0

    def attach(
        self, cache: KVCacheManager, groups: Sequence[CacheGroup], store: TokenStore | None, form: CacheFormat | None
    ) -> None:
        """Called once, before any request. store, form: None if the cache cannot be read by tokens. Raises ConfigError
        for a cache that cannot travel."""
        _check_groups(groups, cache)
        if store is None or form is None:
            raise ConfigError(
                f"{FLAG}: this platform runs models its own way, and does not read its cache by tokens; remove this.",
                param=FLAG,
            )
        if self._config.fetches and cache.prefix_cache is None:
            raise ConfigError(
                f"{FLAG}: what arrives becomes part of the prefix cache, which is off here; leave it on "
                "(--enable-prefix-caching), or set kv_role to kv_producer.",
                param=FLAG,
            )
        self._cache, self._groups = cache, groups
        self._has_states = any(group.kind == "state" for group in groups)
        engine_id = self._config.engine_id or secrets.token_hex(16)
        make = load_path(self._path)
        self._connector = make(self._config, EngineCache(engine_id, form, store, self._leases, self._key))
        log.info("%s: engine %s, %s", self._config.kv_connector, engine_id, self._config.kv_role)

    def close(self) -> None:
        if self._connector is not None:
            self._connector.close()

    @property
    def connector(self) -> KVConnector:
        assert self._connector is not None, "attach() comes before any request"
        return self._connector

    # ---- contract of features

    def fields(self) -> frozenset[str]:
        return frozenset({NAME})

    def begin(self, request: Request) -> FeatureState | None:
        params = request.params.kv_transfer_params
        if params is None:
            return None
        if params.do_remote_decode:
            self._check_role("do_remote_decode", "kv_producer", fits=self._config.lends)
            return _Lending(self, request)
        self._check_role("do_remote_prefill", "kv_consumer", fits=self._config.fetches)
        if request.params.prompt_logprobs is not None:
            self.recompute(request, TransferError("prompt_logprobs are computed with the prompt"))
            return None
        return _Arrival(self, request, params)

    def _check_role(self, field: str, role: str, *, fits: bool) -> None:
        if not fits:
            raise RequestError(
                f"{NAME}.{field} is for engines with the kv_role {role} or kv_both, and this one has "
                f"{self._config.kv_role}; send the request to another server.",
                param=f"{NAME}.{field}",
            )

    def poll(self) -> None:
        for lease in self._leases.take_ended():
            self._cache.give_back(self._lent.pop(lease.request_id))

    def make_room(self) -> bool:
        called = bool(self._arriving) or self._leases.call_back()
        self.poll()
        return called

    def counters(self) -> Sequence[FeatureCounter]:
        leases = self._leases
        return [
            FeatureCounter(
                "external_prefix_cache_queries", "Prompt tokens asked of other engines.", self._num_asked_tokens
            ),
            FeatureCounter(RECEIVED, "Prompt tokens received from other engines.", self._num_received_tokens),
            FeatureCounter(
                "kv_transfer_bytes_received", "Bytes of caches received from other engines.", self._num_received_bytes
            ),
            FeatureCounter("kv_transfer_bytes_sent", "Bytes of caches sent to other engines.", leases.num_bytes_sent),
            FeatureCounter(
                "kv_transfer_recomputed_requests",
                "Requests whose prompt another engine had, but was computed here, as its cache did not arrive whole.",
                self._num_recomputed,
            ),
            FeatureCounter(
                "kv_transfer_expired_leases",
                "Caches kept for other engines that nobody asked for in time.",
                leases.num_expired,
            ),
        ]

    # ---- lending

    def lend(self, request: Request, row: int, num_tokens: int) -> KVTransferParams | None:
        """Keeps the cache of a prompt, of which a row holds so many tokens. None if it cannot be lent."""
        num_tokens = min(num_tokens, len(request.prompt))
        if request.feature_args or not num_tokens:
            return None  # an adapter's name means nothing to another engine
        chain = None if self._cache.prefix_cache is None else self.chain(request)
        reservation = self._cache.hold_row(row, num_tokens, chain, request.prompt)
        borders = self._borders(reservation)
        if borders == ():
            self._cache.give_back(reservation)
            return None
        kept = [*self._lent.values(), reservation]
        lent = np.array([one.counts for one in kept]).sum(axis=0)
        if self._lent and (lent > self._cache.spare_share(MOST_LENT)).any():
            self._cache.give_back(reservation)
            log.warning(
                "a prompt is not kept for another engine: too much of the cache is", extra=about(request.request_id)
            )
            return None
        lease = Lease(
            secrets.token_hex(16),
            TokenBlocks(0, reservation.blocks),
            num_tokens,
            digest_of(request, num_tokens),
            borders,
        )
        self._lent[lease.request_id] = reservation
        self._leases.add(lease)
        return self.connector.describe(lease)

    def _borders(self, reservation: Reservation) -> tuple[int, ...] | None:
        """Lease.state_tokens."""
        if not self._has_states:
            return None
        states = next(own for own, group in zip(reservation.blocks, self._groups, strict=True) if not group.grows)
        return tuple(((np.flatnonzero(states) + 1) * unit_of(self._groups)).tolist())

    # ---- fetching

    def deadline(self) -> float:
        """Of what begins now, on time.monotonic()."""
        return time.monotonic() + self._config.timeout_seconds

    def chain(self, request: Request) -> HashChain:
        contents = [SpanContent(media.start, media.end, media.digest) for media in request.media]
        return self._prefixes.chain(request.cache_key, contents, request.feature_args)

    @property
    def _prefixes(self) -> PrefixCache:
        assert self._cache.prefix_cache is not None
        return self._cache.prefix_cache

    def make_place(self, arrival: _Arrival) -> bool:
        """Blocks for what is to arrive. False if there is no room."""
        request, chain = arrival.request, arrival.chain
        hit = self._cache.get_computed_blocks(chain, request.prompt)
        num_tokens = min(arrival.num_remote, len(request.prompt) - 1)
        last = num_tokens - num_tokens % chain.unit
        if self._has_states:
            borders = [number for number in arrival.state_tokens if number <= last and number % chain.unit == 0]
            last = max(borders, default=0)
            if not borders:
                self.recompute(request, TransferError(f"it has no states at a multiple of {chain.unit} tokens"))
        if hit.num_tokens >= last:
            arrival.fetch.cancel()
            arrival.needs_nothing = True
            return True
        reservation = self._cache.hold_new(hit, last)
        if reservation is None:
            return False
        self._num_asked_tokens += last - hit.num_tokens
        self._arriving.append(arrival)
        arrival.begin(reservation, hit.num_tokens, last, self.deadline())
        return True

    def take_place(self, arrival: _Arrival) -> None:
        """What has arrived can be found in the prefix cache now, and the rest of its blocks is free."""
        assert arrival.reservation is not None
        self._arriving.remove(arrival)
        chain, unit, fetch = arrival.chain, arrival.chain.unit, arrival.fetch
        first = arrival.first // unit
        last = first + fetch.num_tokens // unit
        self._num_received_tokens += fetch.num_tokens
        self._num_received_bytes += fetch.num_bytes
        if last > first:
            blocks = {
                number: own[: (last - first) * (unit // (group.block_size or unit))].tolist()
                for number, (own, group) in enumerate(zip(arrival.reservation.new_blocks, self._groups, strict=True))
            }
            self._prefixes.register(chain, arrival.request.prompt, first, last, blocks)
        self._cache.give_back(arrival.reservation)

    def recompute(self, request: Request, error: TransferError) -> None:
        self._num_recomputed += 1
        log.warning("computes a prompt that another engine has: %s", error, extra=about(request.request_id))


class _Lending(FeatureState):
    """A request whose prompt is computed for another engine."""

    def __init__(self, transfers: KVTransfers, request: Request) -> None:
        self._transfers, self._request = transfers, request

    def finishing(self, row: int, num_tokens: int) -> KVTransferParams | None:
        return self._transfers.lend(self._request, row, num_tokens)


class _Arrival(FeatureState):
    """A request whose prompt another engine has computed. needs_nothing: all that could arrive is cached here."""

    def __init__(self, transfers: KVTransfers, request: Request, params: KVTransferParams) -> None:
        self.request = request
        self.needs_nothing = False
        self.reservation: Reservation | None = None
        self.first = 0
        self._transfers = transfers
        self._deadline = transfers.deadline()
        self._is_over = False
        self.num_remote = params.remote_num_tokens or 0
        self.state_tokens = params.remote_state_tokens or ()
        self.chain = transfers.chain(request)
        digest = digest_of(request, min(self.num_remote, len(request.prompt)))
        self.fetch: Fetch = transfers.connector.fetch(params, digest)

    def begin(self, reservation: Reservation, first: int, last: int, deadline: float) -> None:
        self.reservation, self.first, self._deadline = reservation, first, deadline
        self.fetch.start(TokenBlocks(first, reservation.new_blocks), first, last)

    def ready(self) -> bool:
        if self._is_over:
            return True
        if not self.fetch.is_done() and time.monotonic() < self._deadline:
            if self.reservation is None and self._transfers.make_place(self):
                self._is_over = self.needs_nothing
            return self._is_over
        error = self.fetch.error()
        if not self.fetch.is_done():
            self.fetch.cancel()
            late = "there was no room for it" if self.reservation is None else "it has not arrived"
            error = TransferError(f"{late} in time (timeout_seconds)")
        self._end()
        if error is not None:
            self._transfers.recompute(self.request, error)
        return True

    def ended(self) -> None:
        if not self._is_over:
            self.fetch.cancel()
            self._end()

    def _end(self) -> None:
        self._is_over = True
        if self.reservation is not None:
            self._transfers.take_place(self)


def digest_of(request: Request, num_tokens: int) -> bytes:
    """Of the first tokens of a prompt, and of all that they stand for."""
    digest = sha256(np.ascontiguousarray(request.prompt[:num_tokens], dtype="<i4").tobytes())
    for media in request.media:
        digest.update(media.start.to_bytes(8, "little") + media.digest)
    for name, value in sorted(request.feature_args.items()):
        digest.update(name.encode() + b"\0" + value.encode() + b"\0")
    return digest.digest()


_MOST_LAYERS = 8


def _check_groups(groups: Sequence[CacheGroup], cache: KVCacheManager) -> None:
    """Raises ConfigError for groups that cannot travel, or not from this cache."""
    if not groups:
        raise ConfigError(f"{FLAG}: this model keeps nothing that could travel; remove this.", param=FLAG)
    encoded = [layer for group in groups if group.kind == "cross" for layer in group.layers]
    if encoded:
        raise ConfigError(
            f"{FLAG}: what an encoder made ({_listed(encoded)}) cannot travel yet; remove this.",
            param=FLAG,
        )
    if cache.prefix_cache is None and not all(group.grows and group.window is None for group in groups):
        raise ConfigError(
            f"{FLAG}: windows and states travel from and to the prefix cache, which is off here or has no room for "
            "states; leave it on (--enable-prefix-caching), and raise --kv-cache-memory-bytes or lower --max-num-seqs.",
            param=FLAG,
        )


def _listed(layers: Sequence[int]) -> str:
    more = ", ..." if len(layers) > _MOST_LAYERS else ""
    return f"{'layer' if len(layers) == 1 else 'layers'} {', '.join(map(str, layers[:_MOST_LAYERS]))}{more}"
