"""The library: how it is chosen, and its kernels at shapes and places where they change their ways."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tessera.platform import BoundOps, GateSpec, LoraSpec, PlatformError
from tessera.testing import REFERENCE, TOLERANCES, AttentionCase, AttentionTrial, OpInputs, assert_same
from tessera.testing.encoder_attention import EncoderCase, EncoderTrial
from tessera_cpu import native
from tessera_cpu.encoder import EncoderAttention
from tessera_cpu.environment import KERNELS
from tessera_cpu.paged import PagedAttention
from tessera_cpu.platform import CpuPlatform
from tessera_cpu.probe import probe
from tessera_cpu.products import NativeProducts, NativeTask, OneDnnProducts, products
from tests.platforms.cpu_kernels import available, kernels, needs_kernels

BUILD = Path(__file__).parents[1] / "csrc/build.py"
every_set = pytest.mark.parametrize("name", available())


def bound(op: str, spec: Any) -> Any:
    platform = CpuPlatform()
    return BoundOps(platform.ops(REFERENCE), platform.open(0)).bind(op, spec)


every_dtype = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def close(found: Tensor, expected: Tensor, k: int) -> bool:
    """Sums of k products of about 1."""
    most = 0.01 if found.dtype == torch.bfloat16 else 2e-6
    return bool(((found.double() - expected).abs() <= most * expected.abs() + most * k**0.5).all())


@needs_kernels
@every_set
@every_dtype
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 4, 5, 6, 11, 12, 13, 24, 25, 36, 385, 389, 396])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (31, 7), (32, 64), (33, 65), (97, 130)])
def test_products_of_all_heights(name: str, rows: int, n: int, k: int, dtype: torch.dtype) -> None:
    torch.manual_seed(rows + n)
    wide, weight, bias = (torch.randn(*shape).to(dtype) for shape in ((rows, k + 3), (n, k), (n,)))
    x, out = wide[:, :k], torch.full((rows, n + 5), torch.nan, dtype=dtype)
    with kernels(name):
        own = products(name_of(dtype))
        assert isinstance(own, NativeProducts)
        own.bind(n, k)(x, own.pack({"weight": weight}), bias, out=out[:, :n])
    assert close(out[:, :n], x.double() @ weight.double().T + bias.double(), k)
    assert out[:, n:].isnan().all()


@needs_kernels
@every_set
@every_dtype
@pytest.mark.parametrize("rows", [6, 389])
def test_products_in_blocks_have_the_sums_of_whole_ones(name: str, rows: int, dtype: torch.dtype) -> None:
    """Weights wider and taller than what caches keep. Whole numbers, whose sums are exact."""
    torch.manual_seed(rows)
    n, k = 611, 2345
    x, weight = (torch.randint(-3, 4, shape).to(dtype) for shape in ((rows, k), (n, k)))
    with kernels(name):
        own = products(name_of(dtype))
        out = own.bind(n, k)(x, own.pack({"weight": weight}))
    assert torch.equal(out, (x.double() @ weight.double().T).to(dtype))


@needs_kernels
@every_set
@every_dtype
@pytest.mark.parametrize("rows", [6, 389])
def test_gates_in_blocks_have_the_sums_of_whole_ones(name: str, rows: int, dtype: torch.dtype) -> None:
    """Gates so far above zero that they are their sums."""
    torch.manual_seed(rows)
    n, k = 320, 2345
    x, gate, up = torch.randint(1, 4, (rows, k)), torch.randint(1, 4, (n, k)), torch.randint(-3, 4, (n, k))
    with kernels(name):
        own = products(name_of(dtype))
        gated = own.bind_gated(n, k, 0)
        assert gated is not None
        out = gated(x.to(dtype), own.pack({"weight": torch.cat((gate, up)).to(dtype)}))
    expected = (x.double() @ gate.double().T) * (x.double() @ up.double().T)
    assert ((out.double() - expected).abs() <= 0.005 * expected.abs()).all()


@needs_kernels
@every_set
@every_dtype
@pytest.mark.parametrize("apart", [0, 32, 3])
def test_many_results_are_written_where_they_belong(name: str, apart: int, dtype: torch.dtype) -> None:
    """So many that a processor may write them past its caches; `apart` elements between rows."""
    torch.manual_seed(apart)
    rows, n, k = 390, 992, 40
    x, weight, other = (torch.randn(number, k).to(dtype) for number in (rows, n, n))
    bias, whole = torch.randn(n - 3).to(dtype), torch.full((2, rows, n + apart), 7.0, dtype=dtype)
    with kernels(name):
        own = products(name_of(dtype))
        own.bind(n - 3, k)(x, own.pack({"weight": weight[: n - 3]}), bias, out=whole[0, :, : n - 3])
        gated = own.bind_gated(n, k, 0)
        assert gated is not None
        gated(x, own.pack({"weight": torch.cat((weight, other))}), out=whole[1, :, :n])
    gate, up = x.double() @ weight.double().T, x.double() @ other.double().T
    assert close(whole[0, :, : n - 3], gate[:, : n - 3] + bias.double(), k)
    assert (whole[0, :, n - 3 :] == 7).all()
    of_both = k if dtype == torch.bfloat16 else k**2  # one sum's error is multiplied by the other sum
    assert close(whole[1, :, :n], torch.nn.functional.silu(gate) * up, of_both)
    assert (whole[1, :, n:] == 7).all()


IN_ANOTHER_PROCESS = """
import os, threading, torch
from tessera_cpu import native
from tessera_cpu.products import products
own, x = products("bfloat16"), torch.ones(9, 70).bfloat16()
packed = own.pack({"weight": torch.ones(333, 70).bfloat16()})
native.use_threads(native.library(), 2)
def right():
    return bool((own.bind(333, 70)(x, packed) == 70).all())
found = [right()]
thread = threading.Thread(target=lambda: found.append(right()))
thread.start()
thread.join()
child = os.fork()
if not child:
    os._exit(0 if right() else 1)
found.append(os.waitpid(child, 0)[1] == 0)
print(native.used(), found)
"""


@needs_kernels
@every_set
def test_threads_and_forked_processes_may_use_what_their_process_may(name: str) -> None:
    """Linux gives a process AMX's registers on request."""
    command, environment = [sys.executable, "-c", IN_ANOTHER_PROCESS], {**os.environ, KERNELS: name}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == f"{name} [True, True, True]\n", done.stderr


@needs_kernels
@every_set
@pytest.mark.parametrize(("activation", "function"), [(0, "silu"), (1, "gelu")])
@pytest.mark.parametrize(
    ("rows", "k", "n"),
    [(7, 9, 64), (21, 70, 64), (36, 40, 96), (389, 33, 64), (1, 96, 1088), (12, 33, 544)],
)
def test_gates_near_and_far_from_zero(name: str, activation: int, function: str, rows: int, k: int, n: int) -> None:
    torch.manual_seed(1)
    x, weight = (torch.randn(rows, k) * 20).bfloat16(), torch.randn(2 * n, k).bfloat16()
    out = torch.empty(rows, n, dtype=torch.bfloat16)
    with kernels(name):
        library = native.library()
        task = NativeTask(n=n, k=k, activation=activation)
        packed = NativeProducts(library).pack({"weight": weight})
        library.tessera_cpu_gate_up(native.BF16, task.fill(x, packed, out))
    gate, up = (x.double() @ weight.double().T).chunk(2, dim=-1)
    options = {"approximate": "tanh"} if function == "gelu" else {}
    expected = getattr(torch.nn.functional, function)(gate, **options) * up
    assert ((out.double() - expected).abs() <= 0.01 * expected.abs() + 1e-3).all()


@needs_kernels
@every_set
@pytest.mark.parametrize(("activation", "function"), [("silu", "silu"), ("gelu_tanh", "gelu")])
@pytest.mark.parametrize(("rows", "n"), [(1, 1), (3, 37), (70, 130)])
def test_gates_by_themselves(name: str, activation: str, function: str, rows: int, n: int) -> None:
    torch.manual_seed(n)
    wide, out = (torch.randn(rows, 2 * n + 3) * 20).bfloat16(), torch.full((rows, n + 2), 7.0).bfloat16()
    x = wide[:, : 2 * n]
    with kernels(name):
        bound("gate", GateSpec(n, "bfloat16", activation))(x, out=out[:, :n])
    options = {"approximate": "tanh"} if function == "gelu" else {}
    expected = getattr(torch.nn.functional, function)(x[:, :n].double(), **options) * x[:, n:].double()
    assert ((out[:, :n].double() - expected).abs() <= 0.01 * expected.abs() + 1e-3).all()
    assert (out[:, n:] == 7).all()


@needs_kernels
@every_set
@pytest.mark.parametrize("rows", [1, 3, 4, 9, 67])
@pytest.mark.parametrize(("layers", "k", "rank"), [((5,), 7, 1), ((70, 33, 33), 40, 5), ((128, 96), 97, 16)])
def test_adapters_of_neighbours_and_of_none(name: str, rows: int, layers: tuple[int, ...], k: int, rank: int) -> None:
    """Rows come in runs of one adapter, whose length goes up to 5."""
    spec = LoraSpec(layers, k, rank, 3, "bfloat16")
    y, x, a, b, scales, slots = OpInputs(rows, seed=rows).arguments("lora", spec)
    slots.copy_(torch.arange(-1, 3).repeat_interleave(torch.arange(2, 6))[:rows] if rows < 14 else slots.sort()[0])
    wide = torch.full((rows, sum(layers) + 3), 7.0).bfloat16()
    wide[:, : sum(layers)] = y
    expected = [tensor.double() for tensor in (y, x, a, b)]
    reference = REFERENCE["lora"].reference
    assert reference is not None
    reference(spec, *expected, scales.double(), slots)
    with kernels(name):
        bound("lora", spec)(wide[:, : sum(layers)], x, a, b, scales, slots)
    assert_same(wide[:, : sum(layers)].double(), expected[0], 0.01)
    assert torch.equal(wide[slots < 0, : sum(layers)], y[slots < 0])
    assert (wide[:, sum(layers) :] == 7).all()


@needs_kernels
@every_set
def test_a_number_that_is_none_stays_none(name: str) -> None:
    x = torch.ones(2, 40, dtype=torch.bfloat16)
    x[1, 3] = torch.nan
    with kernels(name):
        own = products("bfloat16")
        found = own.bind(5, 40)(x, own.pack({"weight": torch.ones(5, 40, dtype=torch.bfloat16)}))
    assert (found[0] == 40).all()
    assert found[1].isnan().all()


@needs_kernels
@every_set
@pytest.mark.parametrize("group", [32, 128])
@pytest.mark.parametrize(("rows", "n", "k"), [(1, 1, 3), (5, 33, 64), (13, 70, 97), (24, 96, 896)])
def test_groups_of_rows_are_quantised_by_their_largest(name: str, group: int, rows: int, n: int, k: int) -> None:
    torch.manual_seed(k)
    wide = torch.randn(rows, k + 2).bfloat16() * torch.logspace(-3, 3, k + 2)
    x, part = wide.bfloat16()[:, :k], 16
    stride, groups, parts = k + 5, -(-k // group), -(-k // part)
    to, scale = torch.full((rows, stride), 99, dtype=torch.int8), torch.empty(rows, groups)
    sums = torch.empty(rows, parts, dtype=torch.int32)
    x[0, k - 1] = torch.inf
    into = native.Int8Rows(to.data_ptr(), stride, scale.data_ptr(), sums.data_ptr(), group, part)
    with kernels(name):
        native.library().tessera_cpu_quantise(x.data_ptr(), x.stride(0), into, rows, k)
    most = padded(x.float().abs(), group).amax(-1)
    assert scale[0, -1].isnan()
    assert not to[0, (groups - 1) * group :].any()
    scale[0, -1] = most[0, -1] = x[0, (groups - 1) * group :] = 0
    assert torch.allclose(scale, most / 127)
    each = scale.repeat_interleave(group, dim=1)[:, :k]
    assert ((to[:, :k] * each - x.float()).abs() <= each * 0.5001).all()
    assert (to[:, k:] == 0).all()
    assert torch.equal(padded(to[:, :k].int(), part).sum(-1).int(), sums)


def padded(x: Tensor, group: int) -> Tensor:
    """[rows, k] -> [rows, groups, group], with zeros past the end."""
    return torch.nn.functional.pad(x, (0, -x.shape[-1] % group)).unflatten(-1, (-1, group))


@needs_kernels
@every_set
@pytest.mark.parametrize(
    ("kind", "group", "of_rows"),
    [
        ("int8", 0, 32),
        ("int8", 0, 64),
        ("int8", 0, 128),
        ("int4", 8, 32),
        ("int4", 24, 32),
        ("int4", 32, 32),
        ("int4", 96, 64),
    ],
)
@pytest.mark.parametrize(("rows", "n", "k"), [(1, 1, 96), (5, 33, 96), (13, 70, 192), (24, 96, 1248)])
def test_products_of_whole_numbers_are_exact_up_to_their_rounding(
    name: str, kind: str, group: int, of_rows: int, rows: int, n: int, k: int
) -> None:
    """Against the same whole numbers in float64; the ends of their ranges too."""
    torch.manual_seed(n + group)
    low, high = (-128, 127) if kind == "int8" else (-8, 7)
    k -= 3 * (kind == "int8")  # of int4 k is a multiple of its group
    weight = torch.randint(low, high + 1, (n, k), dtype=torch.int8)
    weight[0, :2] = torch.tensor([low, high])
    wide, panels = -(-k // 32) * 32, -(-n // 32)
    x = torch.zeros(rows, wide, dtype=torch.int8)
    x[:, :k] = torch.randint(-127, 128, (rows, k))
    unit, group = math.gcd(group, of_rows) or of_rows, group or k
    part = math.gcd(unit, 16)
    sums = padded(x[:, :k].int(), part).sum(-1).int().contiguous()
    x_scale, groups = torch.rand(rows, -(-k // of_rows)) + 0.5, k // group
    scale = torch.zeros(panels * 32, groups)
    scale[:n] = (torch.rand(n, groups) + 0.5).bfloat16().float()
    stored, elements = scale[:, 0].contiguous(), weight
    codes, before, scaling, offset = native.BYTES, native.WITH_SIGN, native.BY_ROW, 128
    if kind == "int4":
        stored = scale.view(panels, 32, groups).transpose(1, 2).contiguous().bfloat16()
        elements = (weight[:, 0::2] + 8) | (weight[:, 1::2] + 8) << 4
        codes, before, scaling, offset = native.FOURS, native.PAIRS, native.BF16_SCALES, 8
    packed = torch.empty(panels * 32 * wide // (2 if kind == "int4" else 1), dtype=torch.uint8)
    bias, out = torch.randn(n).bfloat16(), torch.full((rows, n), torch.nan, dtype=torch.bfloat16)
    with kernels(name):
        library = native.library()
        library.tessera_cpu_pack_codes(
            codes, before, elements.data_ptr(), elements.stride(0), packed.data_ptr(), n, k
        )  # fmt: skip
        task = NativeTask(
            n=n, k=k, coding=native.Coding(codes, scaling, stored.data_ptr(), group, offset), bias=bias.data_ptr(),
            unit=unit, x_group=of_rows, x_part=part, x_scale=x_scale.data_ptr(), x_sum=sums.data_ptr(),
        )  # fmt: skip
        library.tessera_cpu_linear(native.CODED, task.fill(x, packed, out))
    meant = weight.double() * scale[:n].double().repeat_interleave(group, dim=1)
    of_x = x[:, :k].double() * x_scale.double().repeat_interleave(of_rows, dim=1)[:, :k]
    expected = of_x @ meant.T + bias.double()
    assert ((out.double() - expected).abs() <= 0.005 * expected.abs() + 1e-3 * k**0.5).all()


@needs_kernels
def test_threads_change_nothing() -> None:
    torch.manual_seed(2)
    own = products("bfloat16")
    x, packed = torch.randn(9, 70).bfloat16(), own.pack({"weight": torch.randn(333, 70).bfloat16()})
    one = own.bind(333, 70)(x, packed)
    try:
        native.use_threads(native.library(), 3)
        for _ in range(200):
            assert torch.equal(own.bind(333, 70)(x, packed), one)
    finally:
        native.use_threads(native.library(), 1)


@needs_kernels
@every_set
@pytest.mark.parametrize("kept", ["", "int8"])
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (700, 30.0)])
def test_the_keys_of_long_rows_are_shared_among_threads(
    name: str, window: int | None, softcap: float | None, kept: str
) -> None:
    rows = ((1, 3001), (1, 40), (5, 1500))
    case = AttentionCase(rows, 16, 14, 2, 80, window=window, softcap=softcap, dtype="bfloat16", kv_dtype=kept)
    with kernels(name):
        library = native.library()
        try:
            native.use_threads(library, 3)
            trial = AttentionTrial(PagedAttention(library), case)
            found = trial.run()
        finally:
            native.use_threads(library, 1)
    for mine, expected in zip(found, trial.expected(), strict=True):
        assert_same(mine, expected.to(mine.dtype), TOLERANCES["bfloat16"])


@needs_kernels
@every_set
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
@pytest.mark.parametrize("kept", ["", "int8"])
def test_a_value_that_is_none_is_none_for_its_row_and_head_alone(name: str, kept: str, number: float) -> None:
    case = AttentionCase(((1, 40), (1, 200)), 16, 4, 2, 32, dtype="bfloat16", kv_dtype=kept)
    with kernels(name):
        trial = AttentionTrial(PagedAttention(native.library()), case)
        trial.values[1][150, 1, 31] = number
        found = trial.run()
    lost = [row.isfinite().logical_not()[0].any(-1).tolist() for row in found]  # by head of queries
    assert lost == [[False] * 4, [False, False, True, True]]


@needs_kernels
@every_set
def test_queries_and_weights_lose_nothing_over_int8(name: str) -> None:
    """Over keys and values that int8 has exactly: as near as bfloat16 rounds the result."""
    case = AttentionCase(((1, 700), (9, 300)), 16, 4, 2, 256, dtype="bfloat16", kv_dtype="int8")
    with kernels(name):
        trial = AttentionTrial(PagedAttention(native.library()), case)
        for kept in (*trial.keys, *trial.values):
            kept.copy_(torch.randint(-127, 128, kept.shape) / 64)
            kept[..., 0] = 127 / 64
        found = trial.run()
    for mine, expected in zip(found, trial.expected(), strict=True):
        assert ((mine.double() - expected).abs() <= 0.005 * expected.abs() + 1e-3).all()


@needs_kernels
@every_set
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("dim", [16, 48, 80, 112, 256])
@pytest.mark.parametrize("different", [{}, {"window": 70, "reach": 40}, {"turned": True, "normed": True}], ids=str)
def test_whole_texts_of_all_sizes(name: str, dim: int, dtype: str, different: dict[str, Any]) -> None:
    """Texts longer than a stretch of keys and than a share of queries, with fewer heads of keys."""
    case = EncoderCase((1, 15, 16, 33, 300), 6, 2, dim, padding=2, dtype=dtype, **different)
    with kernels(name):
        trial = EncoderTrial(EncoderAttention(native.library()), case)
        found = trial.run()
    for mine, expected in zip(found, trial.expected(), strict=True):
        assert_same(mine, expected.to(mine.dtype), TOLERANCES[dtype])


@needs_kernels
@every_set
@pytest.mark.parametrize("window", [None, 30])
def test_a_text_has_the_same_bits_beside_others_and_on_more_threads(name: str, window: int | None) -> None:
    lengths = 290, 17, 130
    with kernels(name):
        library = native.library()
        backend = EncoderAttention(library)
        together = EncoderTrial(backend, EncoderCase(lengths, 6, 2, 32, window=window, dtype="bfloat16"))
        found = together.run()
        try:
            native.use_threads(library, 3)
            again = together.run()
        finally:
            native.use_threads(library, 1)
        for text, own, same in zip(together.texts, found, again, strict=True):
            alone = EncoderTrial(backend, EncoderCase((len(text),), 6, 2, 32, window=window, dtype="bfloat16"))
            alone.texts = [text]
            assert torch.equal(alone.run()[0], own)
            assert torch.equal(same, own)


@needs_kernels
def test_an_instruction_set_that_is_not_here_is_refused() -> None:
    with pytest.raises(PlatformError, match=r"names sse9; this processor has portable.*or torch\."), kernels("sse9"):
        native.library()


def test_without_the_library_torch_multiplies_and_the_probe_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "FILE", Path("absent"))
    native.library.cache_clear()
    try:
        assert isinstance(products("bfloat16"), OneDnnProducts)
        assert (
            "torch's kernels alone, which are slower: tessera-cpu was installed without a C++ compiler"
            in probe().reason
        )
        monkeypatch.setenv(KERNELS, "avx2")
        native.library.cache_clear()
        with pytest.raises(PlatformError, match="names avx2, but tessera-cpu was installed without native kernels"):
            native.library()
    finally:
        monkeypatch.undo()
        native.library.cache_clear()


@needs_kernels
def test_the_probe_names_the_instruction_set() -> None:
    assert f"native kernels ({available()[0]})" in probe().reason


def test_without_a_compiler_the_build_says_so_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, str(BUILD), str(tmp_path / "none.so")]
    done = subprocess.run(
        command, env={"PATH": "", "CXX": "no-such-compiler"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "The native kernels were not built: no C++ compiler (no-such-compiler) was found.\n"
    assert not list(tmp_path.iterdir())
