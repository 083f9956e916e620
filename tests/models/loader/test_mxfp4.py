"""gpt-oss as it is published, with experts in MXFP4, answers as transformers does with what it decodes."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from tessera.errors import ModelError
from tessera.ops.quantize import meaning
from tessera.platform.quantization import Part
from tessera.quantization.formats.mxfp4 import mxfp4
from tests.platforms.cpu_kernels import needs_kernels
from tests.platforms.engine_run import EngineRun
from tests.platforms.threads import THREADS
from tools.parity.families import FAMILIES
from tools.parity.modes import MODES, PLATFORMS, Subject
from tools.parity.oracle import NUM_TOKENS, ask, make_prompts

EXPERTS = ("gate_up_proj", "down_proj")
CONFIG = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A folder, and what transformers answers with the decoded weights."""
    folder = tmp_path_factory.mktemp("gpt_oss")
    config = FAMILIES["gpt-oss"].make().config
    config.hidden_size, config.intermediate_size = 64, 96
    model = AutoModelForCausalLM.from_config(config).float().eval()
    random, packed = torch.Generator().manual_seed(4), {}
    for number, layer in enumerate(model.model.layers):
        for name in EXPERTS:
            weight = getattr(layer.mlp.experts, name)
            experts, k, n = weight.shape
            blocks = torch.randint(0, 256, (experts, n, k // 32, 16), generator=random, dtype=torch.uint8)
            scales = torch.randint(120, 125, (experts, n, k // 32), generator=random, dtype=torch.uint8)
            weight.data = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
            place = f"model.layers.{number}.mlp.experts.{name}"
            packed |= {f"{place}_blocks": blocks, f"{place}_scales": scales}
    model.save_pretrained(folder)
    stored = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in stored.items() if not name.endswith(EXPERTS)}
    assert len(kept) == len(stored) - len(packed) // 2
    save_file({**kept, **packed}, folder / "model.safetensors", metadata={"format": "pt"})
    said = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**said, "quantization_config": CONFIG}))
    return folder, ask(model, make_prompts(model.config.vocab_size, 3))


def test_answers_are_those_of_the_decoded_weights(published):
    folder, answers = published
    compared, _ = MODES["mixed batch"](Subject(folder, PLATFORMS["cpu"], answers))
    assert all(one.ok for one in compared)


@pytest.mark.parametrize("whole_experts", [True, False])
def test_two_ranks(published, whole_experts):
    """96 inputs in groups of 32, which two ranks with a part of each expert cut."""
    folder, answers = published
    ranks = {"executor": THREADS, "tensor_parallel_size": 2, "enable_expert_parallel": whole_experts}
    with EngineRun(folder, "cpu", **ranks) as run:
        found = run.ask([answer.prompt for answer in answers], NUM_TOKENS, ignore_eos=True)
    assert found == [list(answer.answer) for answer in answers]


@needs_kernels
@pytest.mark.parametrize(("ranks", "cut"), [({}, False), ({"tensor_parallel_size": 2, "executor": THREADS}, True)])
def test_experts_stay_in_their_blocks_in_bfloat16(published, ranks, cut):
    """Of the second product's 96 inputs, each of two ranks has a block and a half."""
    folder, answers = published
    with EngineRun(folder, "cpu", dtype="bfloat16", **ranks) as run:
        assert all(run.ask([answer.prompt for answer in answers], 1, ignore_eos=True))
        entries = [one.chosen for one in run.engine.info.choices if one.what == "quantization"]
    kinds = {kind for kind in entries if "mxfp4" in kind}
    decoded = {"mxfp4 in groups of 32 that the shard cuts, decoded to bfloat16"} if cut else set()
    assert kinds == {"mxfp4, in blocks of 32; activations int8, one scale per token and group of 32"} | decoded


@pytest.mark.parametrize("columns", [None, (0, 96), (32, 96), (64, 192), (48, 96), (16, 176)])
def test_blocks_and_decoded_shards_mean_what_transformers_decodes(columns):
    """Bit for bit, with every power of two that is a normal float of 32 bits, and rows past the end."""
    random = torch.Generator().manual_seed(5)
    stored = {
        "a.experts.1.w.weight_blocks": torch.randint(0, 256, (37, 6, 16), generator=random, dtype=torch.uint8),
        "a.experts.1.w.weight_scales": torch.randint(4, 250, (37, 6), generator=random, dtype=torch.uint8),
    }
    blocks, scales = stored.values()
    whole = convert_moe_packed_tensors(blocks[None], scales[None], dtype=torch.float32)[0].T
    part = Part("a.experts.1.w.weight", (37, 192), (5, 37), columns)
    found = mxfp4(CONFIG).stored(part, "Linear", "bfloat16")
    weights = [found] if isinstance(found, Part) else [found.decoded, found.parts["weight"]]
    assert len(weights) == (1 if columns in {(48, 96), (16, 176)} else 2)
    expected = whole[slice(*part.rows), slice(*(columns or (0, 192)))]
    for weight in weights:
        read = (stored[one.name][slice(*one.rows), slice(*(one.columns or (0, 6)))] for one in weight.decoding.parts)
        values = weight.decoding.call(*read)
        assert values.shape == weight.shape
        assert torch.equal(values if weight is weights[0] else meaning({"weight": values}, found.scheme), expected)


def test_a_scale_that_is_no_number_is_named(published, tmp_path):
    folder, answers = published
    stored = load_file(folder / "model.safetensors")
    stored["model.layers.1.mlp.experts.down_proj_scales"][2, 3, 1] = 255
    save_file(stored, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(
        ModelError, match="'model.layers.1.mlp.experts.2.down_proj.weight_scales' has scales that are not numbers"
    ):
        MODES["mixed batch"](Subject(tmp_path, PLATFORMS["cpu"], answers))
