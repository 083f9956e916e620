"""`tessera quantize --scheme gptq`: weights rounded by what the model computes from texts."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tessera.cli.program import run
from tessera.config.locate import demo_folder
from tessera.quantization.compressed_weights import CompressedForm, compressed, decoded
from tessera.quantization.gptq import calibrated, ordered
from tests.models.test_quantize import decoded as by_the_format


@pytest.mark.parametrize("zero_points", [False, True])
def test_results_are_nearer_than_by_rounding_alone(zero_points: bool) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(700, 160) @ torch.randn(160, 160) * 0.1
    inputs[:, 7] = 0  # one that no text uses
    weight, form = torch.randn(40, 160), CompressedForm("int", 4, 32, zero_points, activations=False)

    def wrong(parts: Any) -> float:
        back = by_the_format({f"w.{name}": tensor for name, tensor in parts.items()}, "w", 32)
        assert torch.equal(back, decoded(parts, form))
        return float((inputs @ (back - weight).T).square().mean())

    nearest, by_texts = compressed(weight, form), calibrated(weight, ordered(inputs.T @ inputs), form)
    assert {name: (part.dtype, part.shape) for name, part in nearest.items()} == {
        name: (part.dtype, part.shape) for name, part in by_texts.items()
    }
    assert wrong(by_texts) < 0.75 * wrong(nearest)


def test_inputs_that_are_unrelated_are_rounded_to_the_nearest() -> None:
    torch.manual_seed(1)
    weight, form = torch.randn(24, 96), CompressedForm("int", 4, 32, activations=False)
    by_texts = calibrated(weight, ordered(torch.eye(96)), form)
    assert all(torch.equal(by_texts[name], part) for name, part in compressed(weight, form).items())


def test_a_model_loses_less_than_by_rounding_alone(tmp_path: Any, capsys: Any) -> None:
    (tmp_path / "text").write_text("What is the capital of France? The capital of France is Paris. " * 300)
    loss = {}
    for scheme, flags in (
        ("int4", []),
        ("gptq", ["--calibration", str(tmp_path / "text"), "--calibration-windows", "4"]),
    ):
        command = ["quantize", str(demo_folder()), str(tmp_path / scheme), "--scheme", scheme, *flags]
        measured = ["--text", str(tmp_path / "text"), "--windows", "1", "--platform", "cpu"]
        assert run([*command, *measured]) == 0
        loss[scheme] = float(re.search(r"KL +(\S+) nats", capsys.readouterr().out)[1])  # type: ignore[index]
    assert loss["gptq"] < 0.6 * loss["int4"], loss
    first, second = (load_file(tmp_path / scheme / "model.safetensors") for scheme in ("int4", "gptq"))
    assert {name: (part.dtype, part.shape) for name, part in first.items()} == {
        name: (part.dtype, part.shape) for name, part in second.items()
    }


def test_what_does_not_fit_is_refused(tmp_path: Any, capsys: Any) -> None:
    (tmp_path / "short").write_text("a few words")
    text = str(tmp_path / "short")
    for flags, line in (
        (["--scheme", "int4", "--calibration", text], "--calibration is for --scheme gptq; int4 reads no text."),
        (["--scheme", "gptq", "--calibration", text], "the text holds fewer than 512 tokens; name another."),
        (["--scheme", "gptq", "--calibration", "nowhere"], "'nowhere' cannot be read: No such file or directory."),
    ):
        assert run(["quantize", str(demo_folder()), str(tmp_path / "out"), *flags, "--platform", "cpu"]) == 2
        assert line in capsys.readouterr().err
    assert [one.name for one in tmp_path.iterdir()] == ["short"]
