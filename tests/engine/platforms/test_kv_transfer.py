"""Prefill and decode apart: an engine goes on with a prompt that another one has computed, whatever their platforms and
block sizes, with the tokens that it would have drawn alone; and where the cache does not arrive it computes the
prompt."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tessera.config import build_config
from tessera.errors import ConfigError, RequestError
from tessera.kvcache import manager
from tessera.platform.transfer import KVPiece, TokenBlocks
from tessera.runner.token_store import CacheTokens
from tests.platforms.engine_run import EngineRun
from tests.platforms.tiny_models import save_family

BLOCK_SIZES = {"cpu": 32, "reference": 16, "strict": 24}
PROMPT = [(7 * i * i + 3 * i) % 97 + 3 for i in range(151)]  # longer than two steps, and no multiple of a block
KEPT = 144, 128  # of these, those in whole blocks of 24 or 16, and of 32
Make = Callable[..., EngineRun]


@pytest.fixture
def make(llama: Path) -> Iterator[Make]:
    """make("strict", "kv_producer"): an engine of the tiny Llama, closed after the test."""
    runs: list[EngineRun] = []

    def start(
        platform: str, role: str, model: Path = llama, *, config: dict[str, Any] | None = None, **flags: Any
    ) -> Any:
        transfer = {"kv_connector": "TcpConnector", "kv_role": role, "kv_port": 0, **(config or {})}
        flags = {"block_size": BLOCK_SIZES[platform], "max_num_batched_tokens": 64, **flags}
        runs.append(EngineRun(model, platform, check_kv_cache=False, kv_transfer_config=transfer, **flags))
        return runs[-1]

    yield start
    for run in runs:
        run.close()


@pytest.fixture
def expected(llama: Path) -> list[int]:
    with EngineRun(llama, "strict") as alone:
        return alone.ask([PROMPT])[0]


def lend(source: EngineRun, prompt: list[int] = PROMPT, **params: Any) -> dict[str, Any]:
    """What a router passes on from the answer."""
    key = source.add(prompt, 1, kv_transfer_params={"do_remote_decode": True}, **params)
    source.finish()
    told = source.finished[key].kv_transfer_params
    assert told is not None
    return told.as_fields()


def counted(run: EngineRun) -> dict[str, int]:
    return {counter.name: counter.value for counter in run.engine.stats.feature_counters}


def returned(source: EngineRun, seconds: float = 20.0) -> bool:
    """Whether the source has its blocks again."""
    deadline = time.monotonic() + seconds
    while source.engine._scheduler.cache.has_reservations and time.monotonic() < deadline:
        source.engine.rest()
        time.sleep(0.005)
    source.engine.check_integrity()
    return not source.engine._scheduler.cache.has_reservations


@pytest.mark.parametrize(
    ("one", "other"), [("strict", "cpu"), ("cpu", "strict"), ("cpu", "cpu"), ("reference", "strict")]
)
def test_the_tokens_are_those_of_one_engine(make: Make, expected: list[int], one: str, other: str) -> None:
    source, target = make(one, "kv_producer"), make(other, "kv_consumer")
    key = target.add(PROMPT, kv_transfer_params=lend(source))
    target.finish()
    assert target.answers[key] == expected
    arrived = KEPT[other == "cpu"]
    assert target.cached[key] == arrived
    counters = counted(target)
    assert counters["external_prefix_cache_queries"] == counters["external_prefix_cache_hits"] == arrived
    assert counters["kv_transfer_bytes_received"] == arrived * 2 * 2 * 2 * 12 * 4
    assert counters["kv_transfer_recomputed_requests"] == 0
    assert returned(source)
    assert counted(source)["kv_transfer_bytes_sent"] == counters["kv_transfer_bytes_received"]
    assert counted(source)["kv_transfer_expired_leases"] == 0
    assert target.ask([PROMPT])[0] == expected, "what has arrived stays in the prefix cache"


@pytest.mark.parametrize(("family", "flags"), [("llama", {"kv_cache_dtype": "int8"}), ("deepseek_v3", {})])
def test_other_caches_travel_too(tmp_path: Path, make: Make, family: str, flags: dict[str, Any]) -> None:
    model = save_family(family, tmp_path)
    with EngineRun(model, "strict", check_kv_cache=False, max_num_batched_tokens=64, **flags) as alone:
        expected = alone.ask([PROMPT])[0]
    source, target = make("reference", "kv_producer", model, **flags), make("strict", "kv_consumer", model, **flags)
    key = target.add(PROMPT, kv_transfer_params=lend(source))
    target.finish()
    assert (target.answers[key], target.cached[key]) == (expected, 144)


@pytest.mark.parametrize(
    ("family", "one", "other", "arrived"),
    [
        # sliding windows, beside layers that keep everything and alone
        ("gemma3_text", "strict", "strict", 144),
        ("gemma3_text", "cpu", "cpu", 128),
        ("gemma3_text", "strict", "cpu", 128),
        ("gemma3_text", "cpu", "strict", 144),
        ("qwen2", "reference", "strict", 144),
        ("mistral", "strict", "cpu", 128),
        # states, beside keys and values and alone; unlike units meet at a border of both
        ("lfm2", "strict", "strict", 96),
        ("lfm2", "cpu", "cpu", 128),
        ("lfm2", "strict", "cpu", 96),
        ("qwen3_5_text", "cpu", "cpu", 128),
        ("qwen3_5_text", "reference", "cpu", 128),
        ("jamba", "strict", "strict", 96),
        ("mamba", "strict", "cpu", 128),
    ],
)
def test_windows_and_states_travel(tmp_path: Path, make: Make, family: str, one: str, other: str, arrived: int) -> None:
    model = save_family(family, tmp_path)
    with EngineRun(model, "strict", max_num_batched_tokens=64) as alone:
        expected = alone.ask([PROMPT])[0]
    flags: dict[str, Any] = {"block_size": None} if family == "mamba" else {}
    source, target = make(one, "kv_producer", model, **flags), make(other, "kv_consumer", model, **flags)
    key = target.add(PROMPT, kv_transfer_params=lend(source))
    target.finish()
    assert (target.answers[key], target.cached[key]) == (expected, arrived)
    assert counted(target)["external_prefix_cache_hits"] == arrived
    assert counted(target)["kv_transfer_recomputed_requests"] == 0
    assert returned(source)
    target.engine.check_integrity()
    assert target.ask([PROMPT])[0] == expected, "what has arrived stays in the prefix cache"


def test_equal_blocks_are_not_copied(make: Make, expected: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    parts = []
    memory = CacheTokens.memory

    def noted(self: CacheTokens, tokens: TokenBlocks, piece: KVPiece) -> list[memoryview]:
        parts.append((piece.first, piece.last))
        return memory(self, tokens, piece)

    monkeypatch.setattr(CacheTokens, "memory", noted)
    source, target = make("cpu", "kv_producer"), make("cpu", "kv_consumer")
    key = target.add(PROMPT, kv_transfer_params=lend(source))
    target.finish()
    assert (target.answers[key], target.cached[key]) == (expected, KEPT[True])
    assert parts == [(0, KEPT[True])] * 2


def test_numbers_that_are_not_those_of_the_source_change_the_answer(
    make: Make, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the other tests can fail."""
    write = CacheTokens.write

    def swapped(self: CacheTokens, tokens: TokenBlocks, piece: KVPiece, data: memoryview) -> None:
        numbers = torch.frombuffer(data, dtype=torch.float32)
        write(self, tokens, piece, memoryview(numbers.flip(0).contiguous().numpy()).cast("B"))

    monkeypatch.setattr(CacheTokens, "write", swapped)
    source, target = make("strict", "kv_producer"), make("cpu", "kv_consumer")
    key = target.add(PROMPT, kv_transfer_params=lend(source))
    target.finish()
    assert target.answers[key] != expected


def test_only_what_is_not_cached_yet_travels(make: Make, expected: list[int]) -> None:
    source, target = make("strict", "kv_producer"), make("cpu", "kv_consumer")
    target.ask([PROMPT[:100]])
    key = target.add(PROMPT, kv_transfer_params=lend(source))
    target.finish()
    assert (target.answers[key], target.cached[key]) == (expected, 128)
    assert counted(target)["external_prefix_cache_hits"] == 128 - 96
    again = target.add(PROMPT, kv_transfer_params=lend(source))
    target.finish()
    assert (target.answers[again], target.cached[again]) == (expected, 128)
    assert counted(target)["external_prefix_cache_queries"] == 128 - 96
    assert returned(source)
    assert counted(source)["kv_transfer_expired_leases"] == 0


def test_an_engine_may_do_both(make: Make, expected: list[int]) -> None:
    one, other = make("strict", "kv_both"), make("cpu", "kv_both")
    for source, target in ((one, other), (other, one)):
        prompt = PROMPT if source is one else [*PROMPT[1:], 5]
        key = target.add(prompt, kv_transfer_params=lend(source, prompt))
        target.finish()
        assert target.cached[key] in KEPT
        if source is one:
            assert target.answers[key] == expected
        assert returned(source)


# ---- what does not arrive


@pytest.mark.parametrize("change", ["signature", "tokens", "gone", "model", "key"])
def test_what_does_not_arrive_is_computed_and_said(
    make: Make, expected: list[int], change: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    keys = [tmp_path / "one", tmp_path / "other"]
    for number, file in enumerate(keys):
        file.write_text(f"secret {number}")
    model = {"model": save_family("llama", tmp_path, rope_theta=77.0)} if change == "model" else {}
    source = make("strict", "kv_producer", cluster_key_file=str(keys[0]), **model)
    target = make("cpu", "kv_consumer", cluster_key_file=str(keys[change == "key"]))
    params = lend(source, [*PROMPT[:-1], 7] if change == "tokens" else PROMPT)
    if change == "signature":
        params["remote_port"] += 1
    if change == "gone":
        source.close()
    with caplog.at_level(logging.WARNING):
        key = target.add(PROMPT, kv_transfer_params=params)
        target.finish()
    assert (target.answers[key], target.cached[key]) == (expected, 0)
    assert counted(target)["kv_transfer_recomputed_requests"] == 1
    lines = [record for record in caplog.records if record.name == "tessera.transfer.transfers"]
    (line,) = (record.getMessage() for record in lines)
    assert line.startswith("computes a prompt that another engine has: ")
    said = {"signature": "remote_signature", "tokens": "other tokens", "gone": "does not answer",
            "model": "another model", "key": "cluster key"}  # fmt: skip
    assert said[change] in line


def test_a_source_that_hangs_is_not_waited_for_longer_than_is_said(
    make: Make, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make("strict", "kv_producer")
    target = make("cpu", "kv_consumer", config={"kv_connector_extra_config": {"timeout_seconds": 0.3}})
    params = lend(source)
    release = time.monotonic() + 2
    monkeypatch.setattr(
        source.engine._transfers.connector.cache.store,  # type: ignore[union-attr]
        "read",
        lambda *arguments: time.sleep(max(0.0, release - time.monotonic())),
    )
    late = target.add(PROMPT, kv_transfer_params=params)
    other = target.add(PROMPT[:40], 3)
    while other not in target.ended:
        target.step()
    assert not target.answers[late], "a request that waits for its cache holds up nobody else"
    target.finish()
    assert (target.answers[late], target.cached[late]) == (expected, 32)  # of the other request
    assert counted(target)["kv_transfer_recomputed_requests"] == 1


def test_an_abort_while_it_arrives_gives_its_blocks_back(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = make("strict", "kv_producer"), make("cpu", "kv_consumer")
    params = lend(source)
    for store in (source, target):
        kept = store.engine._transfers.connector.cache.store  # type: ignore[union-attr]
        read = kept.read
        monkeypatch.setattr(kept, "read", lambda *arguments, read=read: (time.sleep(0.2), read(*arguments)))
    key = target.add(PROMPT, kv_transfer_params=params)
    target.step()
    assert target.engine._scheduler.cache.has_reservations
    target.engine.check_integrity()
    target.engine.abort([key])
    target.finish()
    assert target.ended[key] == "abort"
    assert not target.engine._scheduler.cache.has_reservations


# ---- leases


def test_a_lease_ends_and_the_blocks_are_free(make: Make) -> None:
    source = make("strict", "kv_producer", config={"kv_connector_extra_config": {"lease_seconds": 1}})
    lend(source)
    assert source.engine._scheduler.cache.has_reservations
    assert returned(source)
    assert counted(source)["kv_transfer_expired_leases"] == 1


def test_a_request_without_room_has_the_blocks_of_a_lease(make: Make, expected: list[int]) -> None:
    """A cache of ten blocks of 24: one prompt is lent, and the next needs more than is left."""
    memory = 11 * 24 * 2 * 2 * 2 * 12 * 4
    source = make("strict", "kv_producer", kv_cache_memory_bytes=memory, max_model_len=200)
    params = lend(source)
    other = source.add([*PROMPT[1:], 4], 3)
    source.finish()
    assert source.ended[other] == "length"
    assert not source.engine._scheduler.cache.has_reservations
    target = make("cpu", "kv_consumer")
    key = target.add(PROMPT, kv_transfer_params=params)
    target.finish()
    assert (target.answers[key], counted(target)["kv_transfer_recomputed_requests"]) == (expected, 1)


def test_no_more_than_half_of_the_cache_is_lent(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    source = make("strict", "kv_producer", kv_cache_memory_bytes=16 * 24 * 2 * 2 * 2 * 12 * 4, max_model_len=200)
    lend(source)
    key = source.add([*PROMPT[1:], 4], 1, kv_transfer_params={"do_remote_decode": True})
    source.finish()
    assert source.finished[key].kv_transfer_params is None
    assert "too much of the cache is" in caplog.text


# ---- refusals


def test_states_without_a_border_of_both_are_computed(
    tmp_path: Path, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """The source has copies at 64 and 128 tokens, and the other's blocks have 24."""
    model = save_family("lfm2", tmp_path)
    with EngineRun(model, "strict", max_num_batched_tokens=64) as alone:
        expected = alone.ask([PROMPT])[0]
    source, target = make("cpu", "kv_producer", model), make("strict", "kv_consumer", model)
    key = target.add(PROMPT, kv_transfer_params=lend(source))
    target.finish()
    assert (target.answers[key], target.cached[key]) == (expected, 0)
    assert counted(target)["kv_transfer_recomputed_requests"] == 1
    assert "it has no states at a multiple of 24 tokens" in caplog.text


def test_a_window_that_the_source_no_longer_has_is_computed(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It holds the window of the prompt's end, and the other's last border is before that."""
    monkeypatch.setattr(manager, "LOOK_BACK", 0)
    model = save_family("gemma3_text", tmp_path)
    with EngineRun(model, "strict", max_num_batched_tokens=64) as alone:
        expected = alone.ask([PROMPT])[0]
    source, target = make("strict", "kv_producer", model), make("cpu", "kv_consumer", model)
    key = target.add(PROMPT, kv_transfer_params=lend(source))
    target.finish()
    assert (target.answers[key], target.cached[key]) == (expected, 0)
    assert counted(target)["kv_transfer_recomputed_requests"] == 1
    assert "it has no windows or states any more by which to go on behind token 128" in caplog.text


@pytest.mark.parametrize(
    ("family", "section"),
    [("qwen2", 0), ("qwen2", 1), ("gemma3_text", 0), ("lfm2", 0), ("lfm2", 1), ("lfm2", 2), ("jamba", 1), ("jamba", 2)],
)
def test_each_section_is_needed(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch, family: str, section: int
) -> None:
    """Two tokens behind the border, where windows and states count most: with zeros in one part of the cache the
    tokens are others than without."""
    prompt, model = PROMPT[:130], save_family(family, tmp_path)
    with EngineRun(model, "strict", max_num_batched_tokens=64) as alone:
        expected = alone.ask([prompt])[0]
    write = CacheTokens.write

    def zeroed(self: CacheTokens, tokens: TokenBlocks, piece: KVPiece, data: memoryview) -> None:
        write(self, tokens, piece, memoryview(bytearray(len(data))) if piece.section == section else data)

    source = make("reference", "kv_producer", model)
    for damaged in (False, True):
        if damaged:
            monkeypatch.setattr(CacheTokens, "write", zeroed)
        target = make("cpu", "kv_consumer", model)
        key = target.add(prompt, kv_transfer_params=lend(source, prompt))
        target.finish()
        assert target.cached[key] == 128
        assert (target.answers[key] == expected) is not damaged


@pytest.mark.parametrize("family", ["mistral", "mamba"])
def test_windows_and_states_need_the_prefix_cache(make: Make, tmp_path: Path, family: str) -> None:
    with pytest.raises(ConfigError, match="windows and states travel from and to the prefix cache"):
        make("strict", "kv_producer", save_family(family, tmp_path), block_size=None, enable_prefix_caching=False)


def test_what_cannot_be_done_is_refused(make: Make, llama: Path) -> None:
    with pytest.raises(ConfigError, match=r"becomes part of the prefix cache, which is off here"):
        make("strict", "kv_both", enable_prefix_caching=False)
    source, target = make("strict", "kv_producer", enable_prefix_caching=False), make("strict", "kv_consumer")
    params = lend(source)
    with pytest.raises(RequestError, match="do_remote_prefill is for engines with the kv_role kv_consumer"):
        source.add(PROMPT, kv_transfer_params=params)
    with pytest.raises(RequestError, match="do_remote_decode is for engines with the kv_role kv_producer"):
        target.add(PROMPT, kv_transfer_params={"do_remote_decode": True})
    with EngineRun(llama, "strict") as off, pytest.raises(RequestError, match="needs --kv-transfer-config"):
        off.add(PROMPT, kv_transfer_params=params)


def test_nobody_else_can_reach_a_cache_without_a_key(llama: Path) -> None:
    transfer = {"kv_connector": "TcpConnector", "kv_role": "kv_both", "kv_ip": "0.0.0.0"}
    flags: dict[str, Any] = {"model": str(llama), "platform": "tessera.testing:StrictPlatform"}
    with pytest.raises(ConfigError, match="set cluster_key_file to a secret"):
        build_config(kv_transfer_config=transfer, **flags)
    assert build_config(kv_transfer_config=transfer, cluster_key_file="key", **flags).cache.transfer is not None


def test_a_prompt_with_log_probabilities_is_computed(make: Make) -> None:
    source, target = make("strict", "kv_producer"), make("strict", "kv_consumer")
    key = target.add(PROMPT, 3, prompt_logprobs=1, kv_transfer_params=lend(source))
    target.finish()
    assert (target.cached[key], counted(target)["kv_transfer_recomputed_requests"]) == (0, 1)
