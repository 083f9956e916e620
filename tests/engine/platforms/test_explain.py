"""What an engine says of who does each part of its model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tessera.platform import Explained
from tests.platforms.engine_run import EngineRun
from tests.platforms.tiny_models import save_family
from tests.platforms.whole import PATH


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_family("qwen2", tmp_path_factory.mktemp("explain"))


def choices(model: Path, platform: str, **flags: object) -> list[Explained]:
    with EngineRun(model, platform, **flags) as run:
        return run.engine.info.choices


def of(choices: list[Explained], what: str) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    return {(one.chosen, one.others) for one in choices if one.what == what}


OTHERS = (
    "reference_encoder_attention",
    "reference_cross_attention",
    "reference_linear_attention",
    "reference_gated_delta_net",
    "reference_kimi_delta_attention",
    "reference_short_convolution",
    "reference_rg_lru",
    "reference_mlstm",
    "reference_token_shift",
    "reference_wkv",
    "reference_mamba2",
    "reference_mamba_convolution",
    "reference_selective_scan",
    "reference_lightning_attention",
)


def test_attention_by_kind_of_layer(windowed: Path) -> None:
    full, window = (one for one in choices(windowed, f"{PATH}:WithoutWindows") if one.what == "attention")
    behind = [(name, "comes after reference") for name in OTHERS]
    assert full.place == "layer 0: 6 heads over 2 of 12, float32"
    assert (full.chosen, full.others[0]) == ("short-sighted", ("reference", "comes after short-sighted"))
    assert window.place.startswith("layer 1: ")
    assert window.place.endswith("float32, window of 19")
    assert (window.chosen, window.others) == ("reference", (("short-sighted", "no window"), *behind))


def test_layers_that_are_alike_are_one_line(llama: Path) -> None:
    (attention,) = (one for one in choices(llama, "cpu") if one.what == "attention")
    assert attention.place.startswith("layers 0-1: ")
    assert attention.chosen == "sdpa"


def test_a_kernel_parts_and_the_reference_each_with_the_reason(llama: Path) -> None:
    found = choices(llama, "cpu")
    assert of(found, "linear") == {("kernel Linear", (("reference", "a kernel comes first"),))}
    assert of(found, "gated_mlp") == {("kernel GatedMLP", (("parts", "a kernel comes first"),))}
    assert of(found, "embedding") == {("kernel Embedding", (("reference", "a kernel comes first"),))}
    assert of(found, "norm_linear") == {("parts", (("kernel", "no kernel"),))}
    assert of(found, "add_norm") == {("parts", (("kernel", "no native kernel"),))}
    assert of(found, "penalise") == {("kernel Penalise", (("reference", "a kernel comes first"),))}
    places = [one.place for one in found if one.what == "linear"]
    assert len(places) == len(set(places)) > 1
    assert all(place.startswith("n=") and "dtype=float32" in place for place in places)


def test_a_kernel_over_the_reference_says_so(llama: Path) -> None:
    assert {chosen for chosen, _ in of(choices(llama, "strict"), "embedding")} == {
        "kernel PoisonedEmbedding over the reference of embedding"
    }


def test_quantization_of_weights_and_activations(llama: Path) -> None:
    weights = Explained(
        "quantization", "weights", "none", (("int8, int4, fp8", "--quantization does not ask for them"),)
    )
    plain, activations = (one for one in choices(llama, "cpu") if one.what == "quantization")
    assert plain == weights
    assert (activations.chosen, activations.others) == ("none", (("a format", "no kernel wants its input quantized"),))
    found = [one for one in choices(llama, "strict") if one.what == "quantization"]
    assert found[0] == weights
    assert {one.place.partition(",")[0] for one in found[1:]} == {"activations of add_norm"}
    assert {one.chosen for one in found[1:]} == {"dtype=float32, granularity=token"}


def test_a_runner_of_the_platform_s_own_need_not_say(llama: Path) -> None:
    assert choices(llama, "numpy") == []
