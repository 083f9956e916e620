"""One op at one place with so many tokens: as it is, once more, with strides, into a poisoned output, and against its
parts."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from tessera.platform.ops import BoundOps, HotCall, Op
from tessera.testing.compare import difference, tolerance
from tessera.testing.conformance.arguments import Strided, mapped, named, on_host, placed, tensors_of
from tessera.testing.conformance.case import ConformanceError, described
from tessera.testing.conformance.target import Target, reference_ops
from tessera.testing.op_inputs import OpInputs


@dataclass
class OpTrial:
    """native: the op is a kernel of the platform's, not its parts. tokens is the seed too."""

    target: Target
    op: Op[Any]
    spec: Any
    dtype: str
    tokens: int
    native: bool

    def check(self) -> None:
        """Raises ConformanceError."""
        plain = self.run("", self._call, self._arguments())
        again = self.run("run again", self._call, self._arguments())
        self._compare("run again, it is another", again, plain, 0.0)
        if self.tokens:
            self._check_strides()
        if not self.op.mutates:
            self._check_it_stays()
        if self._takes_out:
            self._check_out(plain)
        if self.native and self.op.compose is not None and self.op.parts:
            parts = self.run("its parts", self.op.compose(self.spec, self._ops), self._arguments(), expected=False)
            self._compare("not what its parts give", plain, parts, self._tolerance)

    def run(self, how: str, call: HotCall, arguments: tuple[Any, ...], *, expected: bool = True, **out: Tensor) -> Any:
        """What the call gives, or leaves in the arguments that it mutates, on the host; compared with the reference
        where it is expected to be that."""
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
                raise ConformanceError(self._line(how, "it changed an input"), named(arguments=given, after=arguments))
        if out and result is not out["out"] and not (isinstance(result, tuple) and result[0] is out["out"]):
            raise ConformanceError(self._line(how, "the result is not what was given as out"), named(arguments=given))
        found = on_host(result)
        if expected:
            self._compare(how, found, self._expected, self._tolerance, given)
        return mapped(found, torch.clone)

    def _check_strides(self) -> None:
        strided = Strided(self._arguments(), self.tokens)
        if strided.any:
            self.run("inputs with a row stride", self._call, strided.arguments)
            if not strided.untouched:
                raise ConformanceError(self._line("inputs with a row stride", "it wrote beside a row"))

    def _check_it_stays(self) -> None:
        """A result is the caller's: the same bound op, called elsewhere in the model, leaves it alone."""
        first = self._call(*self._arguments())
        kept = mapped(on_host(first), torch.clone)
        self._call(*self._arguments(seed=self.tokens + 1))
        self.target.device.synchronize()
        self._compare("after the next call, an earlier result is another", on_host(first), kept, 0.0)

    def _check_out(self, plain: Any) -> None:
        first = plain[0] if isinstance(plain, tuple) else plain
        out = placed(torch.full_like(first, torch.nan), self.target.device.target)
        found = self.run("out= filled with NaN", self._call, self._arguments(), out=out)
        self._compare("out= filled with NaN, it is another", found, plain, 0.0)

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
        arguments = OpInputs(self.tokens, self.tokens, dtype=self.dtype).of(self.op.name, self.spec)
        result = reference_ops().bind(self.op.name, self.spec)(*arguments)
        return tuple(tensors_of(arguments)) if self.op.mutates else result

    @property
    def _tolerance(self) -> float:
        return tolerance(self.op.name, self.dtype)

    @cached_property
    def _takes_out(self) -> bool:
        """The hot call as core defines it has a keyword `out`."""
        defined = self.op.reference
        if self.op.compose is not None:
            defined = self.op.compose(self.spec, reference_ops())
        assert defined is not None
        return "out" in inspect.signature(defined).parameters and _is_float(self._expected)

    def _arguments(self, seed: int | None = None) -> tuple[Any, ...]:
        """Made anew: some ops write into them."""
        seed = self.tokens if seed is None else seed
        made = OpInputs(self.tokens, seed, ops=self._ops, dtype=self.dtype).of(self.op.name, self.spec)
        arguments: tuple[Any, ...] = placed(made, self.target.device.target)
        return arguments

    def _compare(self, how: str, found: Any, expected: Any, tolerance: float, arguments: Any = ()) -> None:
        text = difference(found, expected, tolerance)
        if text is not None:
            tensors = named(arguments=arguments or self._arguments(), result=found, expected=expected)
            raise ConformanceError(self._line(how, text), tensors)

    def _line(self, how: str, text: str) -> str:
        which = f"{self.spec}, {self.dtype}, {self.tokens} tokens{f', {how}' if how else ''}"
        return f"{self.op.name} of {which}: {text}"


def _is_float(result: Any) -> bool:
    first = result[0] if isinstance(result, tuple) else result
    return isinstance(first, Tensor) and first.is_floating_point()
