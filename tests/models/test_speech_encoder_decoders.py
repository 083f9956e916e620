"""Decoders of speech whose encoders make as many positions as a sound has answer as transformers does."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import transformers
from transformers import CONFIG_MAPPING

from tessera.config.modalities import encoder_length
from tessera.config.sound_encoder import sound_encoder
from tessera.errors import ModelError, RequestError
from tessera.layers.build import Build
from tessera.media.placed import PlacedMedia
from tessera.media.speech_processor import SpeechProcessor
from tessera.models import bart, canary, moonshine
from tessera.models.fields import RefusedTypeError
from tessera.ops import REFERENCE
from tessera.platform import BoundOps
from tessera.reference import reference_backends
from tessera.testing import ReferencePlatform
from tests.models.answers import answers_of
from tests.platforms.engine_run import EngineRun
from tests.platforms.threads import THREADS
from tools.parity.compare import Cell
from tools.parity.encoder_decoders import ENCODER_DECODERS
from tools.parity.modes import MODES, PLATFORMS, Subject
from tools.parity.oracle import NUM_TOKENS

FACTORIES = {
    "canary": (canary.canary, "CanaryForConditionalGeneration"),
    "cohere_asr": (canary.cohere_asr, "CohereAsrForConditionalGeneration"),
    "moonshine": (moonshine.moonshine, "MoonshineForConditionalGeneration"),
    "moonshine_streaming": (moonshine.moonshine_streaming, "MoonshineStreamingForConditionalGeneration"),
    "speech_to_text": (bart.speech_to_text, "Speech2TextForConditionalGeneration"),
    "speecht5": (bart.speecht5, "SpeechT5ForSpeechToText"),
}
NUM_PROMPTS = 4


@pytest.fixture(scope="session")
def heard(tmp_path_factory):
    """Family -> (its checkpoint's folder, the answers)"""
    return answers_of(ENCODER_DECODERS, tmp_path_factory, NUM_PROMPTS)


@pytest.mark.parametrize(
    ("platform", "family", "mode"),
    [
        ("strict", "canary", "mixed batch"),
        ("strict", "cohere-asr", "chunked"),
        ("cpu", "moonshine", "chunked"),
        ("strict", "moonshine-streaming", "full cache"),
        ("strict", "speech-to-text", "mixed batch"),
        ("cpu", "speecht5", "mixed batch"),
    ],
)
def test_a_cell_of_the_table(heard, platform, family, mode):
    folder, answers = heard(family)
    subject = Subject(folder, PLATFORMS[platform], answers, ENCODER_DECODERS[family].max_model_len)
    found = Cell.from_answers((platform, family, mode), *MODES[mode](subject))
    assert found.ok, found


EXTRACTORS = {
    "canary": {"feature_extractor_type": "ParakeetFeatureExtractor", "feature_size": 12},
    "cohere-asr": {"feature_extractor_type": "CohereAsrFeatureExtractor", "feature_size": 12},
    "moonshine": {"feature_extractor_type": "Wav2Vec2FeatureExtractor", "do_normalize": False},
    "moonshine-streaming": {"feature_extractor_type": "Wav2Vec2FeatureExtractor", "do_normalize": False},
    "speech-to-text": {"feature_extractor_type": "Speech2TextFeatureExtractor", "feature_size": 10, "num_mel_bins": 10},
    "speecht5": {"feature_extractor_type": "SpeechT5FeatureExtractor"},
}


@pytest.mark.parametrize("family", EXTRACTORS)
def test_a_sound_is_processed_as_transformers_does(heard, tmp_path, family):
    """As far as a mask leaves it in."""
    folder, _ = heard(family)
    config = json.loads((folder / "config.json").read_text())
    said = json.dumps({**EXTRACTORS[family], "return_attention_mask": True})
    (tmp_path / "preprocessor_config.json").write_text(said)
    samples = np.random.default_rng(0).standard_normal(23_457).astype(np.float32)
    encoder = getattr(transformers, config["architectures"][0]).from_pretrained(folder).get_encoder()
    extractor = transformers.AutoFeatureExtractor.from_pretrained(tmp_path)
    filled = {"pad_to_multiple_of": 320} if family == "moonshine-streaming" else {}
    whole = extractor(samples, sampling_rate=16_000, return_tensors="pt", padding=True, **filled)
    names = ("input_values", "input_features", "attention_mask")
    ours = SpeechProcessor(tmp_path, None, sound_encoder(config))
    media = ours.sound(samples)
    with torch.inference_mode():
        theirs = encoder(**{name: whole[name] for name in names if name in whole})
        states = theirs.last_hidden_state[0]
        if getattr(theirs, "attention_mask", None) is not None:
            states = states[theirs.attention_mask[0].bool()]
        mine = encoder(**{name: torch.from_numpy(value.copy()) for name, value in media.inputs.items()})
    assert media.num_rows == len(states)
    torch.testing.assert_close(mine.last_hidden_state[0], states, atol=2e-5, rtol=2e-5)
    silent = ours.sound(np.zeros(1, np.float32))
    assert silent.num_rows > 0
    assert all(np.isfinite(value).all() for value in silent.inputs.values())


def test_two_ranks(heard):
    folder, answers = heard("moonshine")
    with EngineRun(folder, "cpu", executor=THREADS, tensor_parallel_size=2, features=("media",)) as run:
        for answer in answers:
            run.add(answer.prompt, NUM_TOKENS, media=answer.media, ignore_eos=True)
        run.finish()
    assert list(run.answers.values()) == [list(answer.answer) for answer in answers]


def built(family, **said):
    device = ReferencePlatform().open(0)
    build = Build(BoundOps(REFERENCE, device), device, "float32", reference_backends())
    factory, architecture = FACTORIES[family]
    return build, factory(build, {"architectures": [architecture], **said}, 96)


@pytest.mark.parametrize("family", FACTORIES)
def test_what_config_leaves_out_is_what_transformers_takes_for_it(family):
    theirs, (build, ours) = CONFIG_MAPPING[family](), built(family)
    config, (layer, *others) = ours.config, ours.config.layers
    text = theirs.get_text_config()
    inner = getattr(text, "decoder_ffn_dim", None) or text.intermediate_size
    number = getattr(text, "decoder_layers", None) or text.num_hidden_layers
    heads = getattr(text, "decoder_attention_heads", None) or text.num_attention_heads
    activation = getattr(text, "activation_function", None) or text.hidden_act
    assert (config.vocab, config.hidden, config.inner) == (text.vocab_size, text.hidden_size, inner)
    assert (len(others) + 1, layer.heads) == (number, heads)
    assert (config.tied, config.activation) == (theirs.tie_word_embeddings, activation)
    if layer.rope is not None:
        share = text.rope_parameters["partial_rotary_factor"]
        assert (layer.rope.dim, layer.rope.theta) == (int(layer.head_dim * share), text.rope_parameters["rope_theta"])
    assert encoder_length({"architectures": [FACTORIES[family][1]]}) == build.caches[1].spec.length


@pytest.mark.parametrize(
    ("family", "architecture", "reason"),
    [
        ("vibevoice_asr", "VibeVoiceAsrForConditionalGeneration", "its features are drawn at random"),
        ("speech-encoder-decoder", "SpeechEncoderDecoderModel", "its encoder and its decoder are of any two types"),
    ],
)
def test_a_type_that_is_not_served_says_why(tmp_path, family, architecture, reason):
    said = CONFIG_MAPPING[family]().to_dict() if family == "vibevoice_asr" else {"model_type": family}
    (tmp_path / "config.json").write_text(json.dumps({**said, "architectures": [architecture]}, default=str))
    with pytest.raises(ModelError, match=reason):
        EngineRun(tmp_path, "cpu", load_format="dummy", max_model_len=64)


def test_a_sound_that_is_too_long(heard):
    folder, (answer, *_) = heard("moonshine")
    (sound,) = answer.media
    long = PlacedMedia("audio", sound.digest, sound.places, sound.inputs, 1249)
    wanted = pytest.raises(RequestError, match="in one audio of up to 1248 positions; send one")
    with EngineRun(folder, "cpu", features=("media",), kv_cache_memory_bytes=2**24) as run, wanted:
        run.add(answer.prompt, media=(long,))


@pytest.mark.parametrize(
    ("family", "said", "message"),
    [
        ("moonshine", {"encoder_num_attention_heads": 4}, "its encoder and its decoder have unlike numbers of heads"),
        ("moonshine_streaming", {"num_key_value_heads": 2}, "several of its query heads share a key"),
        ("moonshine_streaming", {"encoder_config": {"frame_ms": "5"}}, "encoder_config in config.json must have"),
    ],
)
def test_what_is_refused_is_one_line(family, said, message):
    with pytest.raises((ModelError, RefusedTypeError), match=message):
        built(family, **said)
