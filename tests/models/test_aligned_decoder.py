"""How much tokens attend to a sound is what transformers says, whatever else is in the batch."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from transformers import WhisperForConditionalGeneration

from tests.models.answers import answers_of
from tests.platforms.engine_run import EngineRun
from tests.platforms.threads import THREADS
from tools.parity.encoder_decoders import ENCODER_DECODERS

HEADS = [[2, 4], [0, 1], [2, 0]]
NUM_PROMPTS = 4
LENGTH = 21


@pytest.fixture(scope="module")
def heard(tmp_path_factory):
    """(a checkpoint's folder, what its prompts are)"""
    folder, answers = answers_of(ENCODER_DECODERS, tmp_path_factory, NUM_PROMPTS)("whisper-audio")
    own = tmp_path_factory.mktemp("aligned") / "whisper"
    shutil.copytree(folder, own)
    generation = {
        "no_timestamps_token_id": 60,
        "decoder_start_token_id": 0,
        "eos_token_id": 50,
        "begin_suppress_tokens": [],
        "alignment_heads": HEADS,
    }
    (own / "generation_config.json").write_text(json.dumps(generation))
    return own, answers


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param({}, id="whole"),
        pytest.param({"max_num_batched_tokens": 8, "max_num_seqs": 3}, id="chunked"),
        pytest.param({"executor": THREADS, "tensor_parallel_size": 2}, id="two ranks"),
    ],
)
def test_attention_is_that_of_transformers(heard, flags):
    folder, answers = heard
    model = WhisperForConditionalGeneration.from_pretrained(folder, attn_implementation="eager", dtype="float32")
    with EngineRun(folder, "cpu", features=("media", "transcription"), **flags) as run:
        keys = []
        for answer in answers:
            run.add(answer.prompt, 5, media=answer.media, ignore_eos=True)
            keys.append(run.pool(answer.prompt, "align", media=answer.media))
        run.finish()
    for key, answer in zip(keys, answers, strict=True):
        (sound,) = answer.media
        with torch.inference_mode():
            made = model(
                input_features=torch.from_numpy(sound.inputs["input_features"]),
                decoder_input_ids=torch.tensor([answer.prompt]),
                output_attentions=True,
            )
        want = torch.stack([made.cross_attentions[layer][0, head] for layer, head in sorted(HEADS)], 1).numpy()
        np.testing.assert_allclose(run.pooled[key].reshape(-1, len(HEADS), LENGTH), want, atol=1e-6)
