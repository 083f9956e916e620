"""Bronze: every op that the platform overrides, against the reference, at each of the op's sample specs."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from tessera.ops import LinearSpec, Quantized
from tessera.platform.ops import PATH_TOKENS, BoundOps, HotCall, Op, OpSet, Packed
from tessera.testing.compare import difference, tolerance
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
from tessera.testing.conformance.leaks import kept_per_call
from tessera.testing.conformance.target import Target, reference_ops
from tessera.testing.op_inputs import OpInputs

_FEW = 64  # tokens; with more, only the result is checked: strides, out= and the like are the same


def op_cases(target: Target) -> Iterator[Case]:
    """One per spec; only one for an op that the platform leaves to core."""
    for name in target.ops.names():
        op = target.ops[name]
        if target.brings_a_runner:
            yield Case(f"op/{name}", "bronze", name, lambda: absent("the platform has its own model runner"))
        elif op.kernel is None and not has_native_parts(target.ops, op):
            yield Case(f"op/{name}", "bronze", name, lambda: falls_back("no kernel"))
        elif op.sample_specs is None or op.inputs is None:
            yield Case(f"op/{name}", "bronze", name, lambda: absent("the op declares no sample_specs, or no inputs"))
        else:
            for number, spec in enumerate(op.sample_specs()):
                yield Case(f"op/{name}/{number}", "bronze", name, partial(_check, target, op, spec))
            if op.kernel is not None:  # the sizes of parts are tried with the parts
                yield Case(f"op/{name}/sizes", "bronze", name, partial(_check_sizes, target, op))


def has_native_parts(ops: OpSet, op: Op[Any]) -> bool:
    """Whether a composite that is bound as its parts may run a kernel of the platform's."""
    return any(ops[part].kernel is not None or has_native_parts(ops, ops[part]) for part in op.parts)


def _native_inside(target: Target, op: Op[Any], spec: Any) -> bool:
    """Whether a part of a composite is native at this spec."""
    bound = target.bound()
    if has_native_parts(target.ops, op):
        bound.bind(op.name, spec)
    return any(choice.how == "native" for choice in bound.choices.values())


def dtype_of(spec: Any) -> str | None:
    """The dtype of a spec's activations, inner specs asked in order; None: it does not say."""
    if getattr(spec, "dtype", None) is not None:
        return str(spec.dtype)
    parts = (getattr(spec, field.name) for field in dataclasses.fields(spec))
    return next((found for part in parts if dataclasses.is_dataclass(part) and (found := dtype_of(part))), None)


def _check(target: Target, op: Op[Any], spec: Any) -> Verdict:
    own, claimed = dtype_of(spec), target.platform.capabilities.dtypes
    if own is not None and own not in claimed:
        return absent(f"{own} is not among its dtypes")
    reason = "no kernel" if op.kernel is None else op.kernel.supports(spec)
    if reason is not None and not _native_inside(target, op, spec):
        return falls_back(reason)
    model = claimed if op.any_dtype else ("float32",)
    for dtype in model if own is None else (own,):
        for tokens in op.sample_tokens(spec):
            OpTrial(target, op, spec, dtype, tokens, native=reason is None).check()
    return PASSED


def _check_sizes(target: Target, op: Op[Any]) -> Verdict:
    """Results at sizes where kernels change their path: many numbers of tokens at the first spec in each dtype that the
    kernel supports, and the op's own large samples."""
    assert op.kernel is not None
    reasons: list[str | None] = []
    for spec, tokens in (*_path_tokens(target, op), *op.large_samples()):
        own, claimed = dtype_of(spec), target.platform.capabilities.dtypes
        reason = f"{own} is not among its dtypes" if own not in (None, *claimed) else op.kernel.supports(spec)
        reasons.append(reason)
        for dtype in ((claimed if op.any_dtype else ("float32",)) if own is None else (own,)) if reason is None else ():
            trial = OpTrial(target, op, spec, dtype, tokens, native=True)
            trial.check_result()
            if None not in reasons[:-1]:
                trial.check_leaks()
    return PASSED if None in reasons or not reasons else falls_back(reasons[0] or "")


def _path_tokens(target: Target, op: Op[Any]) -> Iterator[tuple[Any, int]]:
    assert op.kernel is not None
    assert op.sample_specs is not None
    seen = set[str | None]()
    for spec in op.sample_specs():
        dtype = dtype_of(spec)
        claimed = dtype in (None, *target.platform.capabilities.dtypes)
        if dtype not in seen and claimed and op.kernel.supports(spec) is None:
            seen.add(dtype)
            yield from ((spec, tokens) for tokens in PATH_TOKENS)


# ---- one op at one spec, with a given number of tokens


@dataclass
class OpTrial:
    """native: the platform's kernel runs, not the op's parts. tokens: also the random seed."""

    target: Target
    op: Op[Any]
    spec: Any
    dtype: str
    tokens: int
    native: bool

    def check_result(self) -> Any:
        """The result of one call, on the host. Raises ConformanceError."""
        return self.run("", self._call, self._arguments())

    def check(self) -> None:
        """Raises ConformanceError."""
        plain = self.check_result()
        if self.tokens > _FEW:
            return
        again = self.run("run again", self._call, self._arguments())
        self._compare("run again with the same inputs", again, plain, 0.0)
        if self.tokens:
            self._check_strides()
        if not self.op.mutates:
            self._check_it_stays()
        if self.tokens == self.op.sample_tokens(self.spec)[0]:
            self._check_next()
        if self._takes_out:
            self._check_out(plain)
        if isinstance(self.spec, LinearSpec) and self.tokens == 1:  # its kernel prepares the weights of other ops too
            self._check_prepared_again()
        if self.native and self.op.compose is not None and self.op.parts:
            parts = self.run("its parts", self.op.compose(self.spec, self._ops), self._arguments(), expected=False)
            self._compare("against its parts", plain, parts, self._tolerance)

    def run(self, how: str, call: HotCall, arguments: tuple[Any, ...], *, expected: bool = True, **out: Tensor) -> Any:
        """What the call returns, or the arguments that it mutates, on the host. expected: compare that with the
        reference. Raises ConformanceError."""
        given = mapped(arguments, lambda tensor: tensor if tensor.is_mkldnn else tensor.clone())
        try:
            result = call(*arguments, **out)
        except Exception as error:
            raise ConformanceError(self._line(how, described(error)), named(arguments=given)) from error
        self.target.device.synchronize()
        if self.op.mutates:
            result = tuple(tensors_of(arguments))
        else:
            kept = difference(tuple(tensors_of(on_host(arguments))), tuple(tensors_of(on_host(given))), 0.0)
            if kept is not None:
                raise ConformanceError(self._line(how, "it wrote to an input"), named(arguments=given, after=arguments))
        if out and result is not out["out"] and not (isinstance(result, tuple) and result[0] is out["out"]):
            raise ConformanceError(self._line(how, "the result is not the tensor given as out"), named(arguments=given))
        elsewhere = {str(tensor.device) for tensor in _flat(result) if not _lies_on(tensor, self.target.device.target)}
        if elsewhere:
            text = f"the result is on {', '.join(elsewhere)}, expected {self.target.device.target}"
            raise ConformanceError(self._line(how, text))
        found = on_host(result)
        if expected:
            self._compare(how, found, self._expected, self._tolerance, given)
        return mapped(found, torch.clone)

    def check_leaks(self) -> None:
        """A call must not keep what it makes."""
        arguments = self._arguments()
        kept = kept_per_call(lambda: self._call(*arguments))
        if kept:
            raise ConformanceError(self._line("", f"each call keeps {kept} tensors that it has made"))

    def _check_strides(self) -> None:
        strided = Strided(self._arguments(), self.tokens)
        if strided.any:
            self.run("inputs with a row stride", self._call, strided.arguments)
            if not strided.untouched:
                raise ConformanceError(self._line("inputs with a row stride", "it wrote outside the rows"))

    def _check_it_stays(self) -> None:
        """A result belongs to the caller: calling the same bound op elsewhere in the model must not change it."""
        first = self._call(*self._arguments())
        kept = mapped(on_host(first), torch.clone)
        self._call(*self._arguments(seed=self.tokens + 1))
        self.target.device.synchronize()
        self._compare("an earlier result, after the next call", on_host(first), kept, 0.0)

    def _check_next(self) -> None:
        """A call with as many other inputs must depend on nothing of the calls before it."""
        seed = self.tokens + 1
        found = self.run("other inputs", self._call, self._arguments(seed), expected=False)
        self._compare("other inputs of the same shapes", found, self._reference(seed), self._tolerance)

    def _check_out(self, plain: Any) -> None:
        first = plain[0] if isinstance(plain, tuple) else plain
        out = placed(torch.full_like(first, torch.nan), self.target.device.target)
        found = self.run("out= filled with NaN", self._call, self._arguments(), out=out)
        self._compare("out= filled with NaN, against the result without out=", found, plain, 0.0)

    def _check_prepared_again(self) -> None:
        """prepare(into=) must write a new weight to the addresses of an earlier one."""
        made = self._inputs(self.tokens + 1)
        made.arguments(self.op, self.spec)
        standing = [dict(packed) for packed in made.prepared]
        again = self._inputs(self.tokens, made.prepared)
        arguments = placed(again.arguments(self.op, self.spec), self.target.device.target)
        for before, after in zip(standing, again.prepared, strict=True):
            moved = [name for name, tensor in before.items() if not same_place(after.get(name), tensor)]
            if moved:
                text = f"prepare(into=) gives other tensors than those to overwrite: {', '.join(moved)}"
                raise ConformanceError(self._line("", text))
        self.run("a weight overwritten by prepare(into=)", self._call, arguments)

    @cached_property
    def _ops(self) -> BoundOps:
        return self.target.bound()

    @cached_property
    def _call(self) -> HotCall:
        try:
            return self._ops.bind(self.op.name, self.spec)
        except Exception as error:
            raise ConformanceError(self._line("bound", described(error))) from error

    @cached_property
    def _expected(self) -> Any:
        return self._reference(self.tokens)

    def _reference(self, seed: int) -> Any:
        """What the reference returns for the inputs of a seed."""
        arguments = OpInputs(self.tokens, seed, dtype=self.dtype).arguments(self.op, self.spec)
        result = reference_ops(self.target.reference).bind(self.op.name, self.spec)(*arguments)
        return tuple(tensors_of(arguments)) if self.op.mutates else result

    @property
    def _tolerance(self) -> float:
        return tolerance(self.op, self.dtype)

    @cached_property
    def _takes_out(self) -> bool:
        """Whether the hot call, as core defines it, has a keyword `out` for a float result."""
        defined = self.op.reference
        if self.op.compose is not None:
            defined = self.op.compose(self.spec, reference_ops(self.target.reference))
        assert defined is not None
        return "out" in inspect.signature(defined).parameters and _is_float(self._expected)

    def _arguments(self, seed: int | None = None) -> tuple[Any, ...]:
        """Made anew: some ops write into them."""
        made = self._inputs(self.tokens if seed is None else seed).arguments(self.op, self.spec)
        arguments: tuple[Any, ...] = placed(made, self.target.device.target)
        return arguments

    def _inputs(self, seed: int, into: Sequence[Packed] = ()) -> OpInputs:
        return OpInputs(self.tokens, seed, self._ops, self.dtype, into)

    def _compare(self, how: str, result: Any, expected: Any, tolerance: float, arguments: Any = ()) -> None:
        text = difference(result, expected, tolerance, emitted=hasattr(self.spec, "emitting") and tolerance > 0)
        if text is not None:
            tensors = named(arguments=arguments or self._arguments(), result=result, expected=expected)
            raise ConformanceError(self._line(how, text), tensors)

    def _line(self, how: str, text: str) -> str:
        which = f"{self.spec}, {self.dtype}, {self.tokens} tokens{f', {how}' if how else ''}"
        return f"{self.op.name} of {which}: {text}"


def same_place(result: Any, tensor: Tensor) -> bool:
    """Whether a tensor was written over, not replaced."""
    if result is tensor or not isinstance(result, Tensor):
        return result is tensor
    return not tensor.is_mkldnn and result.data_ptr() == tensor.data_ptr()


def _is_float(result: Any) -> bool:
    if isinstance(result, Quantized):
        return False
    first = result[0] if isinstance(result, tuple) else result
    return isinstance(first, Tensor) and first.is_floating_point()


# ---- arguments of a hot call


_AROUND = 5  # elements beside each row


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Nested arguments or results with each tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {name: mapped(part, change) for name, part in value.items()}
    if isinstance(value, tuple):
        parts = [mapped(part, change) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


def placed(value: Any, target: Any) -> Any:
    """Nested arguments or results on a device."""
    return mapped(value, lambda tensor: tensor if tensor.device == target else tensor.to(target))


def _flat(value: Any) -> list[Tensor]:
    """All tensors of a nested result."""
    if isinstance(value, Tensor):
        return [value]
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple) else ()
    return [tensor for part in parts for tensor in _flat(part)]


def _lies_on(tensor: Tensor, target: torch.device) -> bool:
    return tensor.device.type == target.type and target.index in (None, tensor.device.index)


def on_host(value: Any) -> Any:
    return placed(value, torch.device("cpu"))


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors that are arguments themselves, not parts of a weight."""
    return [part for part in value if isinstance(part, Tensor)]


class Strided:
    """arguments: each activation of these tokens is a view into a wider tensor, which has NaN beside the rows."""

    def __init__(self, arguments: tuple[Any, ...], tokens: int) -> None:
        self.tokens = tokens
        self._wider: list[Tensor] = []
        self.arguments = tuple(self._widened(part) for part in arguments)

    @property
    def any(self) -> bool:
        return bool(self._wider)

    @property
    def untouched(self) -> bool:
        """Whether nothing was written beside the rows."""
        return all(bool(part.isnan().all()) for wide in self._wider for part in self._beside(wide))

    def _widened(self, part: Any) -> Any:
        activation = isinstance(part, Tensor) and part.is_floating_point() and part.dim() > 1
        if not activation or len(part) != self.tokens:
            return part
        row = part[0].numel()
        wide = torch.full((self.tokens, row + 2 * _AROUND), torch.nan, dtype=part.dtype, device=part.device)
        self._wider.append(wide)
        view = wide[:, _AROUND : _AROUND + row].unflatten(1, part.shape[1:])
        return view.copy_(part)

    @staticmethod
    def _beside(wide: Tensor) -> tuple[Tensor, Tensor]:
        return wide[:, :_AROUND], wide[:, -_AROUND:]
