"""The library of native kernels (csrc), if the package has it: loaded once, with its instruction set selected. The
probe uses it too, so this module does not import torch."""

from __future__ import annotations

import ctypes
import os
from ctypes import CDLL, POINTER, c_char_p, c_float, c_int32, c_int64, c_uint8, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from tessera.platform import PlatformError, Reason
from tessera_cpu.environment import KERNELS

FILE = Path(__file__).with_name("libtessera_cpu.so")

BF16, CODED, FLOATS = range(3)
"""enum Kind of csrc/kernels.h."""

BYTES, FOURS, FIVES, SIXES, LEVELS = range(5)
"""enum Codes of csrc/kernels.h."""

BITS = (8, 4, 5, 6, 4)
"""Of an element, by its codes."""

BY_ROW, BF16_SCALES, ZEROS, HALF, HALF_ZEROS, MINIMUMS, K_PAIRS, K_SIGNED, EXPONENTS, FRACTIONS = range(10)
"""enum Scaling of csrc/kernels.h."""

WITH_SIGN, PAIRS, PLAIN = range(3)
"""enum Stored of csrc/packing.h."""

SPAN = 32
"""Elements whose codes are packed together, as in csrc/kernels.h."""

ACTIVATIONS = {"silu": 0, "gelu_tanh": 1, "gelu": 2, "relu2": 3, "relu": 4}
"""enum Activation of csrc/kernels.h."""

MAX_EXPERTS = 1024
"""That a router chooses from, as in csrc/kernels.h."""

MAX_RANK = 1024
"""Of an adapter, as in csrc/kernels.h."""

TAPS = 8
"""The most tokens that a convolution sees, as in csrc/kernels.h."""

WIDEST = 256
"""The largest head dimension, as in csrc/kernels.h."""

BF16_ENTRY, FLOAT_ENTRY = range(2)
"""enum Entry of csrc/draws.h."""

ENTRIES = {"bfloat16": BF16_ENTRY, "float32": FLOAT_ENTRY}
"""By the dtype's name."""


class Int8Rows(ctypes.Structure):
    """struct Int8Rows of csrc/kernels.h."""

    _fields_ = [
        ("elements", c_void_p),
        ("stride", c_int64),
        ("scale", c_void_p),
        ("sums", c_void_p),
        ("group", c_int64),
        ("part", c_int64),
    ]


class Coding(ctypes.Structure):
    """struct Coding of csrc/kernels.h."""

    _fields_ = [
        ("codes", c_int32),
        ("scaling", c_int32),
        ("scales", c_void_p),
        ("group", c_int64),
        ("offset", c_int32),
        ("table", c_uint8 * 16),
    ]


class Product(ctypes.Structure):
    """struct Product of csrc/kernels.h."""

    _fields_ = [
        ("x", c_void_p),
        ("x_stride", c_int64),
        ("x_scale", c_void_p),
        ("x_sum", c_void_p),
        ("x_group", c_int64),
        ("x_part", c_int64),
        ("x_units", c_void_p),
        ("unit", c_int64),
        ("packed", c_void_p),
        ("coding", Coding),
        ("bias", c_void_p),
        ("out", c_void_p),
        ("out_stride", c_int64),
        ("m", c_int64),
        ("n", c_int64),
        ("k", c_int64),
        ("rounded", Int8Rows),
        ("activation", c_int32),
        ("in_order", c_int32),
    ]


class AddNorm(ctypes.Structure):
    """struct AddNorm of csrc/kernels.h."""

    _fields_ = [
        ("x", c_void_p),
        ("x_stride", c_int64),
        ("residual", c_void_p),
        ("residual_stride", c_int64),
        ("weight", c_void_p),
        ("sum", c_void_p),
        ("out", c_void_p),
        ("rounded", Int8Rows),
        ("rows", c_int64),
        ("n", c_int64),
        ("eps", c_float),
        ("offset", c_float),
        ("multiplier", c_float),
    ]


class LayerNorm(ctypes.Structure):
    """struct LayerNorm of csrc/kernels.h."""

    _fields_ = [
        ("x", c_void_p),
        ("x_stride", c_int64),
        ("residual", c_void_p),
        ("residual_stride", c_int64),
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("sum", c_void_p),
        ("out", c_void_p),
        ("rows", c_int64),
        ("n", c_int64),
        ("eps", c_float),
        ("number", c_int32),
    ]


class Activate(ctypes.Structure):
    """struct Activate of csrc/kernels.h."""

    _fields_ = [
        ("x", c_void_p),
        ("x_stride", c_int64),
        ("out", c_void_p),
        ("out_stride", c_int64),
        ("rows", c_int64),
        ("n", c_int64),
        ("activation", c_int32),
        ("number", c_int32),
    ]


class Scale(ctypes.Structure):
    """struct Scale of csrc/kernels.h."""

    _fields_ = [
        ("x", c_void_p),
        ("x_stride", c_int64),
        ("out", c_void_p),
        ("out_stride", c_int64),
        ("rows", c_int64),
        ("n", c_int64),
        ("factor", c_float),
        ("number", c_int32),
    ]


class Gate(ctypes.Structure):
    """struct Gate of csrc/kernels.h."""

    _fields_ = [
        ("x", c_void_p),
        ("x_stride", c_int64),
        ("out", c_void_p),
        ("out_stride", c_int64),
        ("rows", c_int64),
        ("n", c_int64),
        ("slope", c_float),
        ("limit", c_float),
        ("offset", c_float),
        ("activation", c_int32),
        ("number", c_int32),
    ]


class SigmoidGate(ctypes.Structure):
    """struct SigmoidGate of csrc/kernels.h."""

    _fields_ = [
        ("x", c_void_p),
        ("x_stride", c_int64),
        ("gate", c_void_p),
        ("gate_stride", c_int64),
        ("out", c_void_p),
        ("out_stride", c_int64),
        ("rows", c_int64),
        ("n", c_int64),
        ("gates", c_int64),
        ("number", c_int32),
    ]


class Widening(ctypes.Structure):
    """struct Widening of csrc/kernels.h."""

    _fields_ = [
        ("x", c_void_p),
        ("x_stride", c_int64),
        ("out", c_void_p),
        ("rows", c_int64),
        ("n", c_int64),
    ]


class Routing(ctypes.Structure):
    """struct Routing of csrc/kernels.h."""

    _fields_ = [
        ("logits", c_void_p),
        ("stride", c_int64),
        ("bias", c_void_p),
        ("weights", c_void_p),
        ("ids", c_void_p),
        ("rows", c_int64),
        ("experts", c_int64),
        ("top_k", c_int64),
        ("groups", c_int64),
        ("top_groups", c_int64),
        ("group_top_k", c_int64),
        ("scale", c_float),
        ("renormalised", c_int32),
        ("sigmoid", c_int32),
        ("number", c_int32),
    ]


class Mixture(ctypes.Structure):
    """struct Mixture of csrc/mixture.h."""

    _fields_ = [
        ("x", c_void_p),
        ("x_stride", c_int64),
        ("weights", c_void_p),
        ("ids", c_void_p),
        ("out", c_void_p),
        ("out_stride", c_int64),
        ("tokens", c_int64),
        ("top_k", c_int64),
        ("first", c_int64),
        ("experts", c_int64),
        ("wide", Product),
        ("back", Product),
        ("wide_apart", c_int64),
        ("back_apart", c_int64),
        ("gate", Gate),
        ("wide_kind", c_int32),
        ("back_kind", c_int32),
        ("gated", c_int32),
        ("weighs_inputs", c_int32),
    ]


class Lora(ctypes.Structure):
    """struct Lora of csrc/kernels.h."""

    _fields_ = [
        ("y", c_void_p),
        ("y_stride", c_int64),
        ("x", c_void_p),
        ("x_stride", c_int64),
        ("a", c_void_p),
        ("b", c_void_p),
        ("scales", c_void_p),
        ("slots", c_void_p),
        ("ends", POINTER(c_int64)),
        ("layers", c_int64),
        ("rows", c_int64),
        ("n", c_int64),
        ("k", c_int64),
        ("rank", c_int64),
    ]


class Lookup(ctypes.Structure):
    """struct Lookup of csrc/kernels.h."""

    _fields_ = [
        ("ids", c_void_p),
        ("boundaries", c_void_p),
        ("table", c_void_p),
        ("stride", c_int64),
        ("out", c_void_p),
        ("n", c_int64),
        ("scale", c_float),
        ("number", c_int32),
    ]


class PackedLookup(ctypes.Structure):
    """struct PackedLookup of csrc/kernels.h."""

    _fields_ = [
        ("ids", c_void_p),
        ("packed", c_void_p),
        ("coding", Coding),
        ("out", c_void_p),
        ("out_stride", c_int64),
        ("m", c_int64),
        ("n", c_int64),
        ("k", c_int64),
        ("start", c_int64),
        ("factor", c_float),
    ]


class CacheBytes(ctypes.Structure):
    """struct Cache of csrc/kernels.h."""

    _fields_ = [
        ("keys", c_void_p),
        ("values", c_void_p),
        ("key_scales", c_void_p),
        ("value_scales", c_void_p),
        ("key_stride", c_int64),
        ("value_stride", c_int64),
        ("key_scale_stride", c_int64),
        ("value_scale_stride", c_int64),
        ("block_size", c_int64),
        ("kv_heads", c_int64),
        ("dim", c_int64),
    ]


class Layer(ctypes.Structure):
    """struct Layer of csrc/kernels.h."""

    _fields_ = [
        ("cache", CacheBytes),
        ("heads", c_int64),
        ("cos_sin", c_void_p),
        ("turned", c_int64),
        ("q_weight", c_void_p),
        ("k_weight", c_void_p),
        ("window", c_int64),
        ("eps", c_float),
        ("offset", c_float),
        ("scale", c_float),
        ("soft_cap", c_float),
        ("neighbours", c_int32),
        ("in_order", c_int32),
        ("chunk", c_int64),
        ("slopes", c_void_p),
        ("sinks", c_void_p),
        ("relative_bias", c_void_p),
        ("reach", c_int64),
    ]


class Launch(ctypes.Structure):
    """struct Launch of csrc/kernels.h."""

    _fields_ = [
        ("tables", c_void_p),
        ("start", c_void_p),
        ("length", c_void_p),
        ("seq_lens", c_void_p),
        ("positions", c_void_p),
        ("slots", c_void_p),
        ("ahead", c_void_p),
        ("table_stride", c_int64),
        ("rows", c_int64),
        ("tokens", c_int64),
    ]


class Encoding(ctypes.Structure):
    """struct Encoding of csrc/kernels.h."""

    _fields_ = [
        ("layer", c_void_p),
        ("launch", c_void_p),
        ("x", c_void_p),
        ("x_stride", c_int64),
        ("out", c_void_p),
        ("bias", c_void_p),
        ("reach", c_int64),
        ("number", c_int32),
        ("shares", c_void_p),
    ]


class Convolution(ctypes.Structure):
    """struct Convolution of csrc/kernels.h."""

    _fields_ = [
        ("launch", c_void_p),
        ("x", c_void_p),
        ("before", c_void_p),
        ("after", c_void_p),
        ("x_stride", c_int64),
        ("state", c_void_p),
        ("slot_stride", c_int64),
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("multipliers", c_void_p),
        ("out", c_void_p),
        ("channels", c_int64),
        ("kernel", c_int64),
        ("number", c_int32),
    ]


class DeltaRule(ctypes.Structure):
    """struct DeltaRule of csrc/kernels.h."""

    _fields_ = [
        ("launch", c_void_p),
        ("mixed", c_void_p),
        ("b", c_void_p),
        ("a", c_void_p),
        ("stride", c_int64),
        ("state", c_void_p),
        ("slot_stride", c_int64),
        ("a_log", c_void_p),
        ("dt_bias", c_void_p),
        ("heads", c_int64),
        ("key_heads", c_int64),
        ("key_dim", c_int64),
        ("dim", c_int64),
        ("columns", c_int64),
        ("scale", c_float),
        ("beta_scale", c_float),
        ("number", c_int32),
    ]


class StateSpace(ctypes.Structure):
    """struct StateSpace of csrc/kernels.h."""

    _fields_ = [
        ("launch", c_void_p),
        ("mixed", c_void_p),
        ("dt", c_void_p),
        ("dt_stride", c_int64),
        ("multipliers", c_void_p),
        ("state", c_void_p),
        ("slot_stride", c_int64),
        ("a_log", c_void_p),
        ("d", c_void_p),
        ("dt_bias", c_void_p),
        ("heads", c_int64),
        ("groups", c_int64),
        ("dim", c_int64),
        ("state_dim", c_int64),
        ("rows", c_int64),
        ("dt_min", c_float),
        ("dt_max", c_float),
        ("number", c_int32),
    ]


class GatedNorm(ctypes.Structure):
    """struct GatedNorm of csrc/kernels.h."""

    _fields_ = [
        ("x", c_void_p),
        ("x_stride", c_int64),
        ("gate", c_void_p),
        ("gate_stride", c_int64),
        ("multipliers", c_void_p),
        ("weight", c_void_p),
        ("weight_stride", c_int64),
        ("out", c_void_p),
        ("tokens", c_int64),
        ("groups", c_int64),
        ("size", c_int64),
        ("eps", c_float),
        ("gate_first", c_int32),
        ("number", c_int32),
    ]


class LatentLayer(ctypes.Structure):
    """struct LatentLayer of csrc/kernels.h."""

    _fields_ = [
        ("latents", c_void_p),
        ("block_stride", c_int64),
        ("block_size", c_int64),
        ("rank", c_int64),
        ("rope", c_int64),
        ("heads", c_int64),
        ("nope", c_int64),
        ("value", c_int64),
        ("up", c_void_p),
        ("norm", c_void_p),
        ("cos_sin", c_void_p),
        ("turned", c_int64),
        ("eps", c_float),
        ("offset", c_float),
        ("scale", c_float),
        ("neighbours", c_int32),
        ("number", c_int32),
    ]


class LatentInput(ctypes.Structure):
    """struct LatentInput of csrc/kernels.h."""

    _fields_ = [
        ("layer", c_void_p),
        ("launch", c_void_p),
        ("q", c_void_p),
        ("q_stride", c_int64),
        ("latent", c_void_p),
        ("latent_stride", c_int64),
    ]


class LatentAttention(ctypes.Structure):
    """struct LatentAttention of csrc/kernels.h."""

    _fields_ = [
        ("layer", c_void_p),
        ("launch", c_void_p),
        ("q", c_void_p),
        ("q_stride", c_int64),
        ("out", c_void_p),
        ("selection", c_void_p),
        ("limit", c_int64),
        ("tokens", c_void_p),
        ("count", c_int64),
        ("shares", c_void_p),
        ("queries", c_void_p),
        ("mixed", c_void_p),
        ("partial", c_void_p),
    ]


class Sampling(ctypes.Structure):
    """struct Sampling of csrc/draws.h."""

    _fields_ = [
        ("logits", c_void_p),
        ("stride", c_int64),
        ("rows", c_int64),
        ("vocab", c_int64),
        ("temperature", c_void_p),
        ("top_k", c_void_p),
        ("top_p", c_void_p),
        ("min_p", c_void_p),
        ("seed", c_void_p),
        ("position", c_void_p),
        ("tokens", c_void_p),
        ("entry", c_int32),
    ]


class Masking(ctypes.Structure):
    """struct Masking of csrc/edits.h."""

    _fields_ = [
        ("logits", c_void_p),
        ("stride", c_int64),
        ("vocab", c_int64),
        ("rows", c_void_p),
        ("bits", c_void_p),
        ("number", c_int64),
        ("entry", c_int32),
    ]


class Taking(ctypes.Structure):
    """struct Taking of csrc/edits.h."""

    _fields_ = [
        ("logits", c_void_p),
        ("stride", c_int64),
        ("vocab", c_int64),
        ("rows", c_void_p),
        ("out", c_void_p),
        ("number", c_int64),
        ("entry", c_int32),
    ]


class History(ctypes.Structure):
    """struct History of csrc/edits.h."""

    _fields_ = [
        ("tokens", c_void_p),
        ("stride", c_int64),
        ("rows", c_void_p),
        ("prompt", c_void_p),
        ("known", c_void_p),
    ]


class Editing(ctypes.Structure):
    """struct Editing of csrc/edits.h."""

    _fields_ = [
        ("logits", c_void_p),
        ("stride", c_int64),
        ("history", History),
        ("row", c_void_p),
        ("token", c_void_p),
        ("value", c_void_p),
        ("until", c_void_p),
        ("prefix", c_void_p),
        ("number", c_int64),
        ("length", c_int64),
    ]


class Penalising(ctypes.Structure):
    """struct Penalising of csrc/edits.h."""

    _fields_ = [
        ("logits", c_void_p),
        ("stride", c_int64),
        ("rows", c_int64),
        ("vocab", c_int64),
        ("history", History),
        ("presence", c_void_p),
        ("frequency", c_void_p),
        ("repetition", c_void_p),
    ]


class Logprobs(ctypes.Structure):
    """struct Logprobs of csrc/draws.h."""

    _fields_ = [
        ("logits", c_void_p),
        ("stride", c_int64),
        ("rows", c_int64),
        ("vocab", c_int64),
        ("tokens", c_void_p),
        ("number", c_int64),
        ("ids", c_void_p),
        ("logprobs", c_void_p),
        ("ranks", c_void_p),
        ("entry", c_int32),
    ]


_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "tessera_cpu_pack": (c_void_p, c_int64, c_void_p, c_int64, c_int64, c_int64),
    "tessera_cpu_pack_codes": (c_int32, c_int32, c_void_p, c_int64, c_void_p, c_int64, c_int64),
    "tessera_cpu_linear": (c_int32, POINTER(Product)),
    "tessera_cpu_gate_up": (c_int32, POINTER(Product)),
    "tessera_cpu_quantise": (c_void_p, c_int64, POINTER(Int8Rows), c_int64, c_int64),
    "tessera_cpu_add_norm": (POINTER(AddNorm),),
    "tessera_cpu_layer_norm": (POINTER(LayerNorm),),
    "tessera_cpu_activate": (POINTER(Activate),),
    "tessera_cpu_scale": (POINTER(Scale),),
    "tessera_cpu_gate": (POINTER(Gate),),
    "tessera_cpu_sigmoid_gate": (POINTER(SigmoidGate),),
    "tessera_cpu_widen": (POINTER(Widening),),
    "tessera_cpu_route": (POINTER(Routing),),
    "tessera_cpu_mix": (POINTER(Mixture),),
    "tessera_cpu_lora": (POINTER(Lora),),
    "tessera_cpu_heads_input": (POINTER(Layer), POINTER(Launch), c_void_p, c_int64, c_int64, c_void_p),
    "tessera_cpu_attention": (POINTER(Layer), POINTER(Launch), c_void_p, c_void_p),
    "tessera_cpu_encode": (POINTER(Layer), POINTER(Encoding)),
    "tessera_cpu_convolution": (POINTER(Convolution),),
    "tessera_cpu_delta_rule": (POINTER(DeltaRule),),
    "tessera_cpu_state_space": (POINTER(StateSpace),),
    "tessera_cpu_gated_norm": (POINTER(GatedNorm),),
    "tessera_cpu_latent_input": (POINTER(LatentLayer), POINTER(LatentInput)),
    "tessera_cpu_latent_attention": (POINTER(LatentLayer), POINTER(LatentAttention)),
    "tessera_cpu_look_up": (POINTER(Lookup), c_int64),
    "tessera_cpu_look_up_packed": (c_int32, POINTER(PackedLookup)),
    "tessera_cpu_record": (c_int64,),
    "tessera_cpu_recorded": (c_void_p,),
    "tessera_cpu_replay": (c_void_p, c_int64),
    "tessera_cpu_forget": (c_void_p,),
    "tessera_cpu_sample": (POINTER(Sampling),),
    "tessera_cpu_mask": (POINTER(Masking),),
    "tessera_cpu_take": (POINTER(Taking),),
    "tessera_cpu_edit": (POINTER(Editing),),
    "tessera_cpu_penalise": (POINTER(Penalising),),
    "tessera_cpu_logprobs": (POINTER(Logprobs),),
    "tessera_cpu_use_threads": (c_int32,),
    "tessera_cpu_variant": (c_int32,),
    "tessera_cpu_use": (c_char_p,),
}  # fmt: skip
_RESULTS = {
    "tessera_cpu_variant": c_char_p,
    "tessera_cpu_use": c_int32,
    "tessera_cpu_record": c_void_p,
    "tessera_cpu_recorded": c_int64,
}


@cache
def library() -> Any:
    """The library with the processor's best instruction set, or the one the environment names. None if there is no
    library, or the environment asks for torch's kernels. Raises PlatformError for an unavailable instruction set."""
    wanted = os.environ.get(KERNELS, "")
    if wanted == "torch" or not FILE.is_file():
        if wanted not in ("", "torch"):
            raise PlatformError(f"{KERNELS} names {wanted[:40]}, but tessera-cpu was installed without native kernels.")
        return None
    found = CDLL(str(FILE))
    for name, arguments in _SIGNATURES.items():
        function = getattr(found, name)
        function.argtypes, function.restype = arguments, _RESULTS.get(name)
    use(found, wanted or variants(found)[-1])
    return found


def varying(dtype: str) -> Reason | None:
    """Why a row of an op whose kernel is native in bfloat16 alone may have other bits in another batch."""
    if library() is None:
        return "torch's kernels do not promise batch invariance, and the native ones are not used"
    return None if dtype == "bfloat16" else f"torch's kernels, which compute {dtype}, do not promise batch invariance"


def varying_entries(dtype: str) -> Reason | None:
    """As varying(), of an op whose kernel is native in the dtypes of ENTRIES."""
    return None if dtype in ENTRIES and library() is not None else varying(dtype)


def variants(lib: Any) -> list[str]:
    """The instruction sets that this processor supports, worst to best."""
    names: list[str] = []
    while (name := lib.tessera_cpu_variant(len(names))) is not None:
        names.append(name.decode())
    return names


def used() -> str:
    """The selected instruction set."""
    return os.environ.get(KERNELS) or variants(library())[-1]


def use(lib: Any, name: str) -> None:
    """Selects an instruction set. Raises PlatformError if the processor does not support it."""
    if lib.tessera_cpu_use(name.encode()):
        raise PlatformError(f"{KERNELS} names {name[:40]}; this processor has {', '.join(variants(lib))}, or torch.")


def use_threads(lib: Any, number: int) -> None:
    """Sets the number of threads, including the caller's."""
    lib.tessera_cpu_use_threads(number)
