"""Records how the library of platforms/triton launches its kernels at served sizes, without a device.

Operands have no memory. What Triton compiles a launch for follows from them as it does where a kernel runs, by the code
of Triton's own launches: which numbers are constants, or known to be divisible by 16, and which pointers are aligned,
or reach less than 2 GiB."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import triton.compiler
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import create_function_from_signature

from tessera.ops import REFERENCE
from tessera.ops.tensors import torch_dtype
from tessera.platform import LatentInput, LinearSpec, Packed, SparseLatentInput, SparseLatentLayerSpec, StateSpec
from tessera.platform.collectives import Alone
from tessera.platform.ops import BoundOps, replace
from tessera.testing.attention import AttentionCase, AttentionTrial
from tessera.testing.conformance.state import Kind, Row, StateTrial
from tessera.testing.encoder_attention import EncoderCase, EncoderTrial
from tessera.testing.latent import LatentCase, LatentTrial
from tessera.testing.op_inputs import OpInputs
from tessera.testing.reference import host_device
from tessera.testing.sparse_attention import SparseLatentCase, SparseLatentTrial
from tessera_triton import (
    DeviceFacts,
    Launcher,
    TritonAttention,
    TritonEncoderAttention,
    TritonLatentAttention,
    TritonSparseLatentAttention,
    kernels,
    state_mixers,
)
from tessera_triton.attention import PagedLayer
from tessera_triton.served import (
    AttentionPlace,
    LatentPlace,
    StatePlace,
    served,
    served_attention,
    served_encoders,
    served_latents,
    served_states,
)
from tessera_triton.state import TritonState

_LARGE = 1 << 40  # bytes of a cache


@dataclass(frozen=True)
class Recorded:
    """One launch: what Triton compiles it by. place: the kernel, the op, and what distinguishes the launch."""

    place: str
    kernel: Any
    signature: dict[str, str]
    constants: dict[tuple[int, ...], Any]
    attributes: dict[tuple[int, ...], list[Any]]
    options: dict[str, Any]

    def constant(self, name: str) -> Any:
        """A parameter that is a constant; None if the kernel has none of this name."""
        names = self.kernel.arg_names
        return self.constants.get((names.index(name),)) if name in names else None


@dataclass(frozen=True)
class Pointer:
    """What Triton asks of a tensor. large: it lies in a cache, which takes most of a device's memory."""

    tensor: Tensor
    large: bool

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype

    def data_ptr(self) -> int:
        """The place in its memory, whose beginning is aligned."""
        return int(self.tensor.storage_offset()) * self.tensor.element_size()

    def ptr_range(self) -> int:
        return _LARGE if self.large else self.tensor.untyped_storage().size()


class Recorder(Launcher):
    """Notes launches instead of making them; of equal ones the first. caches: tensors that count as large."""

    computes = False

    def __init__(self, facts: DeviceFacts) -> None:
        self.target = GPUTarget(facts.backend, facts.arch, facts.warp_size)
        self.backend = triton.compiler.make_backend(self.target)
        self.launches: dict[str, Recorded] = {}
        self.place = ""
        self.caches: Sequence[Tensor] = ()
        self._at_place: dict[tuple[str, str], list[str]] = defaultdict(list)

    def __call__(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        given = [
            Pointer(value, any(value is cache for cache in self.caches)) if isinstance(value, Tensor) else value
            for value in arguments
        ]
        binder = create_function_from_signature(kernel.signature, kernel.params, self.backend)
        bound = binder(*given, **options)
        packed = kernel._pack_args(self.backend, options, *bound)  # noqa: SLF001 - what a launch calls
        parsed, signature, constants, attributes = packed
        key = f"{kernel.__name__} {packed}"
        where = f"{kernel.__name__} of {self.place}"
        others = self._at_place[kernel.__name__, self.place]
        if key not in others:
            others.append(key)
        number = others.index(key) + 1
        place = where if number == 1 else f"{where}, launch {number}"
        self.launches.setdefault(key, Recorded(place, kernel, signature, constants, attributes, parsed.__dict__))


class Inputs(OpInputs):
    """Random activations, but weights without contents, of any scheme."""

    def weight(self, spec: LinearSpec) -> Packed:
        assert self.ops is not None
        shape, scheme = (spec.n, spec.k), spec.scheme
        if scheme is None:
            experts = (spec.experts,) if spec.experts else ()
            raw = {"weight": torch.empty(*experts, *shape, dtype=torch_dtype(spec.dtype))}
        else:
            raw = {
                name: torch.empty(
                    *(-(-size // per) for size, per in zip(shape, part.per, strict=False)),
                    *part.inner,
                    dtype=torch_dtype(part.dtype),
                )
                for name, part in scheme.parts.items()
            }
        return self.ops.prepare("linear", spec, raw)


def recorded(facts: DeviceFacts) -> list[Recorded]:
    """The launches of each op at served sizes, each kind once, by Triton's compiler for a device."""
    launch = Recorder(facts)
    own = kernels(facts, launch)
    table = replace(REFERENCE, **own)
    for place in served(facts):
        ops = BoundOps(table, host_device(), {"tensor": Alone()})
        if own[place.op].supports(place.spec) is not None:
            continue
        launch.place = place.name
        with FakeTensorMode(allow_non_fake_inputs=True):
            arguments = Inputs(place.tokens, 0, ops, "bfloat16").arguments(table[place.op], place.spec)
            ops.bind(place.op, place.spec)(*arguments)
    for attended in served_attention():
        for copies, kind in (("plain", ""), ("specialized", ", specialized")):
            launch.place = f"{attended.name}{kind}"
            _attend(attended, TritonAttention(facts, launch, copies=copies), launch)
    for encoded in served_encoders():
        launch.place = encoded.name
        _encode(encoded, TritonEncoderAttention(facts, launch))
    for over_latents in served_latents():
        launch.place = over_latents.name
        _attend_latents(over_latents, launch, facts)
    mixers = {mixer.kind: mixer for mixer in state_mixers(facts, launch)}
    for kept in served_states():
        launch.place = kept.name
        _mix(kept, mixers[kept.layer.kind], launch)
    return list(launch.launches.values())


def _attend(attended: AttentionPlace, backend: TritonAttention, launch: Recorder) -> None:
    """Calls a layer as a model does, and its parts."""
    spec = attended.layer
    if backend.supports(spec) is not None:
        return
    cache: Any = spec.cache
    kept = "" if cache.quant is None else {"int8": "int8"}.get(cache.dtype, "fp8")
    size = backend.constraints(spec).block_sizes[0]
    case = AttentionCase(
        attended.rows, size, spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.softcap, spec.sinks,
        window=spec.window, dtype=spec.dtype, kv_dtype=kept,
    )  # fmt: skip
    made = AttentionTrial(backend, case)
    launch.caches = [plane for planes in made.caches for plane in planes]
    of, _ = made.launch(made.grants)
    heads = spec.num_heads + 2 * spec.num_kv_heads
    empty = partial(torch.empty, dtype=torch_dtype(spec.dtype))
    norm, cos_sin = empty(spec.head_dim), torch.empty(8192, spec.head_dim)
    weights = {**made.weights, "q_norm": norm, "k_norm": norm, "cos_sin": cos_sin}
    layer = backend.bind(spec, weights, made.ops, made.ops.device)
    assert isinstance(layer, PagedLayer), "the library's own"
    copying = layer.copying
    for layer.copying in (None, copying):  # what they fall back to, too
        layer.fused(empty(of.key.tokens, heads * spec.head_dim), of.positions, made.caches, of.plans[0])
    k = empty(of.key.tokens, spec.num_kv_heads, spec.head_dim)
    layer.write(k, k, made.caches, of.plans[0])


def _encode(encoded: AttentionPlace, backend: TritonEncoderAttention) -> None:
    """Calls a layer over whole texts as a model does."""
    spec = encoded.layer
    case = EncoderCase(
        tuple(tokens for tokens, _ in encoded.rows), spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.window,
        spec.softcap, spec.relative_reach, dtype=spec.dtype,
    )  # fmt: skip
    EncoderTrial(backend, case).run()


def _attend_latents(attended: LatentPlace, launch: Recorder, facts: DeviceFacts) -> None:
    """Calls a layer as a model does, and writes latents alone."""
    spec = attended.layer
    shape: dict[str, Any] = {
        "rows": attended.rows, "block_size": 64, "heads": spec.num_heads, "rank": spec.cache.rank,
        "rope_dim": spec.cache.rope_dim, "nope_dim": spec.nope_dim, "value_dim": spec.value_dim,
        "style": "" if spec.rotary is None else spec.rotary.style, "scale": spec.scale, "dtype": spec.dtype,
    }  # fmt: skip
    sizes = spec.num_heads * spec.query_dim, spec.cache.rank + spec.cache.rope_dim
    tokens = sum(number for number, _ in attended.rows)
    projected = LatentInput(*torch.zeros(tokens, sum(sizes), dtype=torch_dtype(spec.dtype)).split_with_sizes(sizes, 1))
    made: LatentTrial
    x: LatentInput | SparseLatentInput = projected
    if isinstance(spec, SparseLatentLayerSpec):
        x = SparseLatentInput(projected, torch.zeros(tokens, spec.limit, dtype=torch.int32))
        case = SparseLatentCase(**shape, limit=spec.limit)
        made = SparseLatentTrial(TritonSparseLatentAttention(facts, launch), case)
    else:
        made = LatentTrial(TritonLatentAttention(facts, launch), LatentCase(**shape))
    launch.caches = [plane for planes in made.caches for plane in planes]
    of, _ = made.launch(made.grants)
    made.layer.fused(x, of.positions, made.caches, of.plans[0])
    made.layer.write(projected.latent, made.caches, of.plans[0])


def _mix(place: StatePlace, backend: TritonState, launch: Recorder) -> None:
    """Calls a layer that keeps a state as a model does."""
    spec = place.layer
    assert isinstance(spec.cache, StateSpec)
    kind = Kind(
        spec.kind, type(backend), spec.num_heads, spec.num_kv_heads, spec.head_dim, place.inputs, spec.cache.shapes,
        spec.options, place.weights,
    )  # fmt: skip
    made = StateTrial(backend, kind, spec.dtype, BoundOps(REFERENCE, host_device(), {}), "int32")
    launch.caches = made.planes
    rows = [Row(0, tokens, after - tokens) for tokens, after in place.rows]
    made.computed(rows, torch.empty(sum(tokens for tokens, _ in place.rows), place.inputs))
