"""How keys and values are kept in a block: as they are, or in int8 with a scale for each token and head."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from tessera.platform.attention import FullAttentionSpec, KVLayout, LayerSpec, Plane
from tessera.platform.device import Reason
from tessera.platform.ops import QuantizeSpec
from tessera.platform.quantization import KV_INT8, ActSpec
from tessera.reference.quantized import quantize

_BY_ROW = ActSpec(KV_INT8.dtype, granularity="token")


def why_not_kept(spec: LayerSpec, cache: FullAttentionSpec) -> Reason | None:
    """Why there is no definition of a layer's cache."""
    if cache.quant is None and cache.dtype == spec.dtype:
        return None
    if cache.quant == KV_INT8 and cache.dtype == KV_INT8.dtype:
        return None
    return f"keys and values are kept in {spec.dtype}, or in int8 with a scale a token and head"


def layout(spec: FullAttentionSpec, block_size: int) -> KVLayout:
    """Scales first, so that what is wider lies where its size suits it."""
    heads = ("token", block_size), ("head", spec.num_kv_heads)
    scales = () if spec.quant is None else tuple(Plane(f"{name}_scale", spec.quant.scale_dtype, heads) for name in "kv")
    return KVLayout((*scales, *(Plane(name, spec.dtype, (*heads, ("dim", spec.head_dim))) for name in "kv")))


def align_bytes(spec: FullAttentionSpec) -> int:
    return 1 if spec.quant is None else 4


def write(planes: Sequence[Tensor], block: Tensor, offset: Tensor, k: Tensor, v: Tensor) -> None:
    """k, v [T, Hk, D] to the places block and offset [T]."""
    kept = [k, v]
    if len(planes) > len(kept):
        rounded = [_rounded(x) for x in kept]
        kept = [scale for _, scale in rounded] + [data for data, _ in rounded]
    for plane, values in zip(planes, kept, strict=True):
        plane.index_put_((block, offset), values)


def _rounded(x: Tensor) -> tuple[Tensor, Tensor]:
    """[T, H, D] -> int8 [T, H, D], float32 [T, H]."""
    rows = quantize(QuantizeSpec(x.shape[-1], "float32", _BY_ROW), x.flatten(0, 1))
    return rows.data.view(x.shape), rows.scale.view(x.shape[:-1])


def read(planes: Sequence[Tensor], tables: Tensor) -> Iterator[Tensor]:
    """Keys, then values, of the tables' blocks [R, B]: [R, B x block size, Hk, D] float32."""
    *scales, k, v = (plane[tables].flatten(1, 2).float() for plane in planes)
    for number, values in enumerate((k, v)):
        yield values * scales[number].unsqueeze(-1) if scales else values
