"""What a platform of compiled programs brings without a line of its own."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tessera.platform import CompiledPlatform, Default, Device, ModelFacts, PlatformError, SdpaAttention, WorkerSpec

FACTS = cast("ModelFacts", None)
ALONE = WorkerSpec(rank=0, world_size=1, devices=(0,))


class Chip(CompiledPlatform):
    name = "chip"
    torch = SimpleNamespace(__version__="2.13")
    package = "torch_chip"
    install = "install the torch_chip of torch {torch}"

    def open(self, index: int) -> Device:
        raise AssertionError("no test opens it")


def config(max_model_len: int = 4096, block_size: int | None = None, **scheduler: int) -> Any:
    defaults = {"max_num_seqs": 32, "max_num_batched_tokens": 2048, "max_decode_tokens": 1}
    return SimpleNamespace(
        cache=SimpleNamespace(block_size=block_size),
        model=SimpleNamespace(max_model_len=max_model_len),
        scheduler=SimpleNamespace(**defaults | scheduler),
    )


@pytest.mark.parametrize(
    ("made", "rows", "tokens", "blocks"),
    [
        (config(block_size=128), 6, [128, 256, 512, 1024, 2048], [4, 8, 16, 32]),
        (config(), 6, [128, 256, 512, 1024, 2048], [4, 8, 16, 32, 64, 128, 256]),
        (config(block_size=128, max_num_batched_tokens=8192), 6, [128, 256, 512, 1024, 2048], [4, 8, 16, 32]),
        (config(block_size=128, max_num_batched_tokens=300), 6, [128, 256, 512], [4, 8, 16, 32]),
        (config(20, 128, max_num_seqs=5, max_num_batched_tokens=32), 4, [128], [1]),
    ],
)
def test_shapes_are_buckets_that_double(made: Any, rows: int, tokens: list[int], blocks: list[int]) -> None:
    shapes: Any = Chip().shapes(FACTS, made)
    assert (len(shapes.decode_rows), list(shapes.prompt_tokens), list(shapes.blocks)) == (rows, tokens, blocks)
    assert len(shapes.keys()) == (rows + len(tokens)) * len(blocks)
    assert max(shapes.decode_rows) == made.scheduler.max_num_seqs


def test_a_step_has_prompts_or_answers_and_no_longer_piece_than_the_longest_launch() -> None:
    rules = Chip().shapes(FACTS, config()).rules()
    assert (rules.mix_prefill_decode, rules.max_tokens_per_request) == (False, 2048)


def test_sizes_are_attributes() -> None:
    class Small(Chip):
        block_sizes = (64,)
        prompt_tokens = (64, 128)
        fewest_blocks = 2

    shapes: Any = Small().shapes(FACTS, config(256))
    assert (list(shapes.prompt_tokens), list(shapes.blocks)) == ([64, 128], [2, 4])
    assert shapes.rules().max_tokens_per_request == 128
    default = Small().defaults(FACTS)["cache.block_size"]
    assert default == Default(64, "fewer columns of block tables, so fewer shapes to compile")
    (backend,) = Small().attention_backends()
    assert isinstance(backend, SdpaAttention)
    assert backend.blocks == (64,)


def test_a_missing_package_is_told_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_chip", cast("Any", None))
    with pytest.raises(PlatformError) as error:
        Chip().enter_process(ALONE)
    begin, _, end = str(error.value).partition(" (")
    assert begin == "platform 'chip' needs torch_chip"
    assert end.endswith("); install the torch_chip of torch 2.13.")
    monkeypatch.setitem(sys.modules, "torch_chip", cast("Any", SimpleNamespace()))
    Chip().enter_process(ALONE)
