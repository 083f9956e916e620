"""The contracts that a platform package is written against, and all that it imports from core.

The specs of ops, and the types that their hot calls take and return, are imported from here too. They are defined
beside the references in tessera.ops, which need torch, and are looked up there on first use, so that processes that
only decide can import this package without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tessera.arrays import Array
from tessera.errors import ConfigError, MemoryBudgetError, ModelError, PlatformError, RefusedError, RequestError
from tessera.platform.artifacts import Artifacts
from tessera.platform.attention import (
    AHEAD,
    NO_CACHE,
    AttentionBackend,
    AttentionGroup,
    AttentionLayer,
    CacheConstraints,
    Caches,
    CacheSpec,
    EncoderLayer,
    FullAttentionSpec,
    HeadsInput,
    HeadsLayer,
    IndexerLayerSpec,
    IndexSpec,
    KVLayout,
    LatentHeadsSpec,
    LatentLayerSpec,
    LatentSpec,
    LayerSpec,
    Mixer,
    MixerBackend,
    MixerSpec,
    Plane,
    SlidingWindowSpec,
    SparseLatentLayerSpec,
    StateSpec,
)
from tessera.platform.collectives import Alone, Communicator, FunctionalCommunicator, TorchCommunicator, Transfer
from tessera.platform.compiled import CompiledGraphs
from tessera.platform.compiled_platform import CompiledPlatform
from tessera.platform.device import (
    Arena,
    Device,
    Future,
    HostDevice,
    MemoryFigures,
    ModuleDevice,
    Ready,
    Reason,
    Tensor,
    TorchDevice,
    make_current,
)
from tessera.platform.drafts import sampled_at, step_output, write_drafts
from tessera.platform.explain import Explained
from tessera.platform.feature import (
    Column,
    EngineFeature,
    Failure,
    FailureReason,
    Feature,
    FeatureCounter,
    FeatureState,
    WorkerFeature,
    asked_bits,
    possible_bits,
)
from tessera.platform.graph import DeviceGraph, Eager, GraphRunner, PiecewiseGraphs, TorchGraphs, graph_class
from tessera.platform.hooks import hookimpl
from tessera.platform.latent import LatentBackend, LatentHeads, LatentInput, LatentLayer
from tessera.platform.launch import (
    ALL_POSITIONS,
    Buffers,
    Launch,
    LaunchKey,
    Plan,
    RequestView,
    Resource,
    StepRules,
    persistent,
)
from tessera.platform.loaded_model import CacheNeeds, LoadedModel, MemoryBudget
from tessera.platform.lora import LoraWeights
from tessera.platform.masked import MaskedAttention, MaskedPlan, Masks, SdpaAttention, in_order
from tessera.platform.model import Hidden, LayerCache, Model, ModelFacts, Product, ProductLayer
from tessera.platform.ops import Attached, BoundOps, Kernel, Op, OpSet, Packed, Wrapper, replace, with_extra
from tessera.platform.platform import (
    API_LEVELS,
    Capabilities,
    Default,
    DeviceInfo,
    Manifest,
    Platform,
    Probe,
    Problem,
    WorkerSpec,
    memory_defaults,
    with_ranks,
)
from tessera.platform.quantization import (
    KV_FP8,
    KV_INT8,
    ActSpec,
    Decoding,
    Encoding,
    Part,
    QuantSpec,
    ReadWeight,
    Scheme,
    StoredWeight,
    TensorSpec,
    Unpacking,
    WeightFormat,
)
from tessera.platform.runner import (
    RUNNER_TAKES,
    CacheGroup,
    CachePlan,
    HostSampled,
    InputBatch,
    ModelRunner,
    Progress,
    RunnerServices,
)
from tessera.platform.selective_scan import ScanInput
from tessera.platform.shapes import BucketedShapes, ExactShapes, LaunchShape, ShapePolicy, StepShape, doubled
from tessera.platform.sparse_attention import (
    IndexerBackend,
    IndexerInput,
    IndexerLayer,
    SparseLatentBackend,
    SparseLatentInput,
    SparseLatentLayer,
)
from tessera.platform.vendor import VendorKernel, import_vendor, rotary_angles, vendor_object, vendor_op
from tessera.platform.wkv import WKVInput
from tessera.request import Request
from tessera.step import RowLogprobs, RowOpened, SchedulerOutput, StepOutput, TokenMasks

if TYPE_CHECKING:
    from tessera.ops import *

__all__ = [
    "AHEAD",
    "ALL_POSITIONS",
    "API_LEVELS",
    "KV_FP8",
    "KV_INT8",
    "NO_CACHE",
    "RUNNER_TAKES",
    "ActSpec",
    "Alone",
    "Arena",
    "Array",
    "Artifacts",
    "Attached",
    "AttentionBackend",
    "AttentionGroup",
    "AttentionLayer",
    "BoundOps",
    "BucketedShapes",
    "Buffers",
    "CacheConstraints",
    "CacheGroup",
    "CacheNeeds",
    "CachePlan",
    "CacheSpec",
    "Caches",
    "Capabilities",
    "Column",
    "Communicator",
    "CompiledGraphs",
    "CompiledPlatform",
    "ConfigError",
    "Decoding",
    "Default",
    "Device",
    "DeviceGraph",
    "DeviceInfo",
    "Eager",
    "EncoderLayer",
    "Encoding",
    "EngineFeature",
    "ExactShapes",
    "Explained",
    "Failure",
    "FailureReason",
    "Feature",
    "FeatureCounter",
    "FeatureState",
    "FullAttentionSpec",
    "FunctionalCommunicator",
    "Future",
    "GraphRunner",
    "HeadsInput",
    "HeadsLayer",
    "Hidden",
    "HostDevice",
    "HostSampled",
    "IndexSpec",
    "IndexerBackend",
    "IndexerInput",
    "IndexerLayer",
    "IndexerLayerSpec",
    "InputBatch",
    "KVLayout",
    "Kernel",
    "LatentBackend",
    "LatentHeads",
    "LatentHeadsSpec",
    "LatentInput",
    "LatentLayer",
    "LatentLayerSpec",
    "LatentSpec",
    "Launch",
    "LaunchKey",
    "LaunchShape",
    "LayerCache",
    "LayerSpec",
    "LoadedModel",
    "LoraWeights",
    "Manifest",
    "MaskedAttention",
    "MaskedPlan",
    "Masks",
    "MemoryBudget",
    "MemoryBudgetError",
    "MemoryFigures",
    "Mixer",
    "MixerBackend",
    "MixerSpec",
    "Model",
    "ModelError",
    "ModelFacts",
    "ModelRunner",
    "ModuleDevice",
    "Op",
    "OpSet",
    "Packed",
    "Part",
    "PiecewiseGraphs",
    "Plan",
    "Plane",
    "Platform",
    "PlatformError",
    "Probe",
    "Problem",
    "Product",
    "ProductLayer",
    "Progress",
    "QuantSpec",
    "ReadWeight",
    "Ready",
    "Reason",
    "RefusedError",
    "Request",
    "RequestError",
    "RequestView",
    "Resource",
    "RowLogprobs",
    "RowOpened",
    "RunnerServices",
    "ScanInput",
    "SchedulerOutput",
    "Scheme",
    "SdpaAttention",
    "ShapePolicy",
    "SlidingWindowSpec",
    "SparseLatentBackend",
    "SparseLatentInput",
    "SparseLatentLayer",
    "SparseLatentLayerSpec",
    "StateSpec",
    "StepOutput",
    "StepRules",
    "StepShape",
    "StoredWeight",
    "Tensor",
    "TensorSpec",
    "TokenMasks",
    "TorchCommunicator",
    "TorchDevice",
    "TorchGraphs",
    "Transfer",
    "Unpacking",
    "VendorKernel",
    "WKVInput",
    "WeightFormat",
    "WorkerFeature",
    "WorkerSpec",
    "Wrapper",
    "asked_bits",
    "doubled",
    "graph_class",
    "hookimpl",
    "import_vendor",
    "in_order",
    "make_current",
    "memory_defaults",
    "persistent",
    "possible_bits",
    "replace",
    "rotary_angles",
    "sampled_at",
    "step_output",
    "vendor_object",
    "vendor_op",
    "with_extra",
    "with_ranks",
    "write_drafts",
]


def __getattr__(name: str) -> Any:
    """Looks up a spec, or a type of a hot call, in tessera.ops."""
    if not name.startswith("_"):
        for group in import_module("tessera.ops").GROUPS:
            if name in group.__all__:
                return getattr(group, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
