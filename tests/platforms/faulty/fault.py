"""What is known of a planted mistake, and the decorators that plant one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tessera.platform import AttentionBackend, Communicator, HeadsLayer, OpSet, WorkerSpec, replace
from tessera.runner import collectives
from tests.platforms.faulty.making import Base, Plant, with_layer
from tests.platforms.faulty.plain import Change, Own

Kind = Literal["", "sizes", "values", "ways", "closeness", "places"]
KINDS: Mapping[Kind, str] = {
    "sizes": "a size at which kernels change their path",
    "values": "numbers that are large, small or equal",
    "ways": "a way through the contract that a simple model never takes",
    "closeness": "log probabilities that are off although tokens are the same",
    "places": "what would be noticed elsewhere first",
}
"""Kinds of mistakes that are planted into the plain platform, and what it takes to notice them."""


@dataclass(frozen=True)
class Fault:
    """subject: the op or the part of the contract at fault. kinds: of cases that are tried, the first part of their
    ids; the first of them must name it. also: subjects whose cases may fail with it. only: the one place where it can
    be; "": wherever there is a part of its own. kind, what: of the mistakes that `kind()` plants."""

    subject: str
    kinds: tuple[str, ...] = ("op", "fused")
    also: tuple[str, ...] = ()
    devices: int = 1
    only: str = ""
    kind: Kind = ""
    what: str = ""

    @property
    def places(self) -> tuple[str, ...]:
        """Where it is planted: strict, and fakechip if that has a part of its own where the mistake is."""
        if self.only:
            return (self.only,)
        return ("strict", "fakechip") if self.subject in _OF_FAKECHIP else ("strict",)


_OF_FAKECHIP = frozenset({
    "attention", "fused attention", "cache layout", "block copy", "shapes: padding", "shapes: keys", "graph capture",
    "linear", "rms_norm", "all_reduce", "all_gather", "memory",
})  # fmt: skip


@dataclass
class Kinds:
    """Collects the mistakes of one kind from decorated functions and classes, whose docstrings say what is wrong."""

    kind: Kind
    faults: dict[str, Fault] = dataclasses.field(default_factory=dict)

    def note(self, made: Any, subject: str, kinds: tuple[str, ...], only: str = "plain", devices: int = 1) -> None:
        assert made.__doc__, made.__name__
        what = " ".join(made.__doc__.split()).rstrip(".")
        self.faults[made.__name__] = Fault(subject, kinds, (), devices, only, self.kind, what)

    def op(self, *names: str) -> Callable[[Change], Plant]:
        """A kernel that computes something else: (right call, spec, *tensors, out=None). names: the op, and those
        that have the same mistake."""

        def decorate(change: Change) -> Plant:
            self.note(change, names[0], ("op", "fused", "model"))

            def plant(base: Base) -> Base:
                class Faulty(base):
                    def ops(self, reference: OpSet) -> OpSet:
                        own = super().ops(reference)
                        return replace(own, **{name: Own(reference[name], change) for name in names})

                return Faulty

            return plant

        return decorate

    def layer(self, made: type[HeadsLayer]) -> Plant:
        """A layer of attention, which stands before the platform's own."""
        self.note(made, "attention", ("attention", "fused", "cache", "model"))
        return with_layer(made)

    def model(self, subject: str, case: str) -> Callable[[type[AttentionBackend]], Plant]:
        """A backend of attention that is wrong where an engine runs, and in no trial. case: its kind."""

        def decorate(made: type[AttentionBackend]) -> Plant:
            self.note(made, subject, ("op", "attention", "model", case))

            def plant(base: Base) -> Base:
                class Faulty(base):
                    def attention_backends(self) -> list[AttentionBackend]:
                        own, *others = super().attention_backends()
                        return [type(made.__name__, (made, type(own)), {})(), *others]

                return Faulty

            return plant

        return decorate

    def group(self, *subjects: str, devices: int = 2) -> Callable[[type[Communicator]], Plant]:
        """A communicator around the right one."""

        def decorate(made: type[Communicator]) -> Plant:
            self.note(made, subjects[0], ("collectives", "tensor-parallel"), devices=devices)

            def plant(base: Base) -> Base:
                class Faulty(base):
                    def communicator(self, spec: WorkerSpec, device: Any, rendezvous: str) -> Communicator:
                        return made(collectives.join(base(), spec, rendezvous, device))

                return Faulty

            return plant

        return decorate

    def platform(
        self, subject: str, *kinds: str, only: str = "plain", devices: int = 1
    ) -> Callable[[Callable[[Base], Base]], Plant]:
        """A change of the platform's class."""

        def decorate(made: Callable[[Base], Base]) -> Plant:
            self.note(made, subject, kinds, only, devices)
            return made

        return decorate
