"""The engine's configuration: frozen records of plain data that cross processes as JSON. A field made with flag() is
also a flag of `tessera serve` and a keyword of LLM. build.py fills the records and resolves values that depend on each
other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from types import MappingProxyType
from typing import Any

from tessera.config.flags import flag, flags_of
from tessera.config.kv_events import KVEventsConfig
from tessera.config.kv_transfer import KVTransferConfig
from tessera.config.mesh import Axis, Mesh
from tessera.config.modalities import encoder_length
from tessera.config.pooler import PoolerConfig
from tessera.config.source_text import SourceTextConfig
from tessera.config.speech import SpeechConfig

MAX_TOKENS = 2**24
MAX_SECONDS = 86_400

ENCODER_CACHE = 16384
"""Several images or sounds of several thousand tokens each, which shorter models have no room for."""
MAX_MEDIA = 16
"""Of each kind in a prompt, unless --limit-mm-per-prompt says otherwise."""

QUANTIZATIONS = ("int8", "int4", "fp8")
"""The values of --quantization; tessera.quantization.schemes says what they mean."""

GROUPS: Mapping[str, str] = MappingProxyType(
    {
        "model": "Model and tokenizer",
        "cache": "KV cache",
        "scheduler": "Scheduling",
        "platform": "Platform and parallelism",
        "lora": "LoRA adapters",
    }
)
"""The groups of engine flags, and their titles."""


@dataclass(frozen=True)
class ModelOptions:
    """The user's choices that also depend on the model's files: model_config() turns them into a ModelConfig."""

    served_model_name: str | None = flag(
        None, "Model name in the API; repeat for aliases.", metavar="NAME", shown_default="the folder's name",
        common=True, multiple=True, several=True,
    )  # fmt: skip
    max_model_len: int | None = flag(
        None, "Maximum context length, prompt and answer together, such as 4096 or 32K.", kind="size", low=1,
        high=MAX_TOKENS, metavar="TOKENS", shown_default="the model's", unset="auto", common=True, plan=True,
    )  # fmt: skip
    tokenizer: str | None = flag(
        None, "Folder or Hugging Face Hub repository of the tokenizer.", metavar="MODEL", shown_default="the model's"
    )
    mmproj: str | None = flag(
        None, "GGUF file of the tower that reads images for the model of a GGUF file; none leaves it out.",
        metavar="none|FILE", shown_default="mmproj-*.gguf beside it", plan=True,
    )  # fmt: skip
    skip_tokenizer_init: bool = flag(False, "Load no tokenizer: prompts and answers are token ids.")
    revision: str | None = flag(
        None, "Branch, tag or commit of the Hub repository.", metavar="NAME", shown_default="main", plan=True
    )
    tokenizer_revision: str | None = flag(
        None, "Branch, tag or commit of the tokenizer's repository.", metavar="NAME", shown_default="as --revision"
    )
    download_dir: str | None = flag(
        None, "Where models from the Hub are stored.", metavar="FOLDER", shown_default="HF_HUB_CACHE", plan=True
    )
    hf_token: str | None = flag(None, "Access token for the Hub.", metavar="TOKEN", variable="HF_TOKEN", plan=True)
    trust_remote_code: bool = flag(False, "Accepted, without effect: code from a model's folder is never run.")
    generation_config: str | None = flag(
        None, "Source of default sampling parameters: auto is the model, none disables them. With a FOLDER, its "
        "max_new_tokens also limits every answer.", metavar="auto|none|FOLDER", shown_default="auto",
    )  # fmt: skip
    override_generation_config: Mapping[str, Any] | None = flag(
        None, "Sampling parameters that override these defaults, such as '{\"max_new_tokens\": 512}'."
    )
    runner: str = flag(
        "auto", "Whether the model generates text or only answers with numbers (pooling); auto decides by its files.",
        choices=("auto", "generate", "pooling"), plan=True,
    )  # fmt: skip
    convert: str = flag(
        "auto", "Make a model that generates answer with vectors (embed) or numbers of labels (classify) too.",
        choices=("auto", "none", "embed", "classify"), plan=True,
    )  # fmt: skip
    pooler_config: Mapping[str, Any] | None = flag(
        None, "How hidden states become a vector, such as '{\"pooling_type\": \"MEAN\", \"normalize\": true}'.",
        shown_default="the model's",
    )  # fmt: skip


@dataclass(frozen=True)
class ModelConfig:
    """The model to serve."""

    path: str  # its folder or GGUF file
    served_name: str
    checkpoint: dict[str, Any]  # its config.json
    vocab_size: int
    max_model_len: int  # in tokens
    eos_token_ids: tuple[int, ...] = ()  # tokens that end a completion
    # "auto" or torch's name.
    dtype: str = flag(
        "auto", "Data type of weights and activations.", metavar="DTYPE", common=True, plan=True,
        choices=("auto", "bfloat16", "float16", "half", "float32", "float"),
        spellings={"half": "float16", "float": "float32"},
    )  # fmt: skip
    quantization: str | None = flag(
        None, "Quantize linear weights to this format at load.", choices=QUANTIZATIONS, shown_default="none",
        common=True, plan=True, aliases=("-q",),
    )  # fmt: skip
    convert_weights: bool = flag(
        False, "Round quantized weights that no kernel multiplies with as they are stored to int8 or fp8 at load.",
        plan=True,
    )  # fmt: skip
    load_format: str = flag(
        "auto", "Format of the weights; dummy generates random ones.", choices=("auto", "safetensors", "dummy"),
        common=True,
    )  # fmt: skip
    tokenizer: str = ""  # its folder, or "" for none
    mmproj: str = ""  # the GGUF file of its tower, or "" for none
    max_logprobs: int = flag(
        20,
        "Maximum logprobs per token that a request may ask for; -1 for the whole vocabulary.",
        low=-1,
        high=2**31 - 1,
    )
    # How it pools; None if it only generates.
    pooler: PoolerConfig | None = None
    generates: bool = True  # whether tokens can be sampled from it
    # For fields that a request does not set, by the names of SamplingParams.
    sampling_defaults: dict[str, float | int] = field(default_factory=dict)
    # How it is asked to write down speech; None: it does not.
    speech: SpeechConfig | None = None
    # How it begins an answer to a text that its encoder reads; None: its decoder reads the prompt.
    source_text: SourceTextConfig | None = None
    # What a prompt may hold beside text: "image", "video", "audio".
    modalities: tuple[str, ...] = ()
    limit_mm_per_prompt: Mapping[str, int] | None = flag(
        None, "Most images, videos and sounds of a prompt, such as '{\"image\": 4, \"audio\": 1}'; 0 refuses them.",
        shown_default="16", plan=True,
    )  # fmt: skip
    mm_processor_kwargs: Mapping[str, Any] | None = flag(
        None, "Arguments of the model's image and video processors, such as '{\"size\": {\"longest_edge\": 980}}'.",
    )  # fmt: skip

    @property
    def max_prompt_len(self) -> int:
        """The most tokens of a prompt."""
        return self.max_model_len if self.source_text is None else self.source_text.length

    def decoded_tokens(self, num_prompt_tokens: int, *, in_language: bool = False) -> int:
        """How many tokens are before an answer in the context. in_language: of a request that names a language."""
        source = self.source_text
        if source is None:
            return num_prompt_tokens
        return len(source.begin_in(0) if in_language else source.begin)

    def most_media(self, modality: str) -> int:
        """Of a prompt."""
        if modality not in self.modalities:
            return 0
        return (self.limit_mm_per_prompt or {}).get(modality, MAX_MEDIA)


@dataclass(frozen=True)
class CacheConfig:
    """block_size: None lets the attention backends choose. memory_bytes: None uses the memory the device has left.
    memory_utilization: for devices with their own memory."""

    block_size: int | None = flag(
        None, "Tokens per block.", low=1, high=4096, shown_default="the platform's choice", plan=True
    )
    memory_bytes: int | None = flag(
        None, "KV cache size, such as 4GiB.", name="kv_cache_memory_bytes", kind="size", low=1, high=2**50,
        metavar="BYTES", shown_default="what the device has left", common=True, plan=True,
    )  # fmt: skip
    memory_utilization: float = flag(
        0.92, "Fraction of the device's memory to use, up to 1.", name="gpu_memory_utilization", above=0, high=1,
        metavar="FRACTION", common=True, plan=True, aliases=("--device-memory-utilization",),
    )  # fmt: skip
    prefix_caching: bool = flag(True, "Reuse the KV cache of shared prompt prefixes.", name="enable_prefix_caching")
    dtype: str = flag(
        "auto", "Data type of the KV cache; int8, one scale per token and head, or fp8, one per layer, halves it.",
        name="kv_cache_dtype", choices=("auto", "int8", "int8_per_token_head", "fp8", "fp8_e4m3"),
        spellings={"int8_per_token_head": "int8", "fp8_e4m3": "fp8"}, common=True, plan=True,
    )  # fmt: skip
    check: bool = flag(
        False, "Check every read and write of the KV cache against a record of who wrote what; for debugging.",
        name="check_kv_cache",
    )  # fmt: skip
    # None publishes nothing.
    events: KVEventsConfig | None = flag(  # noqa: RUF009  # flag() makes a field
        None, "Publish which blocks are cached, for routers, such as '{\"enable_kv_cache_events\": true, \"endpoint\": "
        "\"tcp://*:5557\", \"replay_endpoint\": \"tcp://*:5558\"}'.", name="kv_events_config", shown_default="off",
    )  # fmt: skip
    # None: neither lends nor fetches.
    transfer: KVTransferConfig | None = flag(  # noqa: RUF009  # flag() makes a field
        None, "Compute prompts for other engines, or go on with those that others computed, such as "
        "'{\"kv_connector\": \"TcpConnector\", \"kv_role\": \"kv_both\"}'.", name="kv_transfer_config", online=True,
        shown_default="off",
    )  # fmt: skip


@dataclass(frozen=True)
class SpeculativeConfig:
    """Draft tokens that a step verifies."""

    method: str  # who proposes them; "ngram" looks for the row's last tokens earlier in the row
    num_speculative_tokens: int  # the most of one row in one step
    prompt_lookup_min: int = 5  # the fewest last tokens that are looked for
    prompt_lookup_max: int = 5  # the most of them, which are looked for first


@dataclass(frozen=True)
class SchedulerConfig:
    max_num_seqs: int = flag(256, "Maximum number of running requests.", low=1, high=2**16, common=True, plan=True)
    # The token budget of a step, at least max_num_seqs.
    max_num_batched_tokens: int = flag(
        2048, "Maximum tokens per step.", kind="size", low=1, high=MAX_TOKENS, metavar="TOKENS", common=True, plan=True
    )
    chunked_prefill: bool = flag(True, "Split long prompts over several steps.", name="enable_chunked_prefill")
    policy: str = flag(
        "fcfs", "Order of requests: fcfs, priority, fair, or a plugin's policy.", name="scheduling_policy",
        metavar="NAME",
    )  # fmt: skip
    # Number of steps in flight; None uses what the device supports.
    depth: int | None = flag(
        None, "Steps launched before the first one finishes.", name="steps_in_flight", low=1, high=8,
        shown_default="the platform's choice",
    )  # fmt: skip
    max_waiting: int = flag(
        4096, "Maximum number of waiting requests; further ones get a 503.", low=1, high=2**20, online=True,
        aliases=("--max-num-queued-reqs",),
    )  # fmt: skip
    # None for no limit.
    max_num_queued_tokens: int | None = flag(
        None, "Maximum prompt tokens of waiting requests; further requests get a 503.", kind="size", low=1, high=2**40,
        metavar="TOKENS", shown_default="no limit", online=True,
    )  # fmt: skip
    watermark: float = flag(
        0.01, "Fraction of KV cache blocks kept free when a request starts beside others.", low=0, below=1,
        metavar="FRACTION",
    )  # fmt: skip
    # None for no drafts.
    speculative: SpeculativeConfig | None = flag(  # noqa: RUF009  # flag() makes a field
        None, "Guess tokens of an answer and verify them together, such as '{\"method\": \"ngram\", "
        "\"num_speculative_tokens\": 4, \"prompt_lookup_max\": 3}'.", name="speculative_config", shown_default="off",
        aliases=("-sc",),
    )  # fmt: skip

    @property
    def max_decode_tokens(self) -> int:
        """The most tokens that a row which decodes computes in a step: its newest token, and drafts."""
        return 1 if self.speculative is None else 1 + self.speculative.num_speculative_tokens

    @property
    def max_decode_samples(self) -> int:
        """The most tokens that all rows which decode compute, and so draw, in a step."""
        return max(self.max_num_seqs, min(self.max_num_seqs * self.max_decode_tokens, self.max_num_batched_tokens))


@dataclass(frozen=True)
class ParallelConfig:
    """threads: host threads of each worker; None lets the platform choose."""

    tensor_parallel_size: int = flag(
        1, "Number of devices for tensor parallelism.", low=1, high=1024, common=True, plan=True, aliases=("-tp",)
    )
    pipeline_parallel_size: int = flag(
        1,
        "Number of pipeline stages, each with its own layers and devices.",
        low=1,
        high=1024,
        common=True,
        plan=True,
        aliases=("-pp",),
    )
    expert_parallel: bool = flag(
        False, "Divide the experts of a layer among the devices of tensor parallelism whole, instead of each expert's "
        "weights.", name="enable_expert_parallel", common=True, plan=True, aliases=("-ep",),
    )  # fmt: skip
    data_parallel_size: int = flag(
        1, "Number of engines, each with the whole model and devices of its own; requests are divided among them.",
        low=1, high=64, common=True, online=True, aliases=("-dp",),
    )  # fmt: skip
    sticky_cache_salt: bool = flag(
        False,
        "Of several engines, requests with an equal cache_salt prefer the same one, whatever their prompts.",
        online=True,
    )
    # Of this engine, from 0.
    data_parallel_rank: int = 0
    nnodes: int = flag(
        1, "Number of hosts that the devices are on, the same number on each; run the command on all of them.", low=1,
        high=1024, online=True, variable="LWS_GROUP_SIZE",
    )  # fmt: skip
    node_rank: int = flag(
        0, "Number of this host; host 0 answers requests.", low=0, high=1023, online=True, variable="LWS_WORKER_INDEX"
    )
    master_addr: str = flag(
        "", "Address of host 0, which the other hosts can reach.", metavar="ADDRESS", online=True,
        variable="LWS_LEADER_ADDRESS",
    )  # fmt: skip
    master_port: int = flag(
        29501, "Port on host 0 where hosts join; their workers meet at the next one.", low=1, high=65534, online=True
    )
    cluster_key_file: str = flag(
        "", "File of a secret that hosts of one engine, and engines that exchange caches, share; without it, whoever "
        "reaches host 0 can join.", metavar="FILE",
        online=True, shown_default="none",
    )  # fmt: skip
    threads: int | None = flag(
        None, "Host threads per worker.", low=1, high=4096, shown_default="the cores available to it"
    )

    @property
    def mesh(self) -> Mesh:
        sizes: dict[Axis, int] = {"pipeline": self.pipeline_parallel_size, "tensor": self.tensor_parallel_size}
        return Mesh(sizes, {"expert": "tensor"} if self.expert_parallel else {})

    @property
    def world_size(self) -> int:
        """Number of workers of one engine."""
        return self.mesh.size

    @property
    def host_size(self) -> int:
        """Devices of one engine on each host."""
        return self.world_size // self.nnodes


@dataclass(frozen=True)
class LoraConfig:
    """modules: pairs of an adapter's name in the API and its folder. max_loras: None is as many as there are modules,
    at least 1."""

    enable: bool = flag(False, "Serve LoRA adapters.", name="enable_lora", common=True, plan=True)
    modules: tuple[tuple[str, str], ...] = flag(
        (), "Adapter to serve under a model name of its own; repeat for several.", name="lora_modules",
        metavar="NAME=FOLDER", common=True, multiple=True, several=True, online=True,
    )  # fmt: skip
    max_loras: int | None = flag(
        None, "Maximum number of different adapters in a step.", low=1, high=1024,
        shown_default="all of --lora-modules", plan=True,
    )  # fmt: skip
    max_rank: int = flag(16, "Maximum rank of an adapter.", name="max_lora_rank", low=1, high=1024, plan=True)

    @property
    def slots(self) -> int:
        """Adapters that are on the device at once."""
        return self.max_loras or max(len({folder for _, folder in self.modules}), 1)


@dataclass(frozen=True)
class EngineConfig:
    model: ModelConfig
    # Dotted path of the Platform class ("package.module:Name").
    platform: str = flag(
        MISSING, "Platform to run on (see: tessera platforms).", metavar="NAME", shown_default="the highest score",
        common=True, plan=True,
    )  # fmt: skip
    # The API levels of facets it was written for; for missing ones, core's.
    platform_levels: dict[str, int] = field(default_factory=dict)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    # Names in the registry, with an option after an =.
    features: tuple[str, ...] = flag(
        ("structured_outputs",), "Features of requests to enable, those of plugins among them; none disables all. The "
        "list replaces the default.", metavar="NAME[=OPTION],...", shown_default="structured_outputs",
    )  # fmt: skip
    allow_additional_properties: bool = flag(
        False, "Structured outputs: objects may have properties that their JSON Schema does not list, unless it or the "
        "request says otherwise.", group="model",
    )  # fmt: skip
    plugins: tuple[str, ...] = ()  # modules of further plugins to load, by name
    embedded: bool = False  # the engine runs in a user's own process, where nothing process-wide may be changed
    enforce_eager: bool = flag(False, "Disable graph capture.")
    no_fallback: bool = flag(
        False, "Refuse to start if any op or attention layer would run on the reference implementation."
    )
    batch_invariant: bool = flag(
        False, "Compute the same bits for a request whatever else is in the batch; refused where the platform does not "
        "promise that.", common=True, plan=True,
    )  # fmt: skip
    seed: int = flag(0, "Seed for dummy weights and for requests without a seed.", group="model", low=0, high=2**64 - 1)
    # Dotted paths of the fields that the user set, which platform defaults do not override.
    explicit_fields: frozenset[str] = frozenset()
    folder: str = ""  # a temporary folder that the starter of the engine's processes creates and removes; "" for none
    log_format: str = "text"  # of the processes' log, "text" or "json"

    @property
    def encoder_cache_tokens(self) -> int:
        """Slots for the features of images and sounds, or of what an encoder reads: as many as a step may need, and
        those of all rows of an encoder-decoder, if there is room, since several requests may ask about one of them."""
        length = encoder_length(self.model.checkpoint)
        wanted = length * self.scheduler.max_num_seqs if length else self.model.max_model_len
        return max(self.scheduler.max_num_batched_tokens, length, min(ENCODER_CACHE, wanted))


ENGINE_FLAGS = (
    *flags_of(ModelOptions, "model"),
    *flags_of(ModelConfig, "model", "model."),
    *flags_of(CacheConfig, "cache", "cache."),
    *flags_of(SchedulerConfig, "scheduler", "scheduler."),
    *flags_of(EngineConfig, "platform", ""),
    *flags_of(ParallelConfig, "platform", "parallel."),
    *flags_of(LoraConfig, "lora", "lora."),
)
"""The flags that build_config accepts besides the model. LLM accepts those that are not `online`."""

BUSY = 10
"""What uses processor time, a step or the server's event loop, may take this many times Supervision.stall_seconds: the
machine may just be slow."""


@dataclass(frozen=True)
class Supervision:
    """When an engine process counts as dead, and whether it is restarted. window: the seconds within which max_restarts
    are allowed."""

    max_restarts: int = flag(2, "Maximum engine restarts within five minutes.", low=0, high=1000)
    window: float = 300.0
    stall_seconds: float = flag(
        24.0, "Restart the engine after this long without a heartbeat, or idle within a step.", name="stall_timeout",
        low=2, high=MAX_SECONDS, unit="seconds", metavar="SECONDS",
    )  # fmt: skip
