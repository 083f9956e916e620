"""gpt-oss as it is published, with experts in MXFP4, answers as transformers does with what it decodes."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from tessera.errors import ModelError
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


def test_two_ranks_with_whole_experts(published):
    """96 inputs in groups of 32, which two ranks with a part of each expert would cut."""
    folder, answers = published
    ranks = {"executor": THREADS, "tensor_parallel_size": 2}
    with pytest.raises(ModelError, match=r"has inputs that cannot be divided into groups of 32\.$"):
        EngineRun(folder, "cpu", **ranks)
    with EngineRun(folder, "cpu", **ranks, enable_expert_parallel=True) as run:
        found = run.ask([answer.prompt for answer in answers], NUM_TOKENS, ignore_eos=True)
    assert found == [list(answer.answer) for answer in answers]


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
