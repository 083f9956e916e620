"""`tessera quantize`: what it writes is what the formats mean, and is read again as it was meant."""

from __future__ import annotations

import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file

from tessera.cli.program import run
from tessera.config.locate import demo_folder
from tessera.quantization.compressed_weights import CompressedForm, compressed

SCHEMES = {
    "int8": ["--scheme", "int8"],
    "fp8": ["--scheme", "fp8"],
    "int4": ["--scheme", "int4"],
    "int4-zero-points": ["--scheme", "int4", "--zero-points", "--group-size", "32"],
}
KL = {"int8": 0.02, "fp8": 0.05, "int4": 0.5, "int4-zero-points": 0.3}
"""Nats per token, at most. A file that is read otherwise than it was written loses several nats."""


def decoded(tensors, name, group):
    """A weight of the file in float32, from the bits of the format."""
    scale = tensors[f"{name}.weight_scale"].float()
    if not group:
        return tensors[f"{name}.weight"].float() * scale
    rows, columns = tensors[f"{name}.weight_shape"].tolist()
    codes = nibbles(tensors[f"{name}.weight_packed"])[:, :columns]
    zero = tensors.get(f"{name}.weight_zero_point")
    zero = torch.zeros_like(scale) if zero is None else nibbles(zero.T).T[:rows]
    return ((codes.unflatten(1, (-1, group)) - zero[..., None]) * scale[..., None]).flatten(1)


def nibbles(words):
    """int32 [n, m] -> [n, 8 m], the lowest bits first, less 8."""
    raw = words.contiguous().view(torch.uint8)
    return torch.stack((raw & 15, raw >> 4), -1).flatten(1).float() - 8


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_folder_is_written_and_read(tmp_path, capsys, scheme):
    out = tmp_path / "within" / "out"
    assert run(["quantize", str(demo_folder()), str(out), *SCHEMES[scheme], "--windows", "2", "--platform", "cpu"]) == 0
    said = capsys.readouterr().out
    assert float(re.search(r"KL +(\S+) nats", said)[1]) <= KL[scheme]
    assert 0 <= float(re.search(r"same choice +(\S+)%", said)[1]) <= 100
    assert [one.name for one in out.parent.iterdir()] == ["out"]
    source, tensors = load_file(demo_folder() / "model.safetensors"), load_file(out / "model.safetensors")
    settings = json.loads((out / "config.json").read_text())["quantization_config"]
    weights = settings["config_groups"]["group_0"]["weights"]
    group = weights["group_size"] or 0
    linear = [name.removesuffix(".weight") for name in source if "_proj" in name]
    assert linear
    for name, weight in source.items():
        module = name.removesuffix(".weight")
        if module not in linear:
            assert torch.equal(tensors[name], weight)
            continue
        wide = weight.float()
        wrong = (decoded(tensors, module, group) - wide).norm() / wide.norm()
        assert wrong < {8: 0.03, 4: 0.13}[weights["num_bits"]], name
    assert set(settings["ignore"]).isdisjoint(linear)
    assert "lm_head" in settings["ignore"]  # a Linear layer of transformers, also where it is tied
    for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (out / file).read_bytes() == (demo_folder() / file).read_bytes()


def test_the_loss_is_that_of_the_users_text(tmp_path, capsys):
    (tmp_path / "text").write_text("What is the capital of France? The capital of France is Paris. " * 40)
    command = [
        "quantize",
        str(demo_folder()),
        str(tmp_path / "out"),
        "--text",
        str(tmp_path / "text"),
        "--windows",
        "1",
    ]
    assert run([*command, "--platform", "cpu"]) == 0
    assert re.search(r"perplexity .* -> .* on \d+ tokens", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("flags", "code", "line"),
    [
        (["--scheme", "int8", "--group-size", "32"], 2, "--group-size is for --scheme int4; int8 has a scale per row."),
        (["--scheme", "fp8", "--zero-points"], 2, "--zero-points is for --scheme int4; fp8 has a scale per row."),
        (["--scheme", "int4", "--group-size", "12"], 2, "group_size must be a multiple of 8."),
        (["--scheme", "int3"], 2, "'int3'"),
        (["--text", "nowhere"], 2, "'nowhere' cannot be read: No such file or directory."),
    ],
)
def test_flags_that_do_not_fit(tmp_path, capsys, flags, code, line):
    assert run(["quantize", str(demo_folder()), str(tmp_path / "out"), *flags]) == code
    assert line in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


def copied(folder, change):
    """The demo with other settings or weights."""
    folder.mkdir()
    for path in demo_folder().glob("*.json"):
        (folder / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(demo_folder() / "model.safetensors")
    change(config, tensors)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_what_is_not_quantized(tmp_path, capsys):
    def refusal(source):
        assert run(["quantize", str(source), str(tmp_path / "out"), "--windows", "0", "--platform", "cpu"]) == 3
        (line,) = [one for one in capsys.readouterr().err.splitlines() if one.startswith("error: ")]
        assert not [one for one in tmp_path.iterdir() if "out" in one.name]
        return line

    def not_finite(config, tensors):
        next(weight for name, weight in tensors.items() if "down_proj" in name)[0, 0] = torch.nan

    assert re.search(
        "'.*down_proj.weight' holds numbers that are not finite", refusal(copied(tmp_path / "nan", not_finite))
    )
    other = copied(tmp_path / "other", lambda config, tensors: config.update(architectures=["CtrlLMHeadModel"]))
    assert "is a CtrlLMHeadModel, which is not quantized" in refusal(other)
    assert run(["quantize", str(demo_folder()), str(tmp_path / "done"), "--windows", "0", "--platform", "cpu"]) == 0
    assert "is quantized already" in refusal(tmp_path / "done")
    assert run(["quantize", str(demo_folder()), str(tmp_path / "done")]) == 2
    assert "done' is there already; name a folder that is not." in capsys.readouterr().err


def test_a_searched_scale_loses_less_than_the_range():
    torch.manual_seed(0)
    weight = torch.randn(24, 96).to(torch.bfloat16)
    for zero_points in (False, True):
        form = CompressedForm("int", 4, 32, zero_points, activations=False)
        values = weight.float().unflatten(1, (-1, 32))
        low, high = values.amin(-1, keepdim=True), values.amax(-1, keepdim=True)
        step = (high - low) / 15 if zero_points else values.abs().amax(-1, keepdim=True) / 7
        zero = (low / step).round() if zero_points else -8
        plain = (((values / step).round() - zero).clamp(0, 15) + zero) * step
        parts = {f"w.{name}": tensor for name, tensor in compressed(weight, form).items()}
        error = (decoded(parts, "w", 32) - weight.float()).square().sum()
        assert error < 0.97 * (plain - values).square().sum()


def test_rows_of_zeros_stay_zeros():
    for form in (CompressedForm("int", 8), CompressedForm("float", 8), CompressedForm("int", 4, 8, zero_points=True)):
        parts = {f"w.{name}": tensor for name, tensor in compressed(torch.zeros(3, 16), form).items()}
        assert torch.equal(decoded(parts, "w", form.group), torch.zeros(3, 16))
