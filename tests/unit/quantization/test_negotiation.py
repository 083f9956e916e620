"""Who gets which scheme: what is asked for, what the platform says, what fits the shard."""

from __future__ import annotations

import dataclasses

import pytest

from tessera.errors import PlatformError
from tessera.platform import BoundOps, Kernel, LinearSpec, replace
from tessera.quantization import AsTheyAre, candidates, weights_of
from tessera.testing import REFERENCE, ReferencePlatform


class Taking(Kernel):
    """Takes schemes without quantised activations alone."""

    def supports(self, spec):
        return None if spec.scheme is not None and spec.scheme.activation is None else "only its own scheme"

    def bind(self, spec, ops, device):
        raise AssertionError("not bound here")


class Answering(ReferencePlatform):
    """answer: of a scheme, in place of yes."""

    def __init__(self, answer):
        self.answer = answer

    def scheme(self, scheme):
        return self.answer(scheme)


def chosen(name, spec, answer, kernel=None):
    platform = Answering(answer)
    table = REFERENCE if kernel is None else replace(REFERENCE, linear=kernel)
    weights = weights_of(name, platform)
    return (*weights.choose(spec, "a.b", BoundOps(table, platform.open(0))), weights)


def weight_only(scheme):
    return dataclasses.replace(scheme, activation=None)


@pytest.mark.parametrize(("k", "group"), [(64, 64), (192, 64), (96, 32), (48, 16), (72, 8)])
def test_the_largest_group_that_divides_the_inputs(k, group):
    spec, stored, weights = chosen("int4", LinearSpec(5, k, "float32"), lambda scheme: scheme)
    assert stored is not None
    assert stored.weight.group == group
    assert spec == LinearSpec(5, k, "float32", stored)
    assert (weights.left, weights.quantised.total()) == ([], 1)


def test_a_weight_that_no_group_divides_stays_and_says_why():
    asked = LinearSpec(5, 20, "float32")
    spec, stored, weights = chosen("int4", asked, lambda scheme: scheme)
    assert (spec, stored) == (asked, None)
    (left,) = weights.left
    assert (left.name, left.reason, left.wanted) == (
        "a.b",
        "input size 20 is not divisible by any of 64, 32, 16, 8",
        True,
    )
    assert chosen("int8", asked, lambda scheme: scheme)[1] is not None


def test_a_platform_that_takes_no_such_scheme_is_one_line():
    with pytest.raises(PlatformError) as raised:
        weights_of("int4", Answering(lambda scheme: "four bits are too few"))
    assert raised.value.message == (
        "platform 'reference' does not take --quantization int4 (four bits are too few); remove the flag."
    )
    assert isinstance(weights_of(None, Answering(lambda scheme: "nothing")), AsTheyAre)


def test_a_platform_may_refuse_some_groups():
    asked = LinearSpec(5, 64, "float32")
    small = chosen("int4", asked, lambda scheme: scheme if scheme.weight.group == 64 else "groups of 64 alone")
    assert small[1].weight.group == 64
    spec, stored, weights = chosen(
        "int4",
        LinearSpec(5, 32, "float32"),
        lambda scheme: scheme if scheme.weight.group == 64 else "groups of 64 alone",
    )
    assert (spec.scheme, stored, weights.left[0].reason) == (None, None, "groups of 64 alone")


def test_a_transformed_scheme_is_for_the_kernel_that_takes_it():
    asked, offered = LinearSpec(5, 64, "float32"), candidates("int8", 64)[0]
    spec, stored, _ = chosen("int8", asked, weight_only, Taking())
    assert spec.scheme == weight_only(offered)
    assert stored == offered
    spec, stored, _ = chosen("int8", asked, weight_only)  # the reference has what was offered
    assert (spec.scheme, stored) == (offered, offered)


def test_a_shard_too_small_for_the_kernel_is_the_reference_s():
    def in_panels(scheme):
        return dataclasses.replace(scheme, activation=None, granules=(32, 16))

    for n, k, native in ((64, 48, True), (48, 48, False), (64, 40, False)):
        spec, stored, _ = chosen("int8", LinearSpec(n, k, "float32"), in_panels, Taking())
        assert (spec.scheme != stored) is native
