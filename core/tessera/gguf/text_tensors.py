"""The tensors of a text model's GGUF file under transformers' names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from tessera.errors import ModelError
from tessera.gguf.architectures.architecture import GgufArchitecture, Join, Names
from tessera.gguf.fields import GgufFields
from tessera.gguf.file import GgufFile
from tessera.gguf.rope import ROPE_TENSORS
from tessera.gguf.tensors import GgufWeight, NamedTensor, experts_of, rows_in_pairs

_LAYER = re.compile(r"blk\.(\d{1,6})\.([\w.]+?)(\.weight|\.bias|)")


def text_tensors(file: GgufFile, fields: GgufFields, architecture: GgufArchitecture) -> dict[str, GgufWeight]:
    """All weights by transformers' name. Raises ModelError for a tensor without a name, which the model would not
    use."""
    weights: dict[str, GgufWeight] = {}
    parts: dict[str, dict[str, NamedTensor]] = {}
    changes, joins, ends = architecture.changes(fields), architecture.joins(fields), architecture.ends
    joined = frozenset(part for join in joins.values() for part in join.parts)
    heads = _paired_heads(fields) if architecture.paired_rows else {}
    for name, tensor in file.tensors.items():
        if name in ROPE_TENSORS:
            continue
        weight = NamedTensor(file, tensor, tensor.shape)
        if name in ends and "{}" in ends[name]:
            weights |= experts_of(ends[name], file, tensor)
            continue
        if name in ends:
            is_norm = ends[name].endswith("norm.weight")
            weights[ends[name]] = replace(weight, offset=architecture.norm_offset) if is_norm else weight
            continue
        match = _LAYER.fullmatch(name)
        if match is not None and int(match[1]) >= fields.num_layers:
            continue  # it predicts further tokens
        if match is not None and match[2] in joined:
            parts.setdefault(f"{architecture.layers}.{match[1]}", {})[match[2]] = weight
            continue
        named = None if match is None else _named(architecture.tensors, match[2], match[3])
        if match is None or named is None:
            raise ModelError(
                f"the GGUF file has a tensor '{name[:80]}', which models of its architecture have not as far as is "
                "known here; it is not served, as its answers might be wrong."
            )
        layer, own = f"{architecture.layers}.{match[1]}", match[2]
        if own in heads:
            order = rows_in_pairs(name, tensor.shape[0], heads[own])
            weight = replace(weight, row_order=order) if len(weight.shape) > 1 else replace(weight, order=order)
        if own in changes:
            weights[f"{layer}.{named}"] = changes[own](weight)
        elif "{}" in named:
            weights |= experts_of(f"{layer}.{named}", file, tensor)
        else:
            offset = architecture.norm_offset if own.endswith("norm") and match[3] == ".weight" else 0.0
            weights[f"{layer}.{named}"] = replace(weight, offset=offset)
    for layer, own_parts in parts.items():
        weights |= {f"{layer}.{named}": made for named, made in _joined(joins, own_parts)}
    return weights


def _named(names: Names, name: str, ending: str) -> str | None:
    return names.get(f"{name}{ending}") or (f"{names[name]}{ending}" if name in names and ending else None)


def _paired_heads(fields: GgufFields) -> Mapping[str, int]:
    heads = fields.count("attention.head_count")
    return {"attn_q": heads, "attn_k": fields.largest("attention.head_count_kv", heads)}


def _joined(joins: Mapping[str, Join], parts: Mapping[str, NamedTensor]) -> list[tuple[str, GgufWeight]]:
    """parts: of a layer."""
    made = []
    for named, join in joins.items():
        own = [parts[part] for part in join.parts if part in parts]
        if own and len(own) < len(join.parts):
            raise ModelError(f"the GGUF file has '{own[0].source[:80]}', but not what belongs to it.")
        if own:
            made.append((named, join.make(*own)))
    return made
