"""Explains, in words, which backends, schemes and kernels were chosen when a model was built, and why not others."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from tessera.config.engine import QUANTIZATIONS
from tessera.layers.build import BoundMixer, Build
from tessera.platform.attention import FullAttentionSpec
from tessera.platform.explain import Explained, op_place
from tessera.platform.ops import Emission, OpChoice
from tessera.platform.quantization import KV_FP8
from tessera.quantization.weights import Weights


def explain(build: Build) -> tuple[Explained, ...]:
    """All choices: attention by kind of layer, then quantization, then ops in the order in which they were bound."""
    return (*_attention(build), *_quantization(build), *map(_op, build.ops.choices.values()))


def _attention(build: Build) -> Iterator[Explained]:
    alike: dict[Explained, list[int]] = {}
    for bound in build.mixers:
        alike.setdefault(_mixer(build, bound), []).append(build.first_layer + bound.spec.layer)
    for one, layers in alike.items():
        yield dataclasses.replace(one, place=f"{_spans(layers)}: {one.place}")


def _mixer(build: Build, bound: BoundMixer) -> Explained:
    names = [backend.name for backend in build.backends if backend.handles(bound.spec)]
    later = names[names.index(bound.backend.name) + 1 :]
    not_asked = tuple((name, f"comes after {bound.backend.name}") for name in later)
    return Explained(bound.spec.kind, bound.spec.place, bound.backend.name, (*bound.declined, *not_asked))


def _spans(numbers: list[int]) -> str:
    """Ascending numbers in words: "layers 0-3, 5"."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    shown = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
    return f"layer {shown}" if len(numbers) == 1 else f"layers {shown}"


def _quantization(build: Build) -> Iterator[Explained]:
    yield from _weights(build.weights)
    emissions = list(build.ops.emissions.values())
    if not emissions:
        yield Explained("quantization", "activations", "none", (("a format", "no kernel wants its input quantized"),))
    yield from map(_emission, emissions)


def _weights(weights: Weights) -> Iterator[Explained]:
    if not weights.name:
        yield Explained(
            "quantization", "weights", "none", ((", ".join(QUANTIZATIONS), "--quantization does not ask for them"),)
        )
    for scheme, number in weights.quantised.items():
        others = (("as stored", weights.reasons[scheme]),) if scheme in weights.reasons else ()
        yield Explained("quantization", f"weights of {_counted(number, 'product')}", scheme, others)
    for reason, names in _by_reason(weights):
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield Explained("quantization", f"weight of {names[0]}{more}", "none", ((weights.name, reason),))


def describe_skipped_weights(weights: Weights) -> Iterator[str]:
    """Weights of matrix products that could not be quantized, one line per reason."""
    for reason, names in _by_reason(weights, of_products=True):
        first = f"the first is {names[0]}" if len(names) > 1 else names[0]
        yield f"--quantization {weights.name} leaves {_counted(len(names), 'weight')} as they are ({first}): {reason}"


def describe_kv(build: Build) -> Iterator[str]:
    """How keys and values are kept, if in fp8 or if the checkpoint says so."""
    caches = (cache.spec for cache in build.caches)
    if not any(isinstance(spec, FullAttentionSpec) and spec.quant == KV_FP8 for spec in caches):
        return
    if build.weights.kv == KV_FP8:
        yield "keys and values are kept in fp8, with the scales of the checkpoint"
    else:
        yield "keys and values are kept in fp8; the checkpoint has no scales for them, so they are 1"


def _by_reason(weights: Weights, *, of_products: bool = False) -> Iterable[tuple[str, list[str]]]:
    """Names of the weights that were not quantized, by reason. of_products: only those that were meant to be."""
    reasons: dict[str, list[str]] = {}
    for skipped in weights.skipped:
        if skipped.wanted or not of_products:
            reasons.setdefault(skipped.reason, []).append(skipped.name)
    return reasons.items()


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _emission(emission: Emission) -> Explained:
    place = f"activations of {emission.op}, {op_place(emission.spec)}"
    wanted = op_place(emission.emit)
    if emission.reason is None:
        return Explained("quantization", place, wanted, (("none", "the kernel that reads them wants this format"),))
    return Explained("quantization", place, "none", ((wanted, emission.reason),))


def _op(choice: OpChoice) -> Explained:
    place = op_place(choice.spec)
    if choice.how == "native":
        chosen = f"kernel {choice.kernel}"
        if choice.inside:
            chosen += f" over the reference of {', '.join(choice.inside)}"
        return Explained(choice.op, place, chosen, ((choice.instead, "a kernel comes first"),))
    return Explained(choice.op, place, choice.how, (("kernel", choice.reason),))
