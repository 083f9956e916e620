"""What a model is served for: by its architecture, by the modules of its folder, and as the user says."""

from __future__ import annotations

import json

import pytest

from tessera.config import build_config
from tessera.config.pooler import DenseConfig, TokenScore
from tessera.errors import ConfigError, ModelError

PLATFORM = "somewhere:Platform"
TRANSFORMER = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
POOLING = {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
DENSE = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
NORMALIZE = {"idx": 3, "name": "3", "path": "3_Normalize", "type": "sentence_transformers.models.Normalize"}
LOGIT_SCORE = {"idx": 1, "path": "1_LogitScore", "type": "sentence_transformers.cross_encoder.modules.LogitScore"}
SPLADE = {"idx": 1, "path": "1_SpladePooling", "type": "sentence_transformers.sparse_encoder.models.SpladePooling"}
MODEL = {"architectures": ["LlamaForCausalLM"], "vocab_size": 1000, "max_position_embeddings": 2048, "hidden_size": 64}
ENCODER = {**MODEL, "architectures": ["BertModel"]}


@pytest.fixture
def modules(folder):
    """modules([TRANSFORMER, POOLING], pooling={...}): a folder of sentence-transformers."""

    def write(
        modules, *, config=ENCODER, pooling=None, dense=None, score=None, splade=None, settings=None, limits=None
    ):
        path = folder(
            config__json=config,
            modules__json=modules,
            **({} if settings is None else {"config_sentence_transformers__json": settings}),
            **({} if limits is None else {"sentence_bert_config__json": limits}),
        )
        parts = {"1_Pooling": pooling, "2_Dense": dense, "1_LogitScore": score, "1_SpladePooling": splade}
        for name, content in parts.items():
            if content is not None:
                (path / name).mkdir()
                (path / name / "config.json").write_text(json.dumps(content))
                (path / name / "model.safetensors").write_text("")
        return path

    return write


def tasks(path, **flags):
    model = build_config(path, platform=PLATFORM, **flags).model
    return model.generates, model.pooler


@pytest.mark.parametrize(
    ("config", "flags", "generates", "pooling"),
    [
        (MODEL, {}, True, None),
        (MODEL, {"convert": "embed"}, True, "last"),
        ({**MODEL, "architectures": ["TinyMixed"]}, {}, True, None),
        (MODEL, {"runner": "pooling"}, False, "last"),
        (MODEL, {"runner": "generate", "convert": "embed"}, True, "last"),
        (ENCODER, {}, False, "cls"),
        (ENCODER, {"runner": "pooling", "pooler_config": {"pooling_type": "MEAN"}}, False, "mean"),
    ],
)
def test_a_folder_without_modules(folder, config, flags, generates, pooling):
    able, pooler = tasks(folder(config__json=config), **flags)
    assert able is generates
    assert pooling == (None if pooler is None else pooler.pooling)
    if pooler is not None:
        assert (pooler.tasks, pooler.dimensions, pooler.normalize) == (("embed", "token_embed"), 64, True)
        assert len(pooler.notes) == 1


@pytest.mark.parametrize(
    ("content", "pooling"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "mean_sqrt_len"),
        ({"pooling_mode_weightedmean_tokens": True}, "weighted_mean"),
        ({"pooling_mode_lasttoken": True, "include_prompt": False}, "last"),
        ({"pooling_mode": "lasttoken"}, "last"),
    ],
)
def test_ways_of_pooling(modules, content, pooling):
    generates, pooler = tasks(modules([TRANSFORMER, POOLING], pooling=content))
    assert not generates
    assert (pooler.pooling, pooler.normalize, pooler.include_prompt) == (
        pooling,
        False,
        content.get("include_prompt", True),
    )


def test_all_modules_and_settings(modules):
    dense = {
        "in_features": 64,
        "out_features": 24,
        "bias": False,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    settings = {"prompts": {"query": "Query: ", "document": ""}, "default_prompt_name": "query"}
    path = modules(
        [TRANSFORMER, POOLING, DENSE, NORMALIZE],
        config=MODEL,
        pooling={"pooling_mode_mean_tokens": True},
        dense=dense,
        settings=settings,
        limits={"max_seq_length": 256},
    )
    model = build_config(path, platform=PLATFORM).model
    pooler = model.pooler
    assert (model.generates, model.max_model_len) == (False, 256)
    assert pooler.dense == (DenseConfig("2_Dense", 64, 24, bias=False, activation="identity"),)
    assert (pooler.dimensions, pooler.normalize, pooler.matryoshka) == (24, True, None)
    assert (pooler.prompts, pooler.default_prompt) == (settings["prompts"], "query")
    assert pooler.notes == ("pooling is mean, as 1_Pooling/config.json says",)
    assert build_config(path, platform=PLATFORM, max_model_len=512).model.max_model_len == 512
    assert tasks(path, runner="generate") == (True, None)


def test_a_language_model_that_ranks(modules):
    settings = {"activation_fn": "torch.nn.modules.linear.Identity", "prompts": {"a": "A"}, "default_prompt_name": "a"}
    score = {"true_token_id": 9, "false_token_id": None}
    path = modules([TRANSFORMER, LOGIT_SCORE], config=MODEL, score=score, settings=settings)
    generates, pooler = tasks(path)
    assert (generates, pooler.tasks, pooler.labels) == (False, ("classify",), ("LABEL_0",))
    assert (pooler.token_score, pooler.activation, pooler.pair_instruction) == (TokenScore(9), "identity", "A")
    assert pooler.notes == ("scores pairs of texts by the logits of tokens, as 1_LogitScore/config.json says",)
    assert tasks(path, runner="generate") == (True, None)
    with pytest.raises(ConfigError, match="classifies and does not embed; remove --convert"):
        tasks(path, convert="embed")


@pytest.mark.parametrize(
    ("config", "score", "says"),
    [
        (MODEL, {"true_token_id": 1000}, "names a token that is not in the model's vocabulary"),
        (MODEL, {"true_token_id": 1, "false_token_id": 1000}, "names a token that is not in the model's vocabulary"),
        (MODEL, {"false_token_id": 2}, "must say true_token_id and false_token_id"),
        (MODEL, {"true_token_id": True}, "must say true_token_id and false_token_id"),
        (MODEL, {"true_token_id": 1, "false_token_id": -2}, "must say true_token_id and false_token_id"),
        (ENCODER, {"true_token_id": 1}, "BertModel has no head for tokens, which LogitScore reads"),
    ],
)
def test_a_token_score_that_cannot_be_read(modules, config, score, says):
    with pytest.raises(ModelError, match=says):
        tasks(modules([TRANSFORMER, LOGIT_SCORE], config=config, score=score))


def test_a_vector_for_each_token(modules):
    dense = {"in_features": 64, "out_features": 24, "bias": False}
    settings = {"query_prefix": "[Q] ", "document_prefix": "[D] ", "prompts": {"document": ""}}
    generates, pooler = tasks(modules([TRANSFORMER, DENSE], dense=dense, settings=settings))
    assert (generates, pooler.tasks, pooler.dimensions, pooler.normalize) == (False, ("token_embed",), 24, True)
    assert [one.name for one in pooler.dense] == ["2_Dense"]
    assert (pooler.prompts, pooler.default_prompt) == ({"query": "[Q] ", "document": ""}, None)
    assert pooler.notes == ("each token has a vector, of length 1, as modules.json names no module Pooling",)


def test_a_weight_for_each_token_of_the_vocabulary(modules):
    masked = {**MODEL, "architectures": ["BertForMaskedLM"]}
    mlm = {**TRANSFORMER, "type": "sentence_transformers.sparse_encoder.models.MLMTransformer"}
    path = modules([mlm, SPLADE], config=masked, splade={"pooling_strategy": "max", "word_embedding_dimension": 1000})
    generates, pooler = tasks(path)
    assert (generates, pooler.tasks, pooler.sparse, pooler.pooling) == (False, ("embed",), True, "max")
    assert (pooler.dimensions, pooler.matryoshka, pooler.normalize) == (1000, (), False)
    with pytest.raises(ConfigError, match="BertForMaskedLM has sparse vectors; remove --pooler-config"):
        tasks(path, pooler_config={"pooling_type": "MEAN"})


def test_heads_that_are_pickled_are_named(folder):
    path = folder(config__json=ENCODER, sparse_linear__pt="")
    _, pooler = tasks(path)
    assert (
        pooler.notes[1] == "sparse_linear.pt cannot be read, because such files can run code; other vectors are served"
    )


def test_settings_say_what_makes_a_score_of_a_classifier_s_number(modules):
    settings = {"activation_fn": "torch.nn.modules.linear.Identity"}
    config = {**MODEL, "architectures": ["BertForSequenceClassification"], "num_labels": 1}
    assert tasks(modules([TRANSFORMER], config=config, settings=settings))[1].activation == "identity"


def test_the_user_decides(folder):
    path = folder(config__json={**ENCODER, "matryoshka_dimensions": [16, 32]})
    flags = {"pooler_config": {"seq_pooling_type": "MAX", "use_activation": False, "dimensions": 48}}
    _, pooler = tasks(path, **flags)
    assert (pooler.pooling, pooler.normalize, pooler.dimensions, pooler.matryoshka) == ("max", False, 48, (16, 32))


@pytest.mark.parametrize(
    ("config", "flags", "message"),
    [
        (ENCODER, {"runner": "generate"}, "BertModel has no head that generates; leave out --runner"),
        (MODEL, {"pooler_config": {}}, "pooler_config needs --convert embed"),
        (ENCODER, {"pooler_config": {"pooling": "MEAN"}}, "does not support the key 'pooling'; it takes pooling_type"),
        (ENCODER, {"pooler_config": {"pooling_type": "MEDIAN"}}, "pooling_type must be one of LAST, CLS, MEAN"),
        (ENCODER, {"pooler_config": {"normalize": 1}}, "normalize must be true or false"),
        (ENCODER, {"pooler_config": {"dimensions": 65}}, "dimensions must be 1 to 64"),
    ],
)
def test_what_cannot_be_done_is_said(folder, config, flags, message):
    with pytest.raises(ConfigError, match=message):
        tasks(folder(config__json=config), **flags)


@pytest.mark.parametrize(
    ("names", "files", "message"),
    [
        ([], {}, "names 0 modules"),
        ([TRANSFORMER], {}, "names no module Pooling"),
        ([TRANSFORMER, POOLING], {}, "1_Pooling' has no config.json"),
        ([TRANSFORMER, {**POOLING, "path": "../1_Pooling"}], {}, "names the folder '../1_Pooling'"),
        ([TRANSFORMER, POOLING], {"pooling": {}}, "asks for 0 ways of pooling"),
        (
            [TRANSFORMER, POOLING],
            {"pooling": {"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}},
            "asks for 2 ways of pooling",
        ),
        (
            [TRANSFORMER, {**POOLING, "type": "elsewhere.CNN"}],
            {},
            "names the module elsewhere.CNN, which is not supported",
        ),
        (
            [TRANSFORMER, POOLING, DENSE],
            {"pooling": {"pooling_mode": "mean"}, "dense": {"in_features": True}},
            "without in_features",
        ),
        (
            [TRANSFORMER, POOLING, DENSE],
            {"pooling": {"pooling_mode": "mean"}, "dense": {"in_features": 64, "out_features": 2,
             "activation_function": "torch.nn.modules.activation.Mish"}},
            "asks for the activation mish",
        ),
        (
            [TRANSFORMER, DENSE],
            {"dense": {"in_features": 64, "out_features": 2, "use_residual": True}},
            "adds what it reads to what it computes",
        ),
        (
            [TRANSFORMER, SPLADE],
            {"config": {**MODEL, "architectures": ["BertForMaskedLM"]}, "splade": {"pooling_strategy": "sum"}},
            "asks for the pooling_strategy sum; only max is supported",
        ),
        ([TRANSFORMER, SPLADE], {"splade": {}}, "BertModel has no head for masked tokens"),
        (
            [TRANSFORMER, DENSE, POOLING],
            {"pooling": {"pooling_mode": "mean"}, "dense": {"in_features": 64, "out_features": 2}},
            "Dense behind or without it",
        ),
        (
            [TRANSFORMER, POOLING],
            {"pooling": {"pooling_mode": "mean"}, "settings": {"prompts": {"query": 3}}},
            "must be up to 256 texts",
        ),
    ],
)  # fmt: skip
def test_broken_modules_are_one_line(modules, names, files, message):
    with pytest.raises(ModelError, match=message) as raised:
        tasks(modules(names, **files))
    assert "\n" not in raised.value.message


def test_dense_weights_that_can_run_code_are_not_read(modules):
    dense = {"in_features": 64, "out_features": 2}
    path = modules([TRANSFORMER, POOLING, DENSE], pooling={"pooling_mode": "mean"}, dense=dense)
    (path / "2_Dense" / "model.safetensors").rename(path / "2_Dense" / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"has no model\.safetensors; weights in other files are not read"):
        tasks(path)


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        ({**MODEL, "architectures": ["LlamaModel"]}, "last"),
        ({**MODEL, "architectures": ["Qwen3Model"]}, "last"),
        ({**MODEL, "architectures": ["LlamaModel"], "is_causal": False}, "cls"),
        ({**MODEL, "architectures": ["LlamaForCausalLM"], "is_causal": False}, "cls"),
        ({**MODEL, "architectures": ["LlamaBidirectionalModel"]}, "mean"),
        ({**MODEL, "architectures": ["LlamaBidirectionalModel"], "pooling": "last"}, "last"),
        ({**MODEL, "architectures": ["LlamaModel"], "pooling": "of something else"}, "last"),
        ({**MODEL, "architectures": ["Gemma3TextModel"], "use_bidirectional_attention": True}, "cls"),
    ],
)
def test_a_decoder_that_does_not_generate(folder, config, pooling):
    generates, pooler = tasks(folder(config__json=config))
    assert (generates, pooler.pooling) == (False, pooling)


@pytest.mark.parametrize("named", ["colbert", 1, ["avg"]])
def test_a_pooling_in_config_json_that_is_none(folder, named):
    config = {**MODEL, "architectures": ["LlamaBidirectionalModel"], "pooling": named}
    with pytest.raises(ModelError, match=r"^pooling must be one of avg, cls, last in config\.json\.$"):
        tasks(folder(config__json=config))


def test_what_is_not_causal_cannot_generate(folder):
    config = {**MODEL, "is_causal": False}
    with pytest.raises(ConfigError, match="LlamaForCausalLM has no head that generates; leave out --runner"):
        tasks(folder(config__json=config), runner="generate")


@pytest.mark.parametrize(
    ("architecture", "task", "pooling"),
    [
        ("BertForSequenceClassification", "classify", "cls"),
        ("BertForTokenClassification", "token_classify", "cls"),
        ("ModernBertForSequenceClassification", "classify", "cls"),
        ("Qwen3ForSequenceClassification", "classify", "last"),
        ("LlamaForTokenClassification", "token_classify", "last"),
    ],
)
def test_a_classifier(folder, architecture, task, pooling):
    config = {**MODEL, "architectures": [architecture], "id2label": {"0": "no", "1": "yes", "2": "maybe"}}
    generates, pooler = tasks(folder(config__json=config))
    assert not generates
    assert (pooler.tasks, pooler.pooling) == ((task,), pooling)
    assert (pooler.labels, pooler.activation) == (("no", "yes", "maybe"), "softmax")


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        ({"convert": "embed"}, "BertForSequenceClassification classifies and does not embed; remove --convert"),
        ({"pooler_config": {"pooling_type": "MEAN"}}, "does not embed; remove --pooler-config"),
        ({"runner": "generate"}, "has no head that generates"),
    ],
)
def test_flags_that_a_classifier_cannot_follow(folder, flags, fault):
    with pytest.raises(ConfigError, match=fault):
        tasks(folder(config__json={**MODEL, "architectures": ["BertForSequenceClassification"]}), **flags)


def test_the_width_of_older_nomic_files(folder):
    config = {"architectures": ["NomicBertModel"], "vocab_size": 30, "n_positions": 64, "n_embd": 48}
    assert tasks(folder(config__json=config))[1].dimensions == 48


def test_an_encoder_has_no_head_to_convert(folder):
    with pytest.raises(ConfigError, match="BertModel has no head to classify with, which --convert classify needs"):
        tasks(folder(config__json=ENCODER), convert="classify")


@pytest.mark.parametrize(("flags", "generates"), [({}, True), ({"runner": "pooling"}, False)])
def test_a_model_that_is_converted_goes_on_to_generate(folder, flags, generates):
    said = {**MODEL, "num_labels": 3}
    able, pooler = tasks(folder(config__json=said), convert="classify", **flags)
    assert (able, pooler.tasks, len(pooler.labels)) == (generates, ("classify", "token_classify"), 3)
    assert pooler.converted


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_seq_length": 256}, None),
        ({"modality_config": {"text": {"method": "forward"}}}, None),
        ({"modality_config": {"text": {}, "message": {"format": "structured"}}}, {}),
        (
            {
                "modality_config": {"message": {}},
                "processing_kwargs": {"chat_template": {"add_generation_prompt": True}},
            },
            {"add_generation_prompt": True},
        ),
    ],
)
def test_whether_a_text_is_a_message(modules, limits, message):
    path = modules([TRANSFORMER, POOLING], pooling={"pooling_mode_lasttoken": True}, limits=limits)
    assert tasks(path)[1].message == message


def test_arguments_of_a_template_that_are_none(modules):
    limits = {"modality_config": {"message": {}}, "processing_kwargs": {"chat_template": ["add_generation_prompt"]}}
    path = modules([TRANSFORMER, POOLING], pooling={"pooling_mode_lasttoken": True}, limits=limits)
    with pytest.raises(ModelError, match=r"processing_kwargs\.chat_template in '.*' is not an object"):
        tasks(path)


RETRIEVER = {"architectures": ["ColQwen2ForRetrieval"], "vlm_config": MODEL, "embedding_dim": 20}
TOKENS = {"pad_token": {"content": "<p>"}, "eos_token": "<e>"}


def test_a_retriever_reads_queries_and_pages(folder):
    path = folder(
        config__json=RETRIEVER, tokenizer_config__json=TOKENS, processor_config__json={"query_prefix": "Ask: "}
    )
    able, pooler = tasks(path)
    assert (able, pooler.tasks, pooler.dimensions) == (False, ("token_embed",), 20)
    assert pooler.around == ("Ask: ", "<p>" * 10 + "\n")
    assert "<|image_pad|>" in pooler.image_prompt
    with pytest.raises(ConfigError, match="has no head that generates"):
        tasks(path, runner="generate")


def test_a_page_of_colpali_is_an_image_and_then_its_text(folder):
    config = {**RETRIEVER, "architectures": ["ColPaliForRetrieval"]}
    files = {"config__json": config, "processor_config__json": {}}
    _, pooler = tasks(folder(**files, tokenizer_config__json={**TOKENS, "bos_token": "<b>"}))
    assert pooler.around == ("<b>Question: ", "<p>" * 10 + "\n")
    assert (pooler.image_prompt, pooler.image_special_tokens) == ("<image><b>Describe the image.\n", False)


def test_a_colpali_without_the_token_that_begins_texts(folder):
    config = {**RETRIEVER, "architectures": ["ColPaliForRetrieval"]}
    with pytest.raises(ModelError, match="names no bos_token, which stands ahead of each query"):
        tasks(folder(config__json=config, processor_config__json={}, tokenizer_config__json=TOKENS))


def test_a_retriever_without_a_model_within(folder):
    with pytest.raises(ModelError, match="vlm_config in config.json is not an object"):
        tasks(folder(config__json={"architectures": ["ColQwen2ForRetrieval"]}))


def test_a_dual_encoder_has_a_vector_for_each(folder):
    text = {"model_type": "clip_text_model", "projection_dim": 7}
    path = folder(config__json={"architectures": ["CLIPModel"], "text_config": text, "projection_dim": 24},
                  tokenizer_config__json=TOKENS)  # fmt: skip
    able, pooler = tasks(path)
    assert (able, pooler.tasks, pooler.dimensions, pooler.padding) == (False, ("embed",), 24, None)
    assert (pooler.image_prompt, pooler.reads_images, pooler.lower) == ("<e>", False, False)
    with pytest.raises(ConfigError, match="has a vector of its own for texts and images; remove --convert"):
        tasks(path, convert="embed")


def test_a_dual_encoder_pads_with_a_known_token(folder):
    config = {"architectures": ["SiglipModel"], "text_config": {"model_type": "siglip_text_model"}}
    with pytest.raises(ModelError, match=r"has no tokenizer\.json with the token that pads"):
        tasks(folder(config__json=config, tokenizer_config__json=TOKENS))
