"""What transformers' code does not lead to is refused in one line that names the type and the reason."""

from __future__ import annotations

import sys
from contextlib import nullcontext

import pytest
import torch
from transformers.models.arcee.modeling_arcee import ArceeMLP
from transformers.models.gptj.modeling_gptj import GPTJAttention
from transformers.models.roformer.modeling_roformer import RoFormerSelfAttention

from tessera.engine.engine import Engine
from tessera.errors import ModelError
from tessera.layers.build import Build
from tessera.models.fields import RefusedTypeError
from tessera.models.through_transformers.model import through_transformers
from tessera.ops import REFERENCE
from tessera.platform import BoundOps
from tessera.platform.collectives import Alone
from tessera.reference.attention import ReferenceAttention
from tessera.testing import ReferencePlatform
from tests.models.loader.folders import config_only, dummy_config

SIZES = {
    "vocab_size": 29,
    "hidden_size": 24,
    "intermediate_size": 28,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "rms_norm_eps": 1e-6,
    "head_dim": 6,
}


def arcee(**differs):
    return {**SIZES, "architectures": ["ArceeForCausalLM"], "model_type": "arcee", **differs}


def typed(architecture, model_type, **differs):
    return {**SIZES, "architectures": [architecture], "model_type": model_type, **differs}


REFUSED = [
    (typed("BigBirdForCausalLM", "big_bird", is_decoder=True), "it does not take attention from transformers'"),
    (typed("ZayaForCausalLM", "zaya"), "it keeps a state beside keys and values"),
    (typed("InklingForCausalLM", "inkling_text"), "it has layers of hybrid"),
    (typed("BertLMHeadModel", "bert", head_dim=None), "its attention looks ahead; the config.json of a"),
    (
        typed("HrmTextForCausalLM", "hrm_text", hidden_size=24),
        "each token of a prompt sees the whole prompt (prefix_lm)",
    ),
    (typed("XmodForCausalLM", "xmod", is_decoder=True), "its config.json names no default_language"),
    (typed("DogeForCausalLM", "doge"), "it makes a mask or bias of attention by itself"),
    (typed("CTRLLMHeadModel", "ctrl", n_positions="many"), "transformers does not accept its config.json"),
    (arcee(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}), "'dynamic' would depend on"),
    (typed("InstructBlipForConditionalGeneration", "instructblip"), "features of an image depend on the text of the"),
    (arcee(architectures=["ArceeForMath"]), "'ArceeForMath' is not supported; there is"),
    (arcee(architectures=["OurOwnModel"], model_type="ours", auto_map={"AutoModel": "x.Y"}), "such code is never run"),
]


@pytest.mark.parametrize(("config", "message"), REFUSED)
def test_refused_by_name(tmp_path, config, message):
    folder = config_only(tmp_path, **config)
    with pytest.raises(ModelError) as raised:
        Engine(dummy_config(folder))
    assert message in str(raised.value)
    assert f"'{config['architectures'][0]}' is not supported" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_labels_are_no_logits(tmp_path):
    folder, says = config_only(tmp_path, **arcee()), {"returned_token_ids": [3]}
    with pytest.raises(ModelError, match=r"'ArceeForCausalLM' is not supported \(.* does not classify by its logits"):
        Engine(dummy_config(folder, convert="classify", pooler_config=says))


def test_the_same_without_the_fault_is_served(tmp_path):
    engine = Engine(dummy_config(config_only(tmp_path, **arcee())))
    engine.close()
    assert engine.info.weight_bytes > 0


def test_code_in_the_folder_is_not_imported(tmp_path):
    (tmp_path / "modeling_arcee.py").write_text("raise SystemExit('imported')")
    names = {"AutoConfig": "modeling_arcee.Config", "AutoModelForCausalLM": "modeling_arcee.Model"}
    Engine(dummy_config(config_only(tmp_path, **arcee(auto_map=names)))).close()
    assert not [name for name in sys.modules if name.endswith("modeling_arcee") and "transformers.models" not in name]


# ---- what a rehearsal finds ------------------------------------------------------------------------------------------


def build(groups=None):
    device = ReferencePlatform().open(0)
    return Build(BoundOps(REFERENCE, device), device, "float32", [ReferenceAttention()], groups)


@pytest.mark.parametrize("axis", ["tensor", "pipeline"])
def test_one_device_only(axis):
    group = Alone()
    group.size = 2
    with pytest.raises(RefusedTypeError, match=rf"limited to one device \(--{axis}-parallel-size 1\)"):
        through_transformers(build({axis: group}), arcee(), 16)


def test_no_more_positions_than_there_are():
    with pytest.raises(ModelError, match="max_model_len is 64, but the model has 32 positions"):
        through_transformers(build(), arcee(), 64)


def test_no_more_than_sparse_attention_sees_whole():
    sparse = {"layer_types": ["full_attention", "minimax_m3_sparse"], "index_topk_blocks": 2, "index_block_size": 4}
    with pytest.raises(ModelError, match="max_model_len is 9, but .* up to 8 tokens; give at most that"):
        through_transformers(build(), typed("MiniMaxM3VLForCausalLM", "minimax_m3_vl_text", **sparse), 9)


@pytest.mark.parametrize(
    "mixes",
    [
        lambda x: x + torch.roll(x, 1, 1),
        lambda x: x + x.mean(1, keepdim=True),
        lambda x: x.cumsum(1),
        lambda x: x + torch.arange(x.shape[1])[:, None],
    ],
    ids=["the token before", "the mean of all", "a sum", "the place in the batch"],
)
def test_tokens_that_meet_outside_of_attention(monkeypatch, mixes):
    forward = ArceeMLP.forward
    monkeypatch.setattr(ArceeMLP, "forward", lambda self, x: mixes(forward(self, x)))
    with pytest.raises(RefusedTypeError, match="tokens meet outside of attention"):
        through_transformers(build(), arcee(), 16)


@pytest.mark.parametrize(
    "changes",
    [lambda shares: shares.sqrt(), lambda shares: shares.flip(1), lambda shares: shares * torch.tensor([1.0, 0.5])],
    ids=["another scale", "another head", "another sum"],
)
def test_a_method_that_attends_in_another_way(monkeypatch, changes):
    """A module that computes attention by itself."""
    attend = GPTJAttention._attn

    def changed(self, query, key, value, attention_mask=None):
        shares = attend(self, query, key, value, attention_mask)[1]
        shares = changes(shares.unflatten(-1, (-1, 2))).flatten(-2)
        return shares @ value, shares

    monkeypatch.setattr(GPTJAttention, "_attn", changed)
    with pytest.raises(RefusedTypeError, match="does not take attention from transformers' attention interface"):
        through_transformers(build(), typed("GPTJForCausalLM", "gptj", rotary_dim=4), 16)


def test_a_forward_that_attends_in_another_way(monkeypatch):
    """A module that computes attention in the midst of its forward."""
    forward = RoFormerSelfAttention.forward

    def changed(self, hidden_states, attention_mask=None, sinusoidal_pos=None, **named):
        return forward(self, hidden_states, attention_mask, sinusoidal_pos.flip(-2), **named)

    monkeypatch.setattr(RoFormerSelfAttention, "forward", changed)
    with pytest.raises(RefusedTypeError, match="does not take attention from transformers' attention interface"):
        through_transformers(build(), typed("RoFormerForCausalLM", "roformer", is_decoder=True), 16)


@pytest.mark.parametrize(("name", "refused"), [("more", True), ("image_encoder", False)])
def test_what_text_does_not_reach(monkeypatch, name, refused):
    make = ArceeMLP.__init__

    def changed(self, config):
        make(self, config)
        setattr(self, name, torch.nn.Linear(3, 3))

    monkeypatch.setattr(ArceeMLP, "__init__", changed)
    expected = pytest.raises(RefusedTypeError, match="does not reach all of it .'model.layers.0.mlp.more'")
    with expected if refused else nullcontext():
        through_transformers(build(), arcee(), 16)


def test_a_head_that_does_more(monkeypatch):
    from transformers import ArceeForCausalLM

    forward = ArceeForCausalLM.forward

    def changed(self, *args, **kwargs):
        output = forward(self, *args, **kwargs)
        output.logits = output.logits.square()
        return output

    monkeypatch.setattr(ArceeForCausalLM, "forward", changed)
    with pytest.raises(RefusedTypeError, match="transforms its logits"):
        through_transformers(build(), arcee(), 16)
