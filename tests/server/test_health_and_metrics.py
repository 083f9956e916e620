"""/health, /livez, /readyz, /version, /metrics, /v1/models."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from dataclasses import replace

import pytest
from openai.types import Model
from prometheus_client.parser import text_string_to_metric_families

from tessera._version import __version__
from tessera.config import CacheConfig
from tessera.config.engine import LoraConfig
from tessera.engine.messages import EngineStats
from tessera.engine.metrics import EngineMetrics
from tessera.kv_transfer_params import RECEIVED
from tessera.platform.feature import FeatureCounter
from tessera.request import RequestMetrics
from tessera.scheduler.outputs import SchedulerCounters
from tessera.server.certificates import certificates
from tessera.server.host_metrics import DiskWatch, disk_sizes, host_metrics
from tessera.server.settings import ServerSettings
from tests.certificates import Authority
from tests.server.conftest import in_process
from tests.server.fake_engine import FakeEngine, FakeInfo


async def statuses(api):
    return [(await api.client.get(path)).status_code for path in ("/livez", "/readyz", "/health")]


async def test_a_live_engine_is_ready(api):
    assert await statuses(api) == [200, 200, 200]


@pytest.mark.parametrize(
    ("field", "value", "words"), [("alive", False, "engine dead"), ("stalled", True, "engine stalled")]
)
async def test_a_dead_or_stalled_engine_is_not(api, field, value, words):
    setattr(api.engine.health, field, value)
    assert await statuses(api) == [200, 503, 503]
    assert (await api.client.get("/health")).json() == {"status": words}


async def test_requests_to_a_dead_engine_are_a_503_at_once(api):
    api.engine.health.alive = False
    response = await api.chat()
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    assert not api.engine.calls


async def test_version(api):
    assert (await api.client.get("/version")).json() == {"version": __version__}


async def test_models(api):
    body = (await api.client.get("/v1/models")).json()
    assert body["object"] == "list"
    (model,) = body["data"]
    Model.model_validate(model, strict=True)
    assert model == {
        "id": "fake-model",
        "object": "model",
        "created": model["created"],
        "owned_by": "tessera",
        "root": "fake-model",
        "parent": None,
        "max_model_len": 512,
        "tasks": ["generate"],
        "input_modalities": ["text"],
        "permission": [
            {
                "id": model["permission"][0]["id"],
                "object": "model_permission",
                "created": model["created"],
                "allow_create_engine": False,
                "allow_sampling": True,
                "allow_logprobs": True,
                "allow_search_indices": False,
                "allow_view": True,
                "allow_fine_tuning": False,
                "organization": "*",
                "group": None,
                "is_blocking": False,
            }
        ],
    }
    assert model["permission"][0]["id"].startswith("modelperm-")
    assert (await api.client.get("/v1/models/fake-model")).json() == model
    missing = await api.client.get("/v1/models/other/one")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


async def test_served_names_are_the_only_ones():
    async with in_process(FakeEngine(), ServerSettings(served_model_names=("org/a", "b"))) as api:
        models = (await api.client.get("/v1/models")).json()["data"]
        assert [(model["id"], model["root"]) for model in models] == [("org/a", "org/a"), ("b", "org/a")]
        assert (await api.client.get("/v1/models/org/a")).status_code == 200
        assert (await api.chat(model="b")).json()["model"] == "b"
        assert (await api.chat(model="fake-model")).status_code == 404


async def test_metrics_are_prometheus_text(api):
    await api.chat()
    await api.chat(n=0)
    await api.client.get("/a/made/up/path")
    await api.client.get("/v1/models/fake-model")
    response = await api.client.get("/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    families = {family.name: family for family in text_string_to_metric_families(response.text)}
    assert len(families) == response.text.count("# TYPE ")
    model = {"model_name": "fake-model"}
    values = {
        (sample.name, tuple(sample.labels.items())): sample.value for f in families.values() for sample in f.samples
    }

    def value(name, **labels):
        return values[f"tessera:{name}", tuple(labels.items())]

    assert families["tessera:num_requests_running"].type == "gauge"
    assert value("num_requests_running", **model) == 3
    assert families["tessera:prompt_tokens"].type == "counter"
    assert value("prompt_tokens_total", **model) == 12
    assert value("request_success_total", **model, finished_reason="length") == 2
    buckets = [value("time_to_first_token_seconds_bucket", **model, le=le) for le in ("0.1", "1.0", "+Inf")]
    assert buckets == [4, 6, 7]
    assert value("time_to_first_token_seconds_count", **model) == 7
    assert value("time_to_first_token_seconds_sum", **model) == pytest.approx(3.2)
    chat = {"method": "POST", "handler": "/v1/chat/completions"}
    assert value("http_requests_total", **chat, status="200") == 1
    assert value("http_requests_total", **chat, status="400") == 1
    assert value("http_requests_total", method="GET", handler="other", status="404") == 1
    assert value("http_requests_total", method="GET", handler="/v1/models/{model}", status="200") == 1
    assert value("http_requests_in_progress") == 1


# What vLLM's dashboards, autoscalers' rules and the gateway API's picker of endpoints ask for, and what the test of
# metrics of vLLM 0.33 wants (tests/entrypoints/instrumentator/test_metrics.py), but for those that
# docs/api-compatibility.md says are missing.
ASKED_FOR = {
    "num_requests_running": "gauge",
    "num_requests_waiting": "gauge",
    "num_requests_waiting_by_reason": "gauge",
    "admission_rejections": "counter",
    "kv_cache_usage_perc": "gauge",
    "cache_config_info": "gauge",
    "prefix_cache_hits": "counter",
    "prefix_cache_queries": "counter",
    "prompt_tokens": "counter",
    "prompt_tokens_cached": "counter",
    "prompt_tokens_by_source": "counter",
    "generation_tokens": "counter",
    "num_preemptions": "counter",
    "spec_decode_num_drafts": "counter",
    "spec_decode_num_draft_tokens": "counter",
    "spec_decode_num_accepted_tokens": "counter",
    "request_success": "counter",
    "e2e_request_latency_seconds": "histogram",
    "time_to_first_token_seconds": "histogram",
    "inter_token_latency_seconds": "histogram",
    "request_time_per_output_token_seconds": "histogram",
    "request_queue_time_seconds": "histogram",
    "request_inference_time_seconds": "histogram",
    "request_prefill_time_seconds": "histogram",
    "request_decode_time_seconds": "histogram",
    "request_prompt_tokens": "histogram",
    "request_prefill_kv_computed_tokens": "histogram",
    "request_generation_tokens": "histogram",
    "request_max_num_generation_tokens": "histogram",
    "request_params_max_tokens": "histogram",
    "request_params_n": "histogram",
    "request_num_preemptions": "histogram",
    "iteration_tokens_total": "histogram",
    "engine_sleep_state": "gauge",
}
VLLMS_ALONE = {
    "external_prefix_cache_queries": "counter",
    "external_prefix_cache_hits": "counter",
    "mm_cache_queries": "counter",
    "mm_cache_hits": "counter",
}


async def test_the_engine_s_metrics_stand_under_vllm_s_names_where_that_is_asked_for():
    engine = FakeEngine(metrics=EngineMetrics(512))
    now = 100.0
    times = RequestMetrics(now, now + 1, now + 2, now + 4)
    engine.metrics.finished("stop", times, 7, 5, now + 5, num_computed=4, max_tokens=9, num_preemptions=2)
    engine.metrics.stats = EngineStats(fallbacks={"gate": 3})
    async with in_process(engine, ServerSettings(vllm_metrics=True)) as api:
        text = (await api.client.get("/metrics")).text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert len(families) == text.count("# TYPE ")
    for name, kind in ASKED_FOR.items():
        own, alias = families[f"tessera:{name}"], families[f"vllm:{name}"]
        assert own.type == alias.type == kind
        assert [sample.value for sample in own.samples] == [sample.value for sample in alias.samples]
        for sample in alias.samples:
            assert (sample.labels["model_name"], sample.labels["engine"]) == ("fake-model", "0")
    for name, kind in VLLMS_ALONE.items():
        assert f"tessera:{name}" not in families
        assert families[f"vllm:{name}"].type == kind
        assert {sample.value for sample in families[f"vllm:{name}"].samples} <= {0, 1}
    assert {name for name in families if name.startswith("vllm:")} == {
        f"vllm:{name}" for name in (*ASKED_FOR, *VLLMS_ALONE)
    }
    assert "_created" not in text
    samples = {sample.name: sample.value for sample in families["vllm:request_time_per_output_token_seconds"].samples}
    assert samples["vllm:request_time_per_output_token_seconds_sum"] == pytest.approx(0.5)
    (fallbacks,) = families["tessera:reference_fallbacks"].samples
    assert (fallbacks.name, fallbacks.value) == ("tessera:reference_fallbacks_total", 3)
    assert fallbacks.labels == {"model_name": "fake-model", "op": "gate"}
    awake = {sample.labels["sleep_state"]: sample.value for sample in families["vllm:engine_sleep_state"].samples}
    assert awake == {"awake": 1, "weights_offloaded": 0, "discard_all": 0}


async def test_waiting_requests_are_told_apart_by_their_reason():
    engine = FakeEngine(metrics=EngineMetrics(512))
    engine.metrics.stats = EngineStats(num_waiting=7, num_deferred=3)
    async with in_process(engine, ServerSettings(vllm_metrics=True)) as api:
        text = (await api.client.get("/metrics")).text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    reasons = families["vllm:num_requests_waiting_by_reason"].samples
    assert {sample.labels["reason"]: sample.value for sample in reasons} == {"capacity": 4, "deferred": 3}
    (waiting,) = families["vllm:num_requests_waiting"].samples
    assert waiting.value == sum(sample.value for sample in reasons)


async def test_adapters_stand_in_labels_by_their_names():
    class Adapted(FakeEngine):
        def all_adapters(self):
            return [({"/a", "/b"}, {"/b", "/unloaded"})]

    engine = Adapted()
    lora = LoraConfig(enable=True, modules=(("french", "/b"), ("latin", "/a")), max_loras=4)
    engine.config = replace(engine.config, lora=lora)
    before = time.time()
    async with in_process(engine, ServerSettings(vllm_metrics=True)) as api:
        text = (await api.client.get("/metrics")).text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    (sample,) = families["vllm:lora_requests_info"].samples
    assert sample.labels == {
        "model_name": "fake-model",
        "engine": "0",
        "max_lora": "4",
        "running_lora_adapters": "french,latin",
        "waiting_lora_adapters": "french",
    }
    assert before <= sample.value <= time.time()
    assert "/unloaded" not in text


async def test_without_adapters_there_is_no_metric_of_them(api):
    assert "lora_requests_info" not in (await api.client.get("/metrics")).text


async def test_what_a_feature_counts_takes_the_place_of_vllm_s_zero():
    engine = FakeEngine(metrics=EngineMetrics(512))
    engine.metrics.stats = EngineStats(feature_counters=[FeatureCounter("mm_cache_hits", "Images.", 5)])
    async with in_process(engine, ServerSettings(vllm_metrics=True)) as api:
        text = (await api.client.get("/metrics")).text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert len(families) == text.count("# TYPE ")
    for name in ("tessera:mm_cache_hits", "vllm:mm_cache_hits"):
        assert [sample.value for sample in families[name].samples] == [5]
    assert "tessera:mm_cache_queries" not in families


async def test_the_cache_s_configuration_has_vllm_s_labels():
    engine = FakeEngine(info=FakeInfo(cache=CacheConfig(dtype="fp8", memory_bytes=4096, prefix_caching=False)))
    async with in_process(engine, ServerSettings(vllm_metrics=True)) as api:
        text = (await api.client.get("/metrics")).text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    (sample,) = families["vllm:cache_config_info"].samples
    assert sample.value == 1
    assert sample.labels == {
        "model_name": "fake-model",
        "engine": "0",
        "block_size": "16",
        "num_gpu_blocks": "99",
        "num_gpu_blocks_override": "None",
        "num_cpu_blocks": "None",
        "cache_dtype": "fp8",
        "kv_cache_dtype_skip_layers": "[]",
        "gpu_memory_utilization": "0.92",
        "kv_cache_memory_bytes": "4096",
        "kv_cache_size_tokens": "1584",
        "kv_cache_max_concurrency": "3.09375",
        "is_attention_free": "False",
        "enable_prefix_caching": "False",
        "prefix_caching_hash_algo": "sha256",
        "kv_offloading_size": "None",
        "kv_sharing_fast_prefill": "False",
    }


async def test_without_asking_there_is_no_name_but_our_own(api):
    assert "vllm:" not in (await api.client.get("/metrics")).text


async def test_a_label_is_escaped():
    async with in_process(FakeEngine(), ServerSettings(served_model_names=('a"b\\c\nd',))) as api:
        text = (await api.client.get("/metrics")).text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["tessera:num_requests_running"].samples[0].labels == {"model_name": 'a"b\\c\nd'}


async def test_a_request_is_one_line_in_the_log_without_its_content(api, caplog):
    caplog.set_level(logging.INFO, "tessera.server.access")
    await api.client.post("/v1/chat/completions?secret=1", headers={"X-Request-Id": "rid"}, json={"model": "hidden"})
    await api.client.get("/health")
    (record,) = caplog.records
    assert record.name == "tessera.server.access"
    assert record.getMessage().startswith("POST /v1/chat/completions 400 ")
    assert record.request_id == "rid"
    assert "secret" not in caplog.text
    assert "hidden" not in caplog.text


async def test_requests_of_routes_that_are_named_are_not_logged(caplog):
    caplog.set_level(logging.INFO, "tessera.server.access")
    async with in_process(FakeEngine(), ServerSettings(unlogged_routes=("/v1/models", "/tokenize"))) as api:
        await api.client.get("/v1/models?secret=1")
        await api.client.get("/v1/models/fake")
    assert [record.getMessage().split(" ")[1] for record in caplog.records] == ["/v1/models/{model}"]


async def test_several_engines_have_a_label_each_under_one_name():
    class Two(FakeEngine):
        def all_metrics(self):
            return [(EngineMetrics(512), FakeInfo(num_blocks=number)) for number in (7, 9)]

    async with in_process(Two(), ServerSettings(vllm_metrics=True)) as api:
        text = (await api.client.get("/metrics")).text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert len(families) == text.count("# TYPE "), "each name stands once"
    for prefix in ("tessera:", "vllm:"):
        running = families[f"{prefix}num_requests_running"].samples
        assert [sample.labels for sample in running] == [
            {"model_name": "fake-model", "engine": number} for number in ("0", "1")
        ]
        caches = families[f"{prefix}cache_config_info"].samples
        assert [(one.labels["engine"], one.labels["num_gpu_blocks"]) for one in caches] == [("0", "7"), ("1", "9")]


@pytest.mark.parametrize(("value", "rank"), [(None, None), ("0", 0), ("12", 12)])
async def test_a_header_of_vllm_s_names_the_engine(api, value, rank):
    headers = {} if value is None else {"X-data-parallel-rank": value}
    fields = {"model": "fake-model", "messages": [{"role": "user", "content": "a"}]}
    assert (await api.client.post("/v1/chat/completions", json=fields, headers=headers)).status_code == 200
    assert api.engine.calls[-1].data_parallel_rank == rank


@pytest.mark.parametrize("value", ["-1", "one", "1" * 20, ""])
async def test_a_rank_that_is_no_number_is_refused(api, value):
    fields = {"model": "fake-model", "messages": [{"role": "user", "content": "a"}]}
    answer = await api.client.post("/v1/chat/completions", json=fields, headers={"X-data-parallel-rank": value})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "data_parallel_rank"


def test_prompt_tokens_of_another_engine_are_no_local_hits():
    """Though they are found in the prefix cache, by a request that may start later; and no counter falls."""
    metrics, found = EngineMetrics(512), []
    for cached, received in ((0, 0), (40, 0), (40, 32), (72, 32), (80, 32)):
        counters = SchedulerCounters(prompt_tokens=100, cached_prompt_tokens=cached)
        metrics.stats = EngineStats(counters=counters, feature_counters=[FeatureCounter(RECEIVED, "", received)])
        found.append([one.value for one in metrics.read() if one.name == "prompt_tokens_by_source"])
    assert found == [[100, 0, 0], [60, 40, 0], [60, 40, 0], [28, 40, 32], [20, 48, 32]]


async def test_what_a_host_may_run_out_of(tmp_path):
    authority = Authority(tmp_path)
    server = authority.issue("server", 3.0)
    settings = ServerSettings(
        batch_store=str(tmp_path),
        response_store=str(tmp_path / "responses.db"),
        tls=certificates(str(server.certificate), str(server.key), None, 0),
    )
    disks = DiskWatch()
    disks.start(settings)
    async with asyncio.timeout(60):
        while not disks.sizes:  # noqa: ASYNC110  # a thread sets it
            await asyncio.sleep(0.01)
    await disks.stop()
    found = {(metric.name, (metric.label or ("", ""))[1]): metric.value for metric in host_metrics(disks, settings)}
    usage = shutil.disk_usage(tmp_path)
    for store in ("batch_store", "response_store"):
        assert found["storage_size_bytes", store] == usage.total
        assert found["storage_free_bytes", store] == pytest.approx(usage.free, abs=2**30)
    assert found["certificate_expiry_timestamp_seconds", ""] == pytest.approx(time.time() + 3 * 86400, abs=60)
    assert {name for name, _ in found} == {
        "storage_free_bytes", "storage_size_bytes", "certificate_expiry_timestamp_seconds"
    }  # fmt: skip
    assert disk_sizes(ServerSettings(batch_store=str(tmp_path / "gone" / "away"))) == {}
