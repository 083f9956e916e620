"""A platform of the library's kernels on the host, by Triton's interpreter, for the conformance kit.

The interpreter computes bfloat16 on its bit patterns (triton-lang/triton #11584), so `widened` replaces what it does
with operands of that dtype by the same in float32, rounded once. It also cuts float32 off where it converts it to
bfloat16, takes whole numbers for bit patterns there, and rounds 8-bit floats wrongly; here all of these are converted
as a device does. A comparison keeps the dtype of what it compares, so one of two numbers is no mask from 3.9 on; here
it is a bit. It also searches the language for what to replace at every call of a function in a kernel, which is half of
its time; here it looks once, and replaces once for each launch. Import this before any kernel: TRITON_INTERPRET is read
when a function is decorated, so every test file that interprets runs in a process of its own."""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from dataclasses import replace as replace_fields
from functools import cache
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

from tessera.platform import Device, MixerBackend, OpSet, replace
from tessera.testing.reference import ReferencePlatform, host_device
from tessera_triton import (
    TritonAttention,
    TritonEncoderAttention,
    TritonLatentAttention,
    TritonSparseLatentAttention,
    kernels,
    state_mixers,
)
from tessera_triton.facts import INTERPRETED

Handle, Builder = interpreter.TensorHandle, interpreter.InterpreterBuilder


EIGHT_BITS = {"fp8e4nv": torch.float8_e4m3fn, "fp8e4b8": torch.float8_e4m3fnuz, "fp8e5": torch.float8_e5m2}


def widened(handle):
    """A handle of bfloat16, or of an 8-bit float, as float32; any other as it is."""
    if not isinstance(handle, Handle):
        return handle
    eight = EIGHT_BITS.get(str(handle.dtype.scalar))
    if eight is not None:
        bits = torch.from_numpy(np.ascontiguousarray(handle.data, dtype=np.uint8))
        return Handle(np.from_dlpack(bits.view(eight).float()), tl.float32)
    if handle.dtype.scalar != tl.bfloat16:
        return handle
    return Handle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)


def narrowed(handle):
    """A handle of float32 as bfloat16, to the nearest, of two equally near ones to the even one."""
    wide = np.ascontiguousarray(handle.data, dtype=np.float32)
    bits = wide.view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return Handle(np.where(np.isnan(wide), np.uint16(0x7FC0), rounded), tl.bfloat16)


def is_narrow(*handles):
    return any(isinstance(handle, Handle) and handle.dtype.scalar == tl.bfloat16 for handle in handles)


def _binary(original):
    def binary_op(self, left, right, op):
        found = original(self, widened(left), widened(right), op)
        if found.data.dtype == np.bool_:
            return Handle(found.data, tl.int1)
        floats = found.data.dtype.kind == "f"
        return narrowed(found) if is_narrow(left, right) and floats else found

    return binary_op


def _unary(original):
    def unary_op(self, value, op):
        found = original(self, widened(value), op)
        return narrowed(found) if is_narrow(value) else found

    return unary_op


def _dot(original):
    def create_dot(self, left, right, total, *rest):
        return original(self, widened(left), widened(right), total, *rest)

    return create_dot


def _cast(original):
    def cast_impl(self, value, dtype):
        if dtype.scalar == tl.bfloat16 and value.dtype.scalar != tl.bfloat16:
            return narrowed(value)
        return original(self, value, dtype)

    return cast_impl


def _between_floats(original):
    def create_fp_to_fp(self, value, dtype, rounding):
        eight = EIGHT_BITS.get(str(dtype.scalar))
        if eight is not None:
            wide = torch.from_numpy(np.ascontiguousarray(widened(value).data, dtype=np.float32))
            return Handle(np.from_dlpack(wide.to(eight).view(torch.uint8)), dtype.scalar)
        if str(value.dtype.scalar) in EIGHT_BITS:
            return self.cast_impl(widened(value), dtype)
        return original(self, value, dtype, rounding)

    return create_fp_to_fp


def _with_fnuz(original):
    """What the interpreter makes of the language, which leaves out fp8e4b8."""

    def patch_lang_core(lang, scope):
        original(lang, scope)
        to_ir = lang.dtype.to_ir

        def with_fnuz(self, builder):
            return builder.get_fp8e4b8_ty() if self.name == "fp8e4b8" else to_ir(self, builder)

        scope.set_attr(lang.dtype, "to_ir", with_fnuz)

    return patch_lang_core


def _of_each(original):
    """NumPy's dtype for one of the language, looked up once."""
    known = cache(original)

    def get_np_dtype(dtype):
        scalar = dtype.scalar
        return original(scalar) if isinstance(scalar, tl.pointer_type) else known(scalar)

    return get_np_dtype


BUILTINS = {
    package: [name for name, member in inspect.getmembers(package) if tl.core.is_builtin(member)]
    for package in (tl, tl.core, tl.math, tl.core.tensor, tl.core.tensor_descriptor_base)
}
"""By a part of the language, the names of what the interpreter replaces there."""


def _by_name(package, builder, scope):
    """Replaces what is not replaced yet."""
    for name in BUILTINS[package]:
        member = getattr(package, name)
        if tl.core.is_builtin(member):
            interpreter._patch_attr(package, name, member, builder, scope)


def _once(original):
    """Replaces the parts of the language that a function sees, unless the launch under way has done so."""
    replaced = set()

    def patch_lang(function):
        seen = {value for value in function.__globals__.values() if value is tl or value is tl.core}
        if seen and seen <= replaced:
            return interpreter._LangPatchScope()
        scope, outermost = original(function), not replaced
        replaced.update(seen)
        if outermost:
            restore = scope.restore

            def end():
                replaced.clear()
                restore()

            scope.restore = end
        return scope

    return patch_lang


interpreter._patch_lang_core = _with_fnuz(interpreter._patch_lang_core)
interpreter._patch_builtin = _by_name
interpreter._get_np_dtype = _of_each(interpreter._get_np_dtype)
interpreter._patch_lang = _once(interpreter._patch_lang)
Builder.cast_impl = _cast(Builder.cast_impl)
Builder.create_fp_to_fp = _between_floats(Builder.create_fp_to_fp)
Builder.binary_op = _binary(Builder.binary_op)
Builder.unary_op = _unary(Builder.unary_op)
Builder.create_dot = _dot(Builder.create_dot)


class Interpreted(ReferencePlatform):
    """The library on the host."""

    name = "interpreted"
    capabilities = replace_fields(ReferencePlatform.capabilities, index_dtype="int32")  # as on a device

    def open(self, index: int) -> Device:
        return host_device()

    def ops(self, reference: OpSet) -> OpSet:
        return replace(reference, **kernels(INTERPRETED))

    def attention_backends(self) -> Sequence[MixerBackend[Any]]:
        backends = TritonAttention, TritonEncoderAttention, TritonLatentAttention, TritonSparseLatentAttention
        return (*(backend(INTERPRETED) for backend in backends), *state_mixers(INTERPRETED))
