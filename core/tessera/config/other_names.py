"""What is said of names of other programs, vLLM's and llama.cpp's, that Tessera does not have: one line, or nothing but
a warning where a name asks for what is done anyway. Only imported when such a name is used.

In the tables `--x` is a flag of `tessera serve`, and with underscores a keyword of LLM; `--[no-]x` is a switch and its
opposite; `--x=a|b` has the values a and b, `--x=` any value; `*` stands for the name of a vendor's library. `LLM(x)` is
a keyword of LLM that is no flag, `LLM.x` an attribute or method, `call(x)` a keyword of methods, `SamplingParams(x)` a
field, and `tessera.x` what is imported."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sized
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from types import MappingProxyType
from typing import Any

from tessera.errors import TesseraError


@dataclass(frozen=True)
class OtherName:
    """reason: why it is accepted without effect; "" if it never is. values: those at which it is accepted, none for any
    value; None for a switch, which has no value. refusal: the error, one line; "" if it is accepted in any case."""

    reason: str = ""
    values: tuple[str, ...] | None = None
    refusal: str = ""

    @property
    def takes_value(self) -> bool:
        return self.values is not None

    def accepts(self, value: str) -> bool:
        return bool(self.reason) and (not self.values or value in self.values)

    def checked(self, name: str, value: Any, error: type[TesseraError], *, stacklevel: int) -> None:
        """Warns of a Python value that has no effect, and raises `error` for one that may not be ignored. What asks for
        nothing (None; False or an empty list where no values are listed) passes in silence. stacklevel: of the user's
        line, counted from the caller as in warnings.warn."""
        if value is None or (not self.values and (value is False or (isinstance(value, Sized) and len(value) == 0))):
            return
        if not self.accepts(str(value)):
            raise error(self.refusal, param=name)
        warnings.warn(f"{name} has no effect: {self.reason}", stacklevel=stacklevel + 1)


_ACCEPTED: Mapping[str, str] = MappingProxyType(
    {
        "tools need no flag": "--[no-]enable-auto-tool-choice",
        "with tool_choice none, the model is not shown the tools": "--[no-]exclude-tools-when-tool-choice-none",
        "X-Request-Id is always accepted and echoed": "--[no-]enable-request-id-headers",
        "/load always counts": "--[no-]enable-server-load-tracking",
        "usage always has prompt_tokens_details": "--[no-]enable-prompt-tokens-details",
        "/docs loads nothing from other servers": "--[no-]enable-offline-docs",
        "the log has one line for each request, without its content": """
            --enable-log-requests --no-enable-log-requests --max-log-len=
        """,
        "statistics are in /metrics, not in the log": "--disable-log-stats --[no-]enable-mm-processor-stats",
        "no metric is hidden": "--show-hidden-metrics-for-version=",
        "progress is always shown": "--[no-]use-tqdm-on-load",
        "a host with a --node-rank above 0 answers no requests": "--headless",
        "steps are launched ahead wherever the platform allows it": "--async-scheduling",
        "cascade attention is never used": "--[no-]disable-cascade-attn",
        "chat templates are always Jinja": "--jinja",
        "requests are always batched continuously": "-cb --cont-batching",
        "/metrics is always served": "--metrics",
        "a device reads the weights of its own experts alone": "--[no-]enable-ep-weight-filter",
        "the encoder cache has a size of its own": "--[no-]skip-mm-profiling",
        "a model that reads images does so": "--no-language-model-only",
        "each device has a whole tower and encodes other images": "--mm-encoder-tp-mode=data",
        "that is how it is here": """
            --tokenizer-mode=auto|hf --config-format=auto|hf
            --model-impl=auto --logprobs-mode=raw_logprobs --response-role=assistant --prefix-caching-hash-algo=sha256
            --attention-backend=auto --moe-backend=auto --linear-backend=auto --lora-dtype=auto
            --mamba-cache-dtype=auto --mamba-ssm-cache-dtype=auto --distributed-executor-backend=mp|uni
            --api-server-count=1 -asc=1 -r=0
            LLM(data_parallel_size)=1 LLM(nnodes)=1 LLM(node_rank)=0
            --data-parallel-size-local=1 -dpl=1 --decode-context-parallel-size=1 -dcp=1
            --prefill-context-parallel-size=1 -pcp=1 --cpu-offload-gb=0 --swap-space=0 --stream-interval=1
            --prefill-schedule-interval=1 --long-prefill-token-threshold=0 --performance-mode=balanced
            --safetensors-load-strategy=lazy --per-request-spec-decode-metrics=none --offload-group-size=0
            --offload-num-in-group=1 --offload-prefetch-step=1 LLM(async_scheduling)=True
            call(chat_template_content_format)=auto|string|openai --expert-placement-strategy=linear
        """,
        "every request takes a copy": "SamplingParams(skip_clone)",
        "queuing shows no progress": "enqueue(use_tqdm)= enqueue_chat(use_tqdm)=",
    }
)
"""A reason, and the names that it makes superfluous. vLLM's, at values that ask for what Tessera does."""

_REFUSED: Mapping[str, str] = MappingProxyType(
    {
        # ---- by another name
        ': leave images and sounds out by --limit-mm-per-prompt \'{"image": 0, "video": 0, "audio": 0}\'.': """
            --language-model-only
        """,
        ": name the model right after serve: tessera serve MODEL.": "--model -m -hf -hfr --hf-repo",
        " is called --platform here.": "--device",
        " is called --log-level here.": "--uvicorn-log-level",
        " is called --max-model-len here.": "-c --ctx-size",
        " is called --max-num-seqs here.": "-np --parallel --max-num-active-seqs",
        " is called --max-num-batched-tokens here.": "-b --batch-size -ub --max-num-scheduled-tokens",
        " is called --kv-cache-dtype here.": "-ctk --cache-type-k -ctv --cache-type-v",
        " is called --threads here.": "-t -tb --threads-batch",
        " is called --served-model-name here.": "-a --alias",
        " is called --speculative-config here, and takes JSON.": "--spec-method --spec-model --spec-tokens",
        ": use --kv-cache-memory-bytes.": "--num-gpu-blocks-override",
        ": use --steps-in-flight 1.": "--no-async-scheduling",
        ": use steps_in_flight=1.": "LLM(async_scheduling)",
        ": use --log-level and --log-format.": "--logging-config --log-config-file --[no-]log-error-stack",
        ": all of --lora-modules stay in host memory; remove it.": "--max-cpu-loras",
        ": name the devices by the platform's own variable.": "--device-ids",
        ": use --tensor-parallel-size or --pipeline-parallel-size.": "--distributed-executor-backend",
        # ---- what requests say themselves
        ": a request sets stream_interval; remove it.": "--stream-interval",
        ": a request sets return_tokens_as_token_ids; remove it.": "--[no-]return-tokens-as-token-ids",
        ": the effort goes to the chat template as it is; adapt it with --chat-template.": """
            --reasoning-effort-map --anthropic-disabled-thinking-effort
        """,
        ": a request's own strict decides; remove it.": "--tool-strict-level",
        ": a request cannot bring a chat template; use --chat-template.": "--[no-]trust-request-chat-template",
        ": an answer's role is always assistant; remove it.": "--response-role",
        ": log probabilities are those of the model's own logits; remove it.": "--logprobs-mode",
        ": the client runs the tools; remove it.": "--tool-server",
        ": reasoning is recognised by the chat template, or by --reasoning-parser; remove it.": "--reasoning-config",
        # ---- code
        ": only installed plugins bring code, for --platform and --features; remove it.": """
            --logits-processors --io-processor-plugin --tool-parser-plugin --reasoning-parser-plugin --worker-cls
            --worker-extension-cls --model-class-overrides tessera.ModelRegistry
        """,
        ": use --scheduling-policy, which takes a plugin's policy.": "--scheduler-cls",
        ": use --routes for a plugin's routes, or a proxy in front of the server.": "--middleware",
        ": code from a model's folder is never run; remove it.": "--code-revision",
        ": no code of a request runs; use logit_bias, allowed_token_ids, bad_words or structured_outputs.": """
            SamplingParams(logits_processors)
        """,
        # ---- the model and its weights
        ": similarities of tokens are computed on the host; remove it.": "--[no-]enable-flash-late-interaction",
        ": adapters do not change a classifier's labels; remove it.": "--max-lora-cls-labels",
        ": the tokenizer is the model's tokenizer.json; remove it, or use --tokenizer.": "--tokenizer-mode",
        ": the configuration is the model's config.json; change it there.": """
            --hf-config-path --hf-overrides --config-format --[no-]disable-sliding-window
        """,
        ": Tessera's own code for a model is taken if there is any, and else transformers'; remove it.": """
            --model-impl
        """,
        ": the checkpoint says how it is quantized; to quantize at load, use --quantization.": """
            --quantization-config --[no-]allow-deprecated-quantization
        """,
        ": safetensors files are mapped into memory and read in turn; remove it.": """
            --safetensors-load-strategy --safetensors-prefetch-num-threads --safetensors-prefetch-block-size
            --model-loader-extra-config --ignore-patterns --pt-load-map-location --max-parallel-loading-workers
            --mlock --no-mmap
        """,
        ": weights stay on the device; make them smaller with --quantization, or use --tensor-parallel-size.": """
            --offload-backend --cpu-offload-gb --cpu-offload-params --offload-group-size --offload-num-in-group
            --offload-prefetch-step --offload-params
        """,
        ": all layers are on the device; remove it.": "-ngl --n-gpu-layers --gpu-layers",
        ": an LLM keeps its weights; close it to free memory, and make another for other weights.": """
            LLM(enable_sleep_mode) LLM.sleep LLM.wake_up LLM.release_kv_cache_memory LLM.init_weight_transfer_engine
            LLM.shutdown_weight_transfer_engine LLM.start_weight_update LLM.start_draft_weight_update LLM.update_weights
            LLM.finish_weight_update LLM.update_weight_version LLM.get_weight_version
        """,
        ": asleep, the engine has no process at all (--enable-sleep-mode); remove it.": """
            --sleep-mode-backend --[no-]sleep-mode-offload-cudagraph --sleep-preserve-parameter-names
            --[no-]enable-cumem-allocator --[no-]enable-*-comm-suspend
        """,
        ": a running server keeps its weights; restart it to change them.": """
            --weight-transfer-config
        """,
        ": images and sounds have no settings but --limit-mm-per-prompt and --mm-processor-kwargs; remove it.": """
            --[no-]enable-mm-embeds --media-io-kwargs --mm-processor-cache-gb --mm-processor-cache-type
            --mm-hasher-algorithm --mm-shm-cache-max-object-size-mb --[no-]mm-encoder-only --mm-encoder-tp-mode
            --mm-encoder-attn-backend --mm-encoder-attn-dtype --mm-encoder-fp8-scale-path
            --mm-encoder-fp8-scale-save-path --mm-encoder-fp8-scale-save-margin --[no-]interleave-mm-strings
            --video-pruning-rate --video-pruning-method --mm-tensor-ipc --mm-processor-device --mm-ipc-gpu-memory-gb
            --[no-]mm-device-do-normalize --[no-]disable-chunked-mm-input --[no-]trust-request-mm-kwargs
            --[no-]enable-tower-connector-lora --ec-transfer-config --ec-manager-config --[no-]enable-shm-tensor-arena
            --default-mm-loras LLM.reset_mm_cache call(mm_processor_kwargs)
        """,
        ": a prompt is text or token ids; remove it.": "--[no-]enable-prompt-embeds",
        ": diffusion models and n-gram embeddings are not supported yet; remove it.": """
            --diffusion-config -dc --engram-config
        """,
        # ---- kernels
        ": models are not compiled; remove it, or turn graph capture off with --enforce-eager.": """
            --compilation-config -cc --optimization-level -O --cudagraph-capture-sizes --max-cudagraph-capture-size
            --performance-mode
        """,
        ": the platform chooses its kernels; see --explain for which, and choose it with --platform.": """
            --attention-backend --attention-config -ac --moe-backend --linear-backend --sparse-indexer-topk-backend
            --kernel-config --ir-op-priority --[no-]monokernel --[no-]enable-flashinfer-autotune --gdn-prefill-backend
            --kda-prefill-backend --kda-decode-backend --mamba-config --mamba-backend --mamba-ssu-algorithm
            --[no-]use-replayssm --replayssm-buffer-len --[no-]disable-custom-all-reduce --[no-]use-fp64-gumbel
            --[no-]specialize-active-lora --[no-]enable-mixed-moe-lora-format --additional-config -fa --flash-attn
        """,
        ": requests to generate traces again are not supported; remove it.": """
            --[no-]enable-trace-replay SamplingParams(trace_decode_token_ids)
        """,
        # ---- the KV cache
        ": use --kv-cache-dtype for all layers, or leave it out.": "--kv-cache-dtype-skip-layers",
        ": the KV cache stays on the device; a preempted request is computed again. Remove it.": """
            --kv-offloading-size --kv-offloading-backend --swap-space
        """,
        ": the cache's layout follows from the model; only --block-size and --enable-prefix-caching can be chosen.": """
            --prefix-caching-hash-algo --prefix-cache-retention-interval --prefix-match-unit
            --[no-]kv-sharing-fast-prefill --[no-]swa-bounded-replay --[no-]disable-hybrid-kv-cache-manager
            --mamba-cache-dtype --mamba-ssm-cache-dtype --mamba-block-size --mamba-cache-mode
            --[no-]enable-mamba-cache-stochastic-rounding --mamba-cache-philox-rounds
            --[no-]enable-mamba-shared-prefix-checkpoint
        """,
        # ---- scheduling
        ": a step has at most --max-num-batched-tokens, whatever prompts they are of; remove it.": """
            --long-prefill-token-threshold --[no-]long-prefill-token-threshold-adaptive --prefill-schedule-interval
        """,
        ": room for requests to grow is kept by --watermark; remove it.": "--[no-]scheduler-reserve-full-isl",
        # ---- several devices and machines
        ": only a server has several engines; start an LLM in each of several processes.": "LLM(data_parallel_size)",
        ": only servers hand caches to each other (tessera serve --kv-transfer-config).": "LLM(kv_transfer_config)",
        ": only a server's engine is on several hosts (tessera serve --nnodes).": """
            LLM(nnodes) LLM(node_rank) LLM(master_addr) LLM(master_port)
        """,
        ": use --data-parallel-size in one server, or tessera router in front of several.": """
            --data-parallel-rank -dpn --data-parallel-start-rank -dpr
            --data-parallel-size-local -dpl --data-parallel-address -dpa --data-parallel-rpc-port -dpp
            --data-parallel-backend -dpb --[no-]data-parallel-hybrid-lb -dph --[no-]data-parallel-external-lb -dpe
            --data-parallel-multi-port-external-lb -dpm --data-parallel-supervisor-port
            --dp-supervisor-probe-interval-s --dp-supervisor-probe-timeout-s --dp-supervisor-probe-failure-threshold
            --dp-sync-interval --[no-]disable-*-for-dp-synchronization --aggregate-engine-logging
            --api-server-count -asc
        """,
        ": say --node-rank.": "-r",
        ": a host that is gone is noticed by its connection; remove it.": """
            --distributed-timeout-seconds --cpu-distributed-timeout-seconds
        """,
        ": hosts join by --nnodes, without Ray; remove it.": "--[no-]ray-workers-use-nsight",
        ": a model runs on one machine, and requests set max_tokens; remove it.": "-n --n-predict",
        ": experts are divided among devices in order, and stay where they are; remove it.": """
            --all2all-backend --[no-]enable-elastic-ep --elastic-ep-max-dp-size --[no-]enable-eplb --eplb-config
            --expert-placement-strategy
        """,
        ": use --tensor-parallel-size, which also divides the KV cache.": """
            --decode-context-parallel-size -dcp --dcp-comm-backend --[no-]dcp-q-replicate
            --dcp-kv-cache-interleave-size --cp-kv-cache-interleave-size --prefill-context-parallel-size -pcp
            --[no-]enable-hc-sp
        """,
        ": a step is not divided into batches that overlap; remove it.": """
            --[no-]enable-dbo --dbo-decode-token-threshold --dbo-prefill-token-threshold
        """,
        ": use --max-num-batched-tokens; batches do not overlap as vLLM's may.": "--ubatch-size",
        ": sampling is not divided among devices; remove it.": "--[no-]enable-batch-sharded-sampling",
        ": an engine that dies is started again, as --max-restarts says; remove it.": """
            --[no-]enable-fault-tolerance --fault-tolerance-config
        """,
        ": an engine that hangs is found by --stall-timeout; remove it.": "--watchdog-config",
        ": bind the processes from outside, such as with numactl.": """
            --[no-]numa-bind --numa-bind-nodes --numa-bind-cpus
        """,
        # ---- LoRA
        ": an adapter has the model's data type; remove it.": "--lora-dtype",
        ": an adapter is divided as its model is, and all of its modules are used; remove it.": """
            --[no-]fully-sharded-loras --lora-target-modules --[no-]enable-moe-shared-loras
        """,
        # ---- what is reported
        ": each trace has all that there is; remove it.": "--collect-detailed-traces",
        ": /metrics has what is counted, in fixed buckets; see --vllm-metrics for vLLM's names.": """
            --[no-]kv-cache-metrics --kv-cache-metrics-sample --[no-]cudagraph-metrics --[no-]enable-mfu-metrics
            --custom-histogram-buckets --[no-]enable-per-request-metrics --per-request-spec-decode-metrics
            --[no-]enable-logging-iteration-details
        """,
        ": there is no profiler in the server; measure with tessera bench.": """
            LLM.start_profile LLM.stop_profile --profiler-config
            --[no-]enable-layerwise-nvtx-tracing --jit-monitor-mode --[no-]jit-monitor-verbose
        """,
        ": answers are never logged; remove it.": "--[no-]enable-log-outputs --[no-]enable-log-deltas",
        ": an answer has no such extra; remove it.": """
            --[no-]enable-return-routed-experts --[no-]return-sampling-mask --aux-output-config
            SamplingParams(routed_experts_prompt_start)
        """,
        ": unknown TESSERA_ variables are a warning; remove it.": "--[no-]fail-on-environ-validation",
        ": system_fingerprint is a hash of model, version and settings; remove it.": """
            --fingerprint-mode --fingerprint-value
        """,
        ": texts are not watermarked; remove it.": "--watermark-config SamplingParams(watermarking)",
        # ---- the HTTP server
        ": only HTTP is served, at --host and --port; remove it.": "--grpc --grpc-port",
        ": there are no such routes; see /docs for those there are.": "--[no-]tokens-only --[no-]enable-scale-out",
        ": Cohere's API is not served; use OpenAI's at /v1.": "--[no-]cohere-is-reasoning-model --cohere-format",
        ": a SIGHUP makes the server read its certificates again; remove it.": "--[no-]enable-ssl-refresh",
        ": the request line and headers may have 64 KiB; remove it.": """
            --h11-max-incomplete-event-size --h11-max-header-count
        """,
        ": text is prepared by processes of its own; remove it.": "--renderer-num-workers",
        ": see --allow-additional-properties, and --features none to turn it off.": "--structured-outputs-config",
        # ---- in Python
        ": LLM is the engine; pass it the keywords.": """
            tessera.EngineArgs tessera.AsyncEngineArgs tessera.LLMEngine LLM.from_engine_args LLM.llm_engine
            LLM.engine_class LLM.model_config LLM.renderer LLM.input_processor LLM.request_counter
        """,
        ": use tessera serve, or LLM in a thread of your own.": "tessera.AsyncLLMEngine tessera.AsyncLLM",
        ": no function is run in the workers; write a plugin's feature instead.": "LLM.collective_rpc LLM.apply_model",
        ": it is tensor_parallel_size times pipeline_parallel_size.": "LLM.get_world_size",
        ": use get_default_sampling_params().": "LLM.default_sampling_params",
        ": a model generates text; remove it.": "LLM.supported_tasks LLM.runner_type",
        ": load it with --tokenizer.": "LLM.set_tokenizer",
        ": use chat(chat_template=...).": "LLM(chat_template) LLM.chat_template",
        ": only a server reads reasoning and calls out of an answer; remove it.": "LLM(reasoning_parser)",
        ": LLM takes any number of prompts; remove it.": """
            LLM(max_num_queued_reqs) LLM(max_num_queued_tokens) LLM(max_waiting)
        """,
        ": pass the adapter as lora_request to a call.": "LLM(lora_modules)",
        ": only a server sends traces; leave it out.": "LLM(otlp_traces_endpoint)",
        ": pass images and sounds themselves, as Pillow and NumPy have them, or the bytes of files; remove it.": """
            LLM(allowed_local_media_path) LLM(allowed_media_domains)
        """,
        ": set the level of the logger tessera with Python's logging.": "LLM(log_level)",
        ": a call ends when it has its answers, or with abort(); remove it.": "LLM(shutdown_timeout)",
        ": the weights are those in the model's folder; remove it.": "LLM(model_weights)",
        ": the template shows the form of its content; remove it.": "call(chat_template_content_format)",
        ": use SamplingParams(truncate_prompt_tokens=N), or token ids.": "call(tokenization_kwargs)",
        ": an answer is a completion; remove it.": "call(output_type)",
        ": a pair is joined as the tokenizer joins texts; remove it.": "score(chat_template)",
        ": a call resets the prefix cache alone; remove it.": "call(reset_running_requests) call(reset_connector)",
        ": beams have neither adapters, priorities nor limits of their own; remove it.": """
            beam_search(lora_request) beam_search(priority) beam_search(concurrency_limit)
        """,
        " is called structured_outputs here.": "SamplingParams(guided_decoding)",
        " is called StructuredOutputsParams here.": "tessera.GuidedDecodingParams",
        ": all of n answers are returned; rank them yourself, or use LLM.beam_search().": "SamplingParams(best_of)",
        ": use LLM.beam_search().": """
            SamplingParams(use_beam_search) SamplingParams(length_penalty) SamplingParams(early_stopping)
        """,
        ": a cached prefix gives the same answer; turn the cache off with enable_prefix_caching=False.": """
            SamplingParams(skip_reading_prefix_cache)
        """,
        ": log probabilities are a list with a dictionary for each token; remove it.": "SamplingParams(flat_logprobs)",
        ": use prompt_logprobs.": """
            SamplingParams(prompt_logprob_token_ids) SamplingParams(prompt_logprob_start)
        """,
        ": text is held back for stop strings by itself; remove it.": "SamplingParams(output_text_buffer_length)",
        ": the backend is always llguidance; remove it.": "SamplingParams(guided_decoding_backend)",
    }
)
"""What follows a name in the error, and the names."""


def other_flag(option: str) -> OtherName | None:
    """What is said of an option, such as "-tp" or "--compilation-config.mode"; None if no other program has it."""
    base = re.sub(r"^-O\d$", "-O", option.partition(".")[0])
    table = _table()
    name = base if base in table else next((name for name in table if "*" in name and fnmatchcase(base, name)), None)
    return None if name is None else replace(table[name], refusal=table[name].refusal.replace(name, option, 1))


def other_keyword(name: str) -> OtherName | None:
    """What is said of a keyword of LLM, in the words of Python."""
    own = other_name(f"LLM({name})")
    option = f"--{name.replace('_', '-')}"
    flag = other_flag(option) if own is None else None
    if flag is None:
        return own
    return replace(flag, refusal=re.sub(r"(?<![\w-])--([a-z][a-z-]+)", _keyword, flag.refusal.replace(option, name, 1)))


def other_name(name: str) -> OtherName | None:
    """What is said of a name in one of the forms for Python, such as "LLM.encode"; None if no other program has it."""
    return _table().get(name)


def _keyword(option: re.Match[str]) -> str:
    """A flag that an error advises, as a keyword of LLM; another command's flag as it is."""
    from tessera.config.engine import ENGINE_FLAGS

    known = {flag.option for flag in ENGINE_FLAGS if not flag.online}
    return option[1].replace("-", "_") if option[0] in known else option[0]


@cache
def _table() -> dict[str, OtherName]:
    table: dict[str, OtherName] = {}
    for text, names in _REFUSED.items():
        for name, opposite in _names(names):
            table[name] = OtherName(refusal=f"{_bare(name)}{text}")
            if opposite:
                table[opposite] = OtherName(reason="that is off here")
    for reason, names in _ACCEPTED.items():
        for written, opposite in _names(names):
            name, equals, values = written.partition("=")
            refusal = table[name].refusal if values and name in table else ""
            table[name] = OtherName(reason, tuple(filter(None, values.split("|"))) if equals else None, refusal)
            if opposite:
                table[opposite] = OtherName(refusal=f"{opposite}: {reason}; remove it.")
    return table


def _names(names: str) -> Iterator[tuple[str, str]]:
    """Each name, and its opposite or ""."""
    for name in names.split():
        plain = name.replace("[no-]", "")
        yield plain, "" if plain == name else f"--no-{plain[2:]}"


def _bare(name: str) -> str:
    """The name in an error: without the place where it is used."""
    return re.sub(r"^(?:tessera|LLM)\.|^\w+\((\w+)\)$", lambda match: match[1] or "", name)
