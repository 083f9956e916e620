"""What a platform's author tests with: reference ops and attention, inputs for them, quantization schemes and quantized
weights, the reference platform and the strict one."""

from __future__ import annotations

from tessera.ops import REFERENCE
from tessera.quantization.encodings import encoded_scheme
from tessera.quantization.rounding import quantised
from tessera.quantization.schemes import candidates
from tessera.reference.attention import ReferenceAttention
from tessera.testing.attention import AttentionCase, AttentionTrial, attention_cases
from tessera.testing.compare import TOLERANCES, assert_same, difference, tolerance
from tessera.testing.host_reads import HostReads
from tessera.testing.op_inputs import OpInputs
from tessera.testing.random_parts import random_blocks
from tessera.testing.reference import ReferencePlatform
from tessera.testing.strict import SeparateStrictPlatform, StrictPlatform

__all__ = [
    "REFERENCE",
    "TOLERANCES",
    "AttentionCase",
    "AttentionTrial",
    "HostReads",
    "OpInputs",
    "ReferenceAttention",
    "ReferencePlatform",
    "SeparateStrictPlatform",
    "StrictPlatform",
    "assert_same",
    "attention_cases",
    "candidates",
    "difference",
    "encoded_scheme",
    "quantised",
    "random_blocks",
    "tolerance",
]
