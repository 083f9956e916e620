"""What the package passes to torch_npu's ops, against the schemas of the published wheel, which `python -m
tools.provider_apis ops` read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tessera_ascend import attention, linear, ops

SAID = json.loads(Path(__file__).with_name("torch_npu.json").read_text(encoding="utf-8"))["ops"]["libtorch_npu"]
SCHEMAS = {schema.name: schema for schema in map(torch._C.parse_schema, SAID)}
CALLS = {
    attention.ATTENTION: attention.ATTENTION_TAKES,
    attention.WRITE: attention.WRITE_TAKES,
    ops.NORM: ops.NORM_TAKES,
    ops.GEMMA_NORM: ops.NORM_TAKES,
    ops.ADD_NORM: ops.ADD_NORM_TAKES,
    ops.ROTATE: ops.ROTATE_TAKES,
    ops.GATE: ops.GATE_TAKES,
    ops.ROUTE_ROWS: ops.ROUTE_ROWS_TAKES,
    ops.PRODUCTS: ops.PRODUCTS_TAKES,
    ops.ROWS_BACK: ops.ROWS_BACK_TAKES,
    linear.CAST: linear.CAST_TAKES,
    linear.QUANTIZE: linear.QUANTIZE_TAKES,
    linear.PRODUCT: linear.PRODUCT_TAKES,
}


def test_the_record_has_the_ops_that_are_called_and_no_others():
    assert {name.removeprefix("npu::") for name in CALLS} == set(SCHEMAS)


@pytest.mark.parametrize("name", CALLS)
def test_each_op_takes_what_is_passed_and_needs_nothing_else(name):
    arguments = SCHEMAS[name.removeprefix("npu::")].arguments
    assert set(CALLS[name]) <= {argument.name for argument in arguments}
    assert {argument.name for argument in arguments if not argument.has_default_value()} <= set(CALLS[name])


def test_the_write_into_the_cache_is_the_only_op_that_changes_its_arguments():
    written = {
        (schema.name, argument.name)
        for schema in SCHEMAS.values()
        for argument in schema.arguments
        if argument.alias_info and argument.alias_info.is_write
    }
    assert written == {("npu_scatter_pa_kv_cache", "key_cache"), ("npu_scatter_pa_kv_cache", "value_cache")}
