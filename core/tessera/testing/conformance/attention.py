"""Silver: each attention backend against the definition, over a cache poisoned with NaN, at block sizes that it claims;
its fused layers; and its layout, which says where the bytes of a block are."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from math import prod
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from tessera.arrays import Array
from tessera.ops import NormSpec, RotarySpec
from tessera.ops.tensors import torch_dtype
from tessera.platform.attention import AttentionBackend, KVLayout, LayerSpec, MixerBackend
from tessera.platform.device import Reason
from tessera.platform.launch import Launch
from tessera.platform.ops import BoundOps
from tessera.platform.quantization import KV_FP8
from tessera.reference.attention import ReferenceAttention
from tessera.testing.attention import (
    KV_SCALES,
    AttentionCase,
    AttentionTrial,
    BlockTrial,
    LaunchCase,
    alibi_cases,
    attention_cases,
    chunked_cases,
    lookahead_cases,
    poison,
    relative_cases,
    rows_by_kind,
)
from tessera.testing.compare import TOLERANCES, difference
from tessera.testing.conformance.case import (
    PASSED,
    Case,
    ConformanceError,
    Verdict,
    absent,
    described,
    falls_back,
    named,
)
from tessera.testing.conformance.encoder_attention import takes_texts
from tessera.testing.conformance.leaks import kept_per_call
from tessera.testing.conformance.ops import placed
from tessera.testing.conformance.state import takes_states
from tessera.testing.conformance.target import Target, reference_ops
from tessera.testing.cross_attention import CrossCase

_TRIED = 64  # the largest multiple of a backend's block sizes that is tested
_LARGEST = "mixed-largest-heads"
WITH_SCALES = ("int8", "fp8")  # a cache with a scale for each token and head, or one for each layer
_CACHE_DTYPES = (
    "bfloat16",
    "float16",
    "float8_e4m3fn",
    "float8_e5m2",
    *WITH_SCALES,
)  # tested with other dtypes of activations
_USUAL = "mixed-plain"
_SMALL = "small-numbers"  # in a cache of scales
_WITH_SCALES = ("decode-padded", "mixed-window-softcap", "mixed-one-kv-head", "shared", "many-heads", _LARGEST)
_MOVED = ("decode-plain", "mixed-plain", "mixed-one-kv-head")
"""Launches after which blocks are moved, and attention is run again by the same layer."""
_EXACT = "heads-of-"  # whose size of heads is the point
_ONCE = ("many-queries", "one-row", "two-rows", "groups-of-7", "many-heads", "many-groups", _EXACT, "large-scores")
"""Launches of sizes and numbers that have nothing to do with the size of blocks: one is enough."""
HEAD_DIMS = (12, 16, 20, 24, 32, 40, 48, 64, 72, 80, 96, 112, 128, 192, 256)
"""Head sizes to choose from if a backend does not support the usual one."""

_CUT_SHORT = ("mixed-", "shared", "long", "large-")  # kinds of launches that dtypes after the first are tried with


Trial = TypeVar("Trial", bound=BlockTrial)


def block_backends(target: Target) -> Sequence[AttentionBackend]:
    """The platform's backends but those that take whole texts or mixers with a state alone, which have cases of their
    own."""
    dtypes = target.platform.capabilities.dtypes
    return [
        backend
        for backend in target.attention_backends
        if any(takes(backend, dtype, "") for dtype in dtypes)
        or not any(takes_texts(backend, dtype) or takes_states(backend, dtype) for dtype in dtypes)
    ]


def backend_cases(target: Target) -> Iterator[Case]:
    """One for each kind of launch in each dtype."""
    if target.brings_a_runner:
        yield Case("attention", "silver", "attention", lambda: absent("the platform has its own model runner"))
        return
    backends = block_backends(target)
    if not backends:
        yield Case("attention", "silver", "attention", lambda: falls_back("the platform has no attention backend"))
    for backend in backends:
        for place, dtype in enumerate(_by_precision(backend, target.platform.capabilities.dtypes)):
            for name in (*dict(attention_cases()), _LARGEST):
                if place == 0 or name.startswith(_CUT_SHORT):
                    yield Case(
                        f"attention/{backend.name}/{name}-{dtype}",
                        "silver",
                        "attention",
                        partial(check_attention, target, backend, name, dtype),
                    )
            yield Case(
                f"attention/{backend.name}/lse-{dtype}", "silver", "attention", partial(_sums, target, backend, dtype)
            )
            if place == 0:
                yield Case(
                    f"attention/{backend.name}/far-apart", "silver", "attention", partial(_far_apart, target, backend)
                )
            for kept in _CACHE_DTYPES:
                for name in _over(backend, dtype, kept):
                    yield Case(
                        f"attention/{backend.name}/{dtype}-over-{kept}{name.removeprefix(_USUAL)}",
                        "silver",
                        "attention",
                        partial(check_attention, target, backend, name, dtype, kept),
                    )


def _over(backend: AttentionBackend, dtype: str, kv_dtype: str) -> Sequence[str]:
    """Cases for a cache of another dtype: one, which asks whether the backend supports it; more if it has scales."""
    if kv_dtype == dtype:
        return ()
    if kv_dtype not in WITH_SCALES or not takes(backend, dtype, kv_dtype):
        return (_USUAL,)
    return (_USUAL, *_WITH_SCALES, *([_SMALL] if kv_dtype == "int8" else []))


def takes(backend: AttentionBackend, dtype: str, kv_dtype: str) -> bool:
    """Whether a backend supports activations of one dtype over a cache of another."""
    case = AttentionCase(((1, 1),), dtype=dtype, kv_dtype=kv_dtype)
    return refusal(backend, fitted(backend, case)) is None


def kept_in(backend: AttentionBackend, dtype: str) -> Sequence[str]:
    """The cache dtypes with which all checks of a backend run; "" is that of activations."""
    return "", *(kept for kept in WITH_SCALES if takes(backend, dtype, kept))


def block_sizes(backend: MixerBackend[Any], case: LaunchCase | CrossCase) -> list[int]:
    """The smallest and the largest that the backend names, and a multiple if it supports multiples."""
    said = backend.constraints(case.spec())
    sizes = {min(said.block_sizes), max(said.block_sizes)}
    return sorted(sizes | ({2 * max(sizes)} if said.block_multiple and 2 * max(sizes) <= _TRIED else set()))


def fitted(backend: AttentionBackend, case: AttentionCase, dims: Sequence[int] = HEAD_DIMS) -> AttentionCase:
    """The case, with the first head size that the backend supports; its own size is tried first."""
    sizes = (replace(case, head_dim=dim) for dim in (case.head_dim, *dims))
    return next((one for one in sizes if refusal(backend, one) is None), case)


def named_case(backend: AttentionBackend, name: str, block_size: int, dtype: str, kv_dtype: str) -> AttentionCase:
    if name == _LARGEST:
        case = replace(_cases(block_size, dtype)[_USUAL], kv_dtype=kv_dtype)
        return fitted(backend, replace(case, head_dim=HEAD_DIMS[-1]), HEAD_DIMS[::-1])
    cases = _cases(block_size, dtype)
    case = replace(cases[_USUAL], numbers="small") if name == _SMALL else cases[name]
    case = replace(case, kv_dtype=kv_dtype)
    return case if name.startswith(_EXACT) else fitted(backend, case)


@lru_cache(maxsize=16)
def _cases(block_size: int, dtype: str) -> Mapping[str, AttentionCase]:
    kinds = attention_cases, alibi_cases, chunked_cases, lookahead_cases, relative_cases
    return MappingProxyType({name: case for cases in kinds for name, case in cases(block_size, dtype)})


def refusal(backend: AttentionBackend, case: AttentionCase) -> Reason | None:
    return backend.supports(case.spec())


def trial(
    target: Target, backend: AttentionBackend, case: AttentionCase, kind: type[AttentionTrial] = AttentionTrial
) -> AttentionTrial:
    """As placed_trial, of attention."""
    return placed_trial(target, backend, case, kind)


def placed_trial(target: Target, backend: MixerBackend[Any], case: LaunchCase, kind: type[Trial]) -> Trial:
    """On the platform's device, with its ops, its dtype of indices and its shapes of launches."""
    longest = max(length for _, length in case.rows)
    shaping = target.shaping(case.spec(), longest + case.block_size, case.most_decoded)
    if shaping is not None:
        case = shaping.allowed(case)
    index_dtype = target.platform.capabilities.index_dtype
    return kind(backend, case, index_dtype=index_dtype, ops=target.bound(), shaping=shaping)


def compare(
    how: str, trial: AttentionTrial, results: list[torch.Tensor], right: list[torch.Tensor] | None = None
) -> None:
    """Compares each row with `right`, by default what the definition of attention gives. Raises ConformanceError."""
    case = trial.case
    right = right or trial.expected()
    size = case.small if case.numbers == "small" else 1.0
    for row, (part, expected) in enumerate(zip(results, right, strict=True)):
        text = difference(part.double() / size, expected / size, TOLERANCES[case.dtype])
        if text is not None:
            tensors = named(
                queries=trial.queries, keys=trial.keys, values=trial.values, result=results, expected=right,
                cache=trial.caches[0], tables=[torch.tensor(table) for table in trial.tables],
            )  # fmt: skip
            raise ConformanceError(f"{how} of {_describe_case(case)}, row {row}: {text}", tensors)


def check_attention(target: Target, backend: AttentionBackend, name: str, dtype: str, kv_dtype: str = "") -> Verdict:
    """name: of the case."""
    usual = named_case(backend, name, 16, dtype, kv_dtype)
    reason = refusal(backend, usual)
    if reason is not None:
        return falls_back(reason)
    once, sizes = name.startswith(_ONCE), block_sizes(backend, usual)
    for size in sizes[-1:] if once else sizes:
        made = trial(target, backend, named_case(backend, name, size, dtype, kv_dtype))
        if made.shaping is not None and not made.shaping.holds(made.case):
            return absent("the platform's launches hold no drafts")
        compare("attention", made, made.run())
        if once:
            continue
        compare("attention into out= filled with NaN", made, made.attended(into_nan=True))
        if name == _USUAL and not kv_dtype:
            left = kept_per_call(made.attended)
            if left:
                raise ConformanceError(
                    f"attention: each launch keeps {left} tensors that it has made ({_describe_case(made.case)})"
                )
        if name in _MOVED:
            made.move()
            compare("attention over blocks that were moved", made, made.attended())
    return PASSED


def _sums(target: Target, backend: AttentionBackend, dtype: str) -> Verdict:
    usual = fitted(backend, AttentionCase(((1, 1),), dtype=dtype))
    if not backend.constraints(usual.spec()).returns_lse:
        return absent("the backend does not return the log-sum-exp of the scores")
    reasons = []
    for size, name in product(block_sizes(backend, usual), ("mixed-plain", "mixed-window-softcap", "mixed-sinks")):
        case = named_case(backend, name, size, dtype, "")
        reasons.append(refusal(backend, case))
        if reasons[-1] is None:
            made = trial(target, backend, case)
            made.run()
            compare("the log-sum-exp", made, made.sums(), made.expected_sums())
    return PASSED if None in reasons else falls_back(str(reasons[0]))


def _far_apart(target: Target, backend: AttentionBackend) -> Verdict:
    """Blocks that lie far apart must hold the same bytes as side by side, and attention over them must be right."""
    dtypes = [dtype for dtype in target.platform.capabilities.dtypes if takes(backend, dtype, "")]
    if not dtypes:
        return falls_back("the backend takes none of the platform's dtypes")
    case = fitted(backend, AttentionCase(((1, 1),), dtype=min(dtypes, key=lambda dtype: torch_dtype(dtype).itemsize)))
    size = block_sizes(backend, case)[0]
    case = replace(case, rows=((1, 2 * size + 1), (5, size + 5)), block_size=size)
    return compared_far_apart(target, backend, case, AttentionTrial, FarTrial)


def compared_far_apart(
    target: Target, backend: MixerBackend[Any], case: LaunchCase, kind: type[BlockTrial], far_kind: type[FarBlocks]
) -> Verdict:
    """Runs the case over blocks that lie side by side and over blocks that lie far apart."""
    near = placed_trial(target, backend, case, kind)
    near.run()
    what = case.spec().place
    try:
        far = placed_trial(target, backend, case, far_kind)
    except (OSError, RuntimeError) as error:  # some devices have no error of their own for it
        return absent(f"there is no memory for blocks that lie far apart: {described(error)}")
    found = far.run()
    for here, there in zip(near.blocks, far.blocks, strict=True):
        for plane, other in zip(near.caches[0], far.caches[0], strict=True):
            expected, written = (part.cpu().contiguous().view(torch.uint8) for part in (plane[here], other[there]))
            if not torch.equal(expected, written):
                raise ConformanceError(
                    f"block {there}, {there * other.stride(0)} elements from the start of its plane, does not hold what"
                    f" was written to it: its address needs more than 32 bits ({what})",
                    {"expected": expected, "result": written},
                )
    for row, (part, right) in enumerate(zip(found, far.expected(), strict=True)):
        text = difference(part.double(), right, TOLERANCES[case.dtype])
        if text is not None:
            said = f"{what}, over blocks whose addresses need more than 32 bits, row {row}: {text}"
            raise ConformanceError(said, named(result=found, expected=far.expected()))
    return PASSED


class FarBlocks(BlockTrial):
    """Over blocks so far apart that the addresses of all but the first, counted in elements, need more than 32 bits.
    Cut to 32 bits, they point to block 0 or behind it. Blocks have gaps between them or, where planes are dense, large
    numbers. Nothing else is there, so a host needs no memory for it. Raises OSError or RuntimeError if there is not
    enough."""

    def numbers(self, count: int, random: torch.Generator) -> Tensor:
        """Chosen so that no address that is cut to 32 bits lies before the first block."""
        far = _FAR
        if self.constraints.dense_planes:
            far += -(-(1 << 32) // min(prod(plane.shape) for plane in self.layout.planes))
        return torch.tensor([1, *range(far, far + count - 1)])

    def buffer(self, block_bytes: int) -> Tensor:
        gap = 0 if self.constraints.dense_planes else (1 << 32) // _FAR * torch_dtype(self.case.cache_dtype).itemsize
        stride = gap + block_bytes
        whole = _untouched(self.num_blocks * stride, self.target).view(self.num_blocks, stride)
        for block in (0, *self.blocks):
            whole[block, :block_bytes] = 255
        return whole


class FarTrial(FarBlocks, AttentionTrial):
    """Of attention over keys and values."""


_FAR = 16  # number of the first block that lies far from the start


def _untouched(nbytes: int, target: torch.device) -> Tensor:
    """Memory [nbytes] uint8. A host provides it where it is written."""
    if target.type != "cpu":
        return torch.empty(nbytes, dtype=torch.uint8, device=target)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    return torch.frombuffer(mmap.mmap(-1, nbytes, flags=flags), dtype=torch.uint8)


def _by_precision(backend: AttentionBackend, dtypes: tuple[str, ...]) -> list[str]:
    """The dtypes that the backend supports come first, and of these float32, which shows mistakes best."""

    return sorted(dtypes, key=lambda dtype: (not takes(backend, dtype, ""), dtype != "float32"))


def _describe_case(case: AttentionCase) -> str:
    differs = replace(AttentionCase(case.rows), dtype="")
    facts = {name: value for name, value in vars(case).items() if value != getattr(differs, name)}
    return ", ".join(f"{name}={value}" for name, value in {"rows": case.rows, **facts}.items())


# ---- an attention layer as one composite (norms, rotary, write, attend) against the reference's parts


_ROTARIES: Mapping[str, Callable[[int], RotarySpec | None]] = MappingProxyType(
    {
        "unturned": lambda dim: None,
        "half": lambda dim: RotarySpec(dim, dim, "half"),
        "half-in-part": lambda dim: RotarySpec(dim, 8, "half"),
        "pairs": lambda dim: RotarySpec(dim, dim, "pairs"),
    }
)
"""Functions of the head size."""


def fused_cases(target: Target) -> Iterator[Case]:
    """One for each backend, kind of rotary embedding and dtype, with QK norms and without."""
    if target.brings_a_runner:
        return
    for backend in block_backends(target):
        for dtype in target.platform.capabilities.dtypes:
            for name, rotary in _ROTARIES.items():
                for norms, kept in product((False, True), kept_in(backend, dtype)):
                    yield Case(
                        f"fused/{backend.name}/{name}{'-normed' if norms else ''}-{dtype}{kept and f'-over-{kept}'}",
                        "silver",
                        "fused attention",
                        partial(_check_fused, target, backend, rotary, norms, dtype, kept),
                    )


def _check_fused(
    target: Target,
    backend: AttentionBackend,
    turning: Callable[[int], RotarySpec | None],
    norms: bool,
    dtype: str,
    kv_dtype: str,
) -> Verdict:
    case = fitted(backend, AttentionCase(((1, 20), (7, 30)), dtype=dtype, kv_dtype=kv_dtype))
    norm, rotary = NormSpec(case.head_dim, dtype, 1e-6) if norms else None, turning(case.head_dim)
    spec = replace(case.spec(), rotary=rotary, q_norm=norm, k_norm=norm)
    reason = backend.supports(spec)
    if reason is not None:
        return falls_back(reason)
    case = replace(case, block_size=block_sizes(backend, case)[-1])
    made = trial(target, backend, case)
    spec = replace(spec, cache=made.case.spec().cache)
    found = _fused(made, spec)
    expected = _fused(AttentionTrial(ReferenceAttention(), made.case, ops=reference_ops()), spec)
    text = difference(found, expected, TOLERANCES[dtype])
    if text is not None:
        said = f"{rotary}, {'normed, ' if norms else ''}{dtype}"
        raise ConformanceError(f"fused attention of {said}: {text}", named(result=found, expected=expected))
    return PASSED


def _fused(trial: AttentionTrial, spec: LayerSpec) -> Tensor:
    """What the layer returns for a fixed random activation: [tokens, H D], on the host."""
    trial.run()
    ops: BoundOps = trial.ops
    random = torch.Generator().manual_seed(1)
    dim = spec.head_dim if spec.rotary is None else spec.rotary.dim
    angles = torch.outer(torch.arange(40.0), 10.0 ** -torch.linspace(0, 1, dim // 2))
    weights = {"cos_sin": torch.cat((angles.cos(), angles.sin()), dim=-1)}
    weights |= {name: torch.rand(spec.head_dim, generator=random).to(_dtype(spec)) for name in ("q_norm", "k_norm")}
    layer = trial.backend.bind(spec, {**placed(weights, trial.target), **trial.weights}, ops, ops.device)
    width = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
    rows = [torch.randn(tokens, width, generator=random).to(_dtype(spec)) for tokens, _ in trial.case.rows]

    def fused(x: Tensor, launch: Launch) -> Tensor:
        mixed: Tensor = layer.fused(x, launch.positions, trial.caches, launch.plans[0])
        return mixed

    return torch.cat(trial.by_row(rows, fused))


def _dtype(spec: LayerSpec) -> torch.dtype:
    return torch_dtype(spec.dtype)


# ---- a layout: blocks can be exported, loaded elsewhere and copied without knowing the backend


_HALF = 0.51  # of a scale: the most that rounding changes a number by


def layout_cases(target: Target) -> Iterator[Case]:
    """One for each backend, check and dtype."""
    if target.brings_a_runner:
        return
    for backend in block_backends(target):
        for dtype in target.platform.capabilities.dtypes:
            for (name, check), kept in product(_LAYOUT_CHECKS.items(), kept_in(backend, dtype)):
                yield Case(
                    f"cache/{backend.name}/{name}-{dtype}{kept and f'-over-{kept}'}",
                    "silver",
                    "cache layout",
                    partial(_at_each_size, target, backend, dtype, kept, check),
                )


@dataclass
class FilledCache:
    """A trial whose tokens are in the cache, and its layout."""

    trial: AttentionTrial
    layout: KVLayout

    def read(self, blocks: list[int]) -> Array:
        """The bytes of blocks as the planes have them: [n, nbytes] uint8."""
        planes = self.trial.caches[0]
        parts = [plane[blocks].cpu().contiguous().flatten(1).view(torch.uint8).numpy() for plane in planes]
        return np.concatenate(parts, axis=1)

    def written(self, blocks: list[int], data: Array) -> None:
        """The inverse of read."""
        ends = np.cumsum([plane.nbytes for plane in self.layout.planes])[:-1]
        for cache, plane, part in zip(
            self.trial.caches[0], self.layout.planes, np.split(data, ends, axis=1), strict=True
        ):
            typed = torch.from_numpy(np.ascontiguousarray(part)).view(torch_dtype(plane.dtype))
            cache[blocks] = typed.view(len(blocks), *plane.shape).to(cache.device)

    def exported(self, blocks: list[int]) -> dict[str, torch.Tensor]:
        """The planes in canonical form, by name, flattened."""
        planes = self.layout.planes
        parts = np.split(
            self.layout.export(self.read(blocks)), np.cumsum([plane.nbytes for plane in planes])[:-1], axis=1
        )
        return {
            plane.name: torch.from_numpy(np.ascontiguousarray(part)).view(torch_dtype(plane.dtype))
            for plane, part in zip(planes, parts, strict=True)
        }

    @property
    def blocks(self) -> list[int]:
        return sorted(set(self.trial.blocks))


def _at_each_size(
    target: Target, backend: AttentionBackend, dtype: str, kv_dtype: str, check: Callable[[FilledCache], None]
) -> Verdict:
    usual = fitted(backend, AttentionCase(((1, 1),), dtype=dtype, kv_dtype=kv_dtype))
    reason = refusal(backend, usual)
    if reason is not None:
        return falls_back(reason)
    for size in block_sizes(backend, usual):
        case = replace(usual, rows=rows_by_kind(size)["mixed"], block_size=size)
        made = trial(target, backend, case)
        made.run()
        check(FilledCache(made, backend.kv_cache_layout(case.cache, size)))
    return PASSED


def _export(stored: FilledCache) -> None:
    """The canonical form has keys, then values, ordered by token, head and dim. Scales, if any, come first."""
    names = [plane.name for plane in stored.layout.planes]
    if names not in (["k", "v"], ["k_scale", "v_scale", "k", "v"]):
        return  # only its author knows what such planes hold
    size, case = stored.trial.case.block_size, stored.trial.case
    for row, table in enumerate(stored.trial.tables):
        exported = stored.exported(table)
        for name, rows in (("k", stored.trial.keys), ("v", stored.trial.values)):
            expected = rows[row]
            shape = len(table) * size, case.kv_heads
            found = exported[name].reshape(*shape, case.head_dim)[: len(expected)]
            scale_name = f"{name}_scale"
            if case.quant == KV_FP8:
                kept = found.double() * KV_SCALES[scale_name]
                right = torch.equal(kept, stored.trial.meaning(expected, scale_name))
            elif scale_name in exported:
                scale = exported[scale_name].reshape(*shape, 1)[: len(expected)]
                right = bool(((found * scale - expected).abs() <= _HALF * scale).all())
            else:
                right = torch.equal(found, expected)
            if not right:
                raise ConformanceError(
                    f"plane {name!r} of exported blocks of {size} tokens does not hold row {row}'s tokens in order",
                    {"expected": expected, "result": found.contiguous()},
                )


def _copy(stored: FilledCache) -> None:
    """Attention is the same over other blocks, into which the bytes were copied."""
    made, old = stored.trial, stored.blocks
    data = stored.read(old)
    moved = dict(zip(old, reversed(old), strict=True))
    for plane in made.caches[0]:
        poison(plane)
    stored.written([moved[block] for block in old], data)
    made.tables = [[moved[block] for block in table] for table in made.tables]
    compare("attention over copied blocks", made, made.attended())


_LAYOUT_CHECKS: Mapping[str, Callable[[FilledCache], None]] = MappingProxyType({"export": _export, "copy": _copy})
