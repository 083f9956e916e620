"""The strict platform: host tensors with every constraint that some device has, so that core cannot come to rely on
what the host tolerates.

Block size 24; int32 indices; a few shape buckets; NaN in padding, in unused cache memory and in null blocks; prefill
and decode in separate launches; two steps in flight; results that reach the host late; captured launches whose tensors
must keep their addresses; a linear that writes into the buffer it is given; a norm that emits scaled activations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tessera.arrays import Array
from tessera.ops import EmbeddingSpec, ExpertsSpec, GatedMLPSpec, LinearSpec, NormSpec, PackedEmbeddingSpec, Quantized
from tessera.ops.linear import packed_embedding
from tessera.ops.quantize import meaning
from tessera.ops.tensors import torch_dtype
from tessera.platform.attention import (
    AttentionGroup,
    CacheConstraints,
    Caches,
    IndexerLayerSpec,
    LatentLayerSpec,
    LayerSpec,
    MixerBackend,
    SparseLatentLayerSpec,
)
from tessera.platform.device import Arena, Device, Future, HostDevice, MemoryFigures, Tag
from tessera.platform.graph import GraphRunner
from tessera.platform.launch import Buffers, Launch, LaunchKey, StepRules
from tessera.platform.model import ModelFacts
from tessera.platform.ops import BoundOps, HotCall, Kernel, OpSet, Packed, replace
from tessera.platform.platform import Capabilities, Platform
from tessera.platform.quantization import ActSpec, Scheme
from tessera.platform.shapes import BucketedShapes, ShapePolicy
from tessera.reference.attention import PagedPlan, ReferenceAttention, ReferenceAttentionLayer, RowGrid
from tessera.reference.cross_attention import CrossPlan, ReferenceCrossAttention, ReferenceCrossLayer
from tessera.reference.encoder_attention import ReferenceEncoderAttention
from tessera.reference.latent import ReferenceLatentAttention, ReferenceLatentLayer
from tessera.reference.mamba import ReferenceMambaConvolution
from tessera.reference.mamba2 import ReferenceMamba2
from tessera.reference.mlstm import ReferenceMLSTM
from tessera.reference.sparse_attention import (
    ReferenceIndexer,
    ReferenceIndexerLayer,
    ReferenceSparseLatentAttention,
    ReferenceSparseLatentLayer,
)
from tessera.reference.state import StateBackend
from tessera.reference.state_grid import StatePlan
from tessera.reference.token_shift import ReferenceTokenShift
from tessera.testing.attention import poison

if TYPE_CHECKING:
    from tessera.config import EngineConfig


# ---- captured launches, whose tensors must stay where they are


@dataclass
class Current:
    """The launch under way, for the kernels that poison its padding."""

    launch: Launch | None = None


class RecordingGraphs(GraphRunner):
    """Records the address and shape of every tensor of a captured launch, and fails if one of them differs in a
    replay."""

    def __init__(self, current: Current) -> None:
        self.current = current
        self.replays = 0

    def capture(self, key: LaunchKey, forward: Callable[[Launch], Any], launch: Launch, buffers: Buffers) -> Any:
        self._run(forward, launch)
        return forward, _addresses(launch)

    def replay(self, executable: Any, launch: Launch) -> Any:
        forward, addresses = executable
        found = _addresses(launch)
        moved = [name for name in found | addresses if found.get(name) != addresses.get(name)]
        assert not moved, f"a captured launch was replayed with other buffers: {', '.join(moved)}"
        self.replays += 1
        return self._run(forward, launch)

    def _run(self, forward: Callable[[Launch], Any], launch: Launch) -> Any:
        self.current.launch = launch
        return forward(launch)


def _addresses(value: Any, name: str = "launch") -> dict[str, tuple[int, tuple[int, ...]]]:
    """The address and shape of each tensor of a launch, including those of its plans."""
    if isinstance(value, Tensor):
        return {name: (value.data_ptr(), tuple(value.shape))}
    parts: dict[Any, Any] = {}
    if is_dataclass(value):
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
    elif isinstance(value, dict):
        parts = value
    elif isinstance(value, list | tuple):
        parts = dict(enumerate(value))
    found = {}
    for key, part in parts.items():
        found.update(_addresses(part, f"{name}.{key}"))
    return found


# ---- memory and results


class StrictDevice(HostDevice):
    def __init__(self) -> None:
        super().__init__(torch, MemoryFigures(total=1 << 30, free=1 << 30, host=True))

    def to_host(self, tensor: Tensor) -> Future[Any]:
        return _Late(tensor)

    def to_device(self, values: Array, out: Tensor | None = None) -> Tensor:
        source = torch.tensor(values)
        return source if out is None else out.copy_(source)

    def arena(self, tag: Tag) -> Arena:
        return PoisonedArena(tag) if tag == "kv" else Arena(tag)


class PoisonedArena(Arena):
    """Sets all bits, which is NaN in every float format."""

    def hold(self, tensor: Tensor) -> Tensor:
        super().hold(tensor)
        return tensor.fill_(255)


class _Late:
    """A Future that is done only once result() has been called, and whose value is a copy."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.value: Any = None

    def done(self) -> bool:
        return self.value is not None

    def result(self) -> Any:
        if self.value is None:
            self.value = _numpy(self.tensor).copy()
        return self.value


_numpy = torch.Tensor.numpy  # the original, which HostReads does not record


# ---- attention


BLOCK_SIZE = 24


class PoisonedNull(ReferenceAttentionLayer):
    """Fills the null blocks with NaN before attention, so that reading a block behind the window gives NaN."""

    def attend(self, q: Tensor, caches: Caches, plan: PagedPlan, out: Tensor | None = None, lse: bool = False) -> Any:
        _poison_null(caches[self.spec.layer])
        return super().attend(q, caches, plan, out, lse)


class PoisonedLatents(ReferenceLatentLayer):
    """As PoisonedNull."""

    def attend(self, q: Tensor, caches: Caches, plan: PagedPlan, out: Tensor | None = None) -> Tensor:
        _poison_null(caches[self.spec.layer])
        return super().attend(q, caches, plan, out)


class PoisonedIndexer(ReferenceIndexerLayer):
    """As PoisonedNull. What it selects for padding are places that there are not."""

    def select(self, queries: Tensor, weights: Tensor, caches: Caches, plan: PagedPlan) -> Tensor:
        _poison_null(caches[self.spec.layer])
        selected = super().select(queries, weights, caches, plan)
        token, valid = (part[plan.grid.row, plan.grid.place] for part in (plan.grid.token, plan.grid.valid))
        real = valid & (token == torch.arange(len(token)))
        return torch.where(real[:, None], selected, _NOWHERE)


class PoisonedSparseLatents(ReferenceSparseLatentLayer):
    """As PoisonedNull."""

    def attend(
        self, q: Tensor, selection: Tensor, caches: Caches, plan: PagedPlan, out: Tensor | None = None
    ) -> Tensor:
        _poison_null(caches[self.spec.layer])
        return super().attend(q, selection, caches, plan, out)


class PoisonedCross(ReferenceCrossLayer):
    """As PoisonedNull."""

    def attend(self, q: Tensor, caches: Caches, plan: CrossPlan) -> Tensor:
        _poison_null(caches[self.spec.layer])
        return super().attend(q, caches, plan)


_NOWHERE = 1 << 30  # a position that no token has


def _poison_null(planes: Sequence[Tensor]) -> None:
    for plane in planes:
        assert plane.is_contiguous(), "asked for in constraints()"
        poison(plane[0])


class StrictBlocks(MixerBackend[Any]):
    """Stands before a reference: it then has blocks of 24 tokens in dense planes, accepts only int32 indices and wants
    tables on the host."""

    fallback = False

    def __init__(self, current: Current) -> None:
        self.current = current

    def constraints(self, spec: Any) -> CacheConstraints:
        return dataclasses.replace(
            super().constraints(spec),
            block_sizes=(BLOCK_SIZE,),
            block_multiple=False,
            dense_planes=True,
            host_tables=True,
        )

    def plan(self, launch: Launch, group: AttentionGroup, buffers: Buffers | None) -> Any:
        self.current.launch = launch  # set here too, because not every launch is captured
        for tensor in (*launch.slot_mapping, *launch.block_tables):
            assert tensor.dtype == torch.int32, tensor.dtype
        assert launch.block_tables_host[group.number] is not None, "asked for in constraints()"
        return super().plan(launch, group, buffers)  # type: ignore[safe-super]  # of the reference


class StrictAttention(StrictBlocks, ReferenceAttention):
    name = "strict"

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> PoisonedNull:
        return PoisonedNull(spec, weights, ops)


class StrictLatentAttention(StrictBlocks, ReferenceLatentAttention):
    name = "strict-latent"

    def bind(
        self, spec: LatentLayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device
    ) -> PoisonedLatents:
        return PoisonedLatents(spec, weights, ops)


class StrictIndexer(StrictBlocks, ReferenceIndexer):
    name = "strict-indexer"

    def bind(
        self, spec: IndexerLayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device
    ) -> PoisonedIndexer:
        return PoisonedIndexer(spec, weights, ops)


class StrictSparseLatentAttention(StrictBlocks, ReferenceSparseLatentAttention):
    name = "strict-sparse-latent"

    def bind(
        self, spec: SparseLatentLayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device
    ) -> PoisonedSparseLatents:
        return PoisonedSparseLatents(spec, weights, ops)


class StrictCrossAttention(StrictBlocks, ReferenceCrossAttention):
    name = "strict-cross"

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> PoisonedCross:
        return PoisonedCross(spec)


class StrictEncoderAttention(ReferenceEncoderAttention):
    name = "strict-encoder"
    fallback = False

    def __init__(self, current: Current) -> None:
        self.current = current

    def plan(self, launch: Launch, group: AttentionGroup, buffers: Buffers | None) -> RowGrid:
        self.current.launch = launch  # as in StrictBlocks
        return super().plan(launch, group, buffers)


class StrictState(StateBackend):
    """Stands before the reference of a mixer of which alone a model may consist."""

    fallback = False

    def __init__(self, current: Current) -> None:
        self.current = current

    def plan(self, launch: Launch, group: AttentionGroup, buffers: Buffers | None) -> StatePlan:
        whole = len(launch.tokens) == launch.key.tokens  # a part of a launch that verifies drafts has the tokens of all
        self.current.launch = launch if whole else None  # as in StrictBlocks
        return super().plan(launch, group, buffers)


class StrictMamba2(StrictState, ReferenceMamba2):
    name = "strict-mamba2"


class StrictMLSTM(StrictState, ReferenceMLSTM):
    name = "strict-mlstm"


class StrictTokenShift(StrictState, ReferenceTokenShift):
    name = "strict-token-shift"


class StrictMambaConvolution(StrictState, ReferenceMambaConvolution):
    name = "strict-mamba-convolution"


# ---- kernels that do what a vendor's may: poison padding, write into given buffers, emit and take scales


SCALED = ActSpec("float32", granularity="token")


class PoisonedEmbedding(Kernel[EmbeddingSpec]):
    """The reference, but in a launch padding tokens get NaN."""

    def __init__(self, current: Current) -> None:
        self.current = current

    def bind(self, spec: EmbeddingSpec, ops: BoundOps, device: Device) -> HotCall:
        look_up = ops.reference("embedding", spec)

        def embedding(tokens: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Tensor:
            launch = self.current.launch
            if launch is None:
                return look_up(tokens, weight, out=out)
            at = torch.arange(len(tokens))[:, None]
            start = launch.query_start_loc[:-1]
            real = ((at >= start) & (at < start + launch.query_lens)).any(-1, keepdim=True)
            poisoned = torch.where(real, look_up(tokens, weight), torch.nan)
            return poisoned if out is None else out.copy_(poisoned)

        return embedding


class BufferedLinear(Kernel[LinearSpec]):
    """A linear that writes into the buffer it is given, and wants float32 input scaled by powers of two, which is
    lossless. A weight in blocks stays in them, and each call decodes it, on the host."""

    def supports(self, spec: LinearSpec) -> str | None:
        if spec.experts:
            return "experts are the reference's"
        return super().supports(dataclasses.replace(spec, scheme=None) if _is_encoded(spec) else spec)

    def wants(self, spec: LinearSpec) -> ActSpec | None:
        return SCALED if spec.dtype == "float32" else None

    def bind(self, spec: LinearSpec, ops: BoundOps, device: Device) -> HotCall:
        if spec.scheme is not None:
            return partial(self._encoded, spec, spec.scheme)

        def linear(x: Tensor | Quantized, weight: Packed, *, out: Tensor | None = None) -> Tensor:
            data = x.data if isinstance(x, Quantized) else x
            if out is None:
                out = data.new_empty(len(data), spec.n)
            left, right = _whole_tiles(data), _whole_tiles(weight["weight"]).T
            if spec.bias and not isinstance(x, Quantized):
                return torch.addmm(weight["bias"], left, right, out=out)  # rounded once
            torch.mm(left, right, out=out)
            if isinstance(x, Quantized):
                out.mul_(x.scale)
            if spec.bias:
                out.add_(weight["bias"])
            return out

        return linear

    def _encoded(
        self, spec: LinearSpec, scheme: Scheme, x: Tensor | Quantized, weight: Packed, *, out: Tensor | None = None
    ) -> Tensor:
        wide = x.data * x.scale if isinstance(x, Quantized) else x.float()
        result = _whole_tiles(wide) @ _whole_tiles(self.decoded(weight, scheme)).T
        if spec.bias:
            result += weight["bias"].float()
        result = result.to(torch_dtype(spec.dtype))
        return result if out is None else out.copy_(result)

    def decoded(self, weight: Packed, scheme: Scheme) -> Tensor:
        """[n, k] float32"""
        return meaning(weight, scheme)


class EncodedRows(Kernel[PackedEmbeddingSpec]):
    """Looks rows up in a weight that stays in its blocks."""

    def supports(self, spec: PackedEmbeddingSpec) -> str | None:
        return None if _is_encoded(spec.linear) else "only weights in blocks are looked up"

    def bind(self, spec: PackedEmbeddingSpec, ops: BoundOps, device: Device) -> HotCall:
        return partial(packed_embedding, spec)


def _is_encoded(spec: LinearSpec) -> bool:
    scheme = spec.scheme
    return scheme is not None and scheme.weight.encoding is not None and scheme.activation is None


class TiledExperts(Kernel[ExpertsSpec]):
    """The reference over weights with rows of whole tiles."""

    def bind(self, spec: ExpertsSpec, ops: BoundOps, device: Device) -> HotCall:
        k, n, parts = _whole(spec.gate_up.k), _whole(spec.down.k), spec.gate_up.n // spec.down.k
        biased = spec.gate_up.bias, spec.down.bias
        wide = dataclasses.replace(
            spec,
            gate_up=dataclasses.replace(spec.gate_up, n=parts * n, k=k),
            gate=dataclasses.replace(spec.gate, n=n),
            down=dataclasses.replace(spec.down, n=k, k=n),
        )
        compute = ops.reference("experts", wide)

        def experts(
            x: Tensor, weights: Tensor, ids: Tensor, gate_up: Packed, down: Packed, *, out: Tensor | None = None
        ) -> Tensor:
            up, back = gate_up["weight"].unflatten(1, (parts, -1)), down["weight"]
            up = F.pad(up, (0, k - up.shape[-1], 0, n - up.shape[-2])).flatten(1, 2)
            back = F.pad(back, (0, n - back.shape[-1], 0, k - back.shape[-2]))
            wide, narrow = {"weight": up}, {"weight": back}
            if biased[0]:
                of_parts = gate_up["bias"].unflatten(1, (parts, -1))
                wide["bias"] = F.pad(of_parts, (0, n - of_parts.shape[-1])).flatten(1)
            if biased[1]:
                narrow["bias"] = _whole_tiles(down["bias"])
            total = compute(_whole_tiles(x), weights, ids, wide, narrow)[:, : spec.down.n]
            return total if out is None else out.copy_(total)

        return experts


def _whole(length: int) -> int:
    return length + -length % 32


def _whole_tiles(rows: Tensor) -> Tensor:
    """Lengthens rows with zeros to a multiple of 32 values. Where the CPU has AMX, torch's products of bfloat16 read
    past the end of a shorter row into the next one and multiply what they find by zero, which is NaN where that row is
    padding (torch 2.13 with oneDNN 3.12)."""
    return F.pad(rows, (0, _whole(rows.shape[-1]) - rows.shape[-1]))


class ScalingNorm(Kernel[NormSpec]):
    """The reference; if emitting, each row is divided by the smallest power of two not below its largest magnitude."""

    def supports(self, spec: NormSpec) -> str | None:
        return None if spec.emit in (None, SCALED) else f"does not emit {spec.emit}"

    def bind(self, spec: NormSpec, ops: BoundOps, device: Device) -> HotCall:
        plain = ops.reference("rms_norm", NormSpec(spec.n, spec.dtype, spec.eps, spec.offset))

        def rms_norm(x: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Tensor | Quantized:
            normed: Tensor = plain(x, weight, out=out)
            if spec.emit is None:
                return normed
            scale = torch.exp2(torch.ceil(torch.log2(normed.abs().amax(-1, keepdim=True).clamp(min=1e-20))))
            return Quantized(normed / scale, scale)

        return rms_norm


class BufferedMLP(Kernel[GatedMLPSpec]):
    """A vendor's own composite: keeps a buffer for the wide activation of each number of tokens, and has the bound
    linear write into it."""

    def wants(self, spec: GatedMLPSpec) -> ActSpec | None:
        return SCALED if spec.gate_up.dtype == "float32" else None

    def bind(self, spec: GatedMLPSpec, ops: BoundOps, device: Device) -> HotCall:
        gate_up, down = ops.bind("linear", spec.gate_up), ops.bind("linear", spec.down)
        buffers: dict[int, Tensor] = {}

        def gated_mlp(
            x: Tensor | Quantized, gate_up_weight: Packed, down_weight: Packed, *, out: Tensor | None = None
        ) -> Any:
            data = x.data if isinstance(x, Quantized) else x
            wide = buffers.setdefault(len(data), data.new_empty(len(data), spec.gate_up.n))
            assert gate_up(x, gate_up_weight, out=wide) is wide
            left, right = wide.chunk(2, dim=-1)
            act = (
                F.silu(left)
                if spec.gate.activation == "silu"
                else F.gelu(left, approximate=_gelu(spec.gate.activation))
            )
            return down(act * right, down_weight, out=out)

        return gated_mlp


def _gelu(activation: str) -> str:
    return "tanh" if activation == "gelu_tanh" else "none"


# ---- a few shapes of launches, separate for prefill and decode


class StrictShapes(BucketedShapes):
    """Prompts in rectangles of 2 rows, so that padding lies between requests."""

    def rules(self) -> StepRules:
        return dataclasses.replace(super().rules(), mix_prefill_decode=True, max_prefill_rows=3)


class SeparateStrictShapes(StrictShapes):
    """A step holds either prefill or decode rows, never both."""

    def rules(self) -> StepRules:
        return dataclasses.replace(super().rules(), mix_prefill_decode=False, max_prefill_rows=2)


def strict_shapes(blocks: int, max_decode_tokens: int, kind: type[StrictShapes] = StrictShapes) -> StrictShapes:
    return kind(
        (2, 8), (16, 64), prompt_rows=2, blocks=(blocks,), max_decode_tokens=max_decode_tokens, chunk_multiple=8
    )


# ---- the platforms


class StrictPlatform(Platform):
    name = "strict"
    capabilities = Capabilities(
        dtypes=("float32", "bfloat16"), index_dtype="int32", async_dispatch=True, static_shapes=True
    )
    shapes_class = StrictShapes

    def __init__(self) -> None:
        self.current = Current()

    def open(self, index: int) -> Device:
        return StrictDevice()

    def ops(self, reference: OpSet) -> OpSet:
        return replace(
            reference,
            embedding=PoisonedEmbedding(self.current),
            linear=BufferedLinear(),
            packed_embedding=EncodedRows(),
            experts=TiledExperts(),
            rms_norm=ScalingNorm(),
            gated_mlp=BufferedMLP(),
        )

    def attention_backends(self) -> Sequence[MixerBackend[Any]]:
        current = self.current
        blocks = StrictAttention(current), StrictLatentAttention(current)
        sparse = StrictIndexer(current), StrictSparseLatentAttention(current)
        states = StrictMamba2(current), StrictMambaConvolution(current), StrictMLSTM(current), StrictTokenShift(current)
        return *blocks, *sparse, StrictEncoderAttention(current), StrictCrossAttention(current), *states

    def graph_runner(self, device: Device) -> GraphRunner:
        return RecordingGraphs(self.current)

    def shapes(self, model: ModelFacts, config: EngineConfig) -> ShapePolicy:
        blocks = -(-config.model.max_model_len // BLOCK_SIZE)
        return strict_shapes(blocks, config.scheduler.max_decode_tokens, self.shapes_class)


class SeparateStrictPlatform(StrictPlatform):
    """The variant in which a step holds either prefill or decode rows, never both."""

    shapes_class = SeparateStrictShapes
