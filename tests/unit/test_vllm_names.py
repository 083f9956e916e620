"""vLLM's names in Python: each is served, accepted without effect, or refused in one line that says what to do."""

from __future__ import annotations

import inspect
import re
import warnings
from pathlib import Path

import pytest

import tessera
from tessera.config.engine import ENGINE_FLAGS
from tessera.config.other_names import _table, other_keyword, other_name
from tessera.errors import ConfigError, RequestError
from tessera.llm.inputs import keywords_of, refuse_others
from tessera.llm.llm import KEYWORDS, LLM
from tessera.sampling_params import SamplingParams

TEXT = Path(__file__).with_name("vllm_names.txt").read_text(encoding="utf-8").partition("\n")[2]
PARTS = {title: body.split() for title, body in re.findall(r"^(\S.*):\n((?:  .*\n)+)", TEXT, re.MULTILINE)}
METHODS = {name: inside.split(",") if inside else [] for name, inside in re.findall(r"(\w+)\(([\w,]*)\)", TEXT)}
OWN = {flag.name for flag in KEYWORDS}
ONE_LINE = re.compile(r"[^\n]{1,200}\.")


class Thing:
    """A value that no keyword takes."""


def outcome(other, name, value, error):
    """ "refused" or "warned", and the words."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            other.checked(name, value, error, stacklevel=1)
        except error as refused:
            return "refused", refused.message
    (warning,) = seen
    return "warned", str(warning.message)


def test_the_lists_are_whole():
    assert [len(PARTS[title]) for title in ("LLM(...)", "SamplingParams(...)", "LLM attributes", "import")] == [
        257, 39, 10, 22,
    ]  # fmt: skip
    assert len(METHODS) == 32


@pytest.mark.parametrize("name", [*PARTS["LLM(...)"], "max_waiting", "lora_modules"])
def test_each_keyword_of_llm_is_served_or_known_but_not_both(name):
    assert (name in OWN) == (other_keyword(name) is None)
    if name in OWN:
        return
    for nothing in (None, False) if not other_keyword(name).values else (None,):
        assert keywords_of({name: nothing}, OWN) == {}
    what, words = outcome(other_keyword(name), name, Thing(), ConfigError)
    assert words.startswith((f"{name}: ", f"{name} is called ", f"{name} has no effect: "))
    assert what == "warned" or ONE_LINE.fullmatch(words)
    for advised in re.findall(r"(?<![\w-])--[a-z-]+", words):
        assert advised not in {flag.option for flag in ENGINE_FLAGS if not flag.online}, "a flag, not a keyword"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tokenizer_mode", "auto"),
        ("data_parallel_size", 1),
        ("disable_log_stats", True),
        ("distributed_executor_backend", "mp"),
        ("cpu_offload_gb", 0),
        ("swap_space", 0),
        ("async_scheduling", True),
        ("model_impl", "auto"),
        ("use_tqdm_on_load", True),
    ],
)
def test_what_is_done_anyway_is_a_warning(name, value):
    with pytest.warns(UserWarning, match=rf"^{name} has no effect: ") as seen:
        assert keywords_of({"seed": 1, name: value}, OWN) == {"seed": 1}
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("tokenizer_mode", "mistral", "the tokenizer is the model's tokenizer.json; remove it, or use tokenizer."),
        ("data_parallel_size", 2, "data_parallel_size: only a server has several engines"),
        ("cpu_offload_gb", 4, "make them smaller with quantization, or use tensor_parallel_size."),
        ("async_scheduling", False, "async_scheduling: use steps_in_flight=1."),
        ("device", "cuda", "device is called platform here."),
        ("enable_eplb", True, "experts are divided among devices in order, and stay where they are"),
        ("chat_template", "x", "use chat(chat_template=...)."),
        ("compilation_config", 3, "turn graph capture off with enforce_eager."),
    ],
)  # fmt: skip
def test_what_is_refused_says_what_to_do_in_the_words_of_python(name, value, words):
    with pytest.raises(ConfigError) as refused:
        LLM(**{name: value})
    assert words in refused.value.message


def test_a_keyword_that_nobody_has():
    with pytest.raises(TypeError, match="unexpected keyword argument 'max_model_lenght'; did you mean 'max_model_len'"):
        LLM(max_model_lenght=5)


@pytest.mark.parametrize("name", METHODS)
def test_each_method_is_there_or_named(name):
    if not hasattr(LLM, name):
        words = other_name(f"LLM.{name}").refusal
        assert words.startswith(f"{name}: ")
        assert ONE_LINE.fullmatch(words)
        return
    has = set(inspect.signature(getattr(LLM, name)).parameters)
    if name == "enqueue_chat":
        has |= set(inspect.signature(LLM._chat_jobs).parameters)
    for keyword in METHODS[name]:
        if keyword in has:
            continue
        refuse_others(name, {keyword: None})
        other = other_name(f"{name}({keyword})") or other_name(f"call({keyword})")
        _, words = outcome(other, keyword, Thing(), RequestError)
        assert words.startswith(f"{keyword}: ") or "has no effect" in words


@pytest.mark.parametrize("name", [*PARTS["LLM attributes"], "sleep", "collective_rpc", "start_profile"])
def test_an_attribute_that_is_not_there_is_named(name):
    with pytest.raises(AttributeError, match=rf"^{name}: .+\.$"):
        getattr(LLM.__new__(LLM), name)


def test_an_attribute_that_nobody_has():
    with pytest.raises(AttributeError, match="'LLM' object has no attribute 'generat'"):
        getattr(LLM.__new__(LLM), "generat")  # noqa: B009 - the name is wrong


@pytest.mark.parametrize(
    "name",
    [
        *PARTS["SamplingParams(...)"],
        *("best_of", "use_beam_search", "length_penalty", "early_stopping", "logits_processors", "guided_decoding"),
        "truncate_prompt_tokens",
    ],
)
def test_each_field_of_sampling_params_is_served_or_known_but_not_both(name):
    other = other_name(f"SamplingParams({name})")
    assert (name in SamplingParams.__struct_fields__) == (other is None)
    if other is None:
        return
    assert SamplingParams(**{name: None}, seed=3) == SamplingParams(seed=3)
    params, thing = SamplingParams(), Thing()
    what, words = outcome(other, name, thing, RequestError)
    if what == "warned":
        with pytest.warns(UserWarning, match=re.escape(words)):
            assert SamplingParams(**{name: thing}, seed=3) == SamplingParams(seed=3)
        return
    assert words.startswith((f"{name}: ", f"{name} is called "))
    for use in (lambda: SamplingParams(**{name: thing}), lambda: setattr(params, name, thing)):
        with pytest.raises(RequestError, match=re.escape(words)):
            use()


def test_a_field_that_nobody_has():
    with pytest.raises(TypeError, match="temprature"):
        SamplingParams(temprature=1)
    with pytest.raises(AttributeError, match="SamplingParams has no field 'temprature'"):
        SamplingParams().temprature = 1
    with pytest.raises(TypeError, match="positional"):
        SamplingParams(1)


@pytest.mark.parametrize("name", PARTS["import"])
def test_each_import_is_there_or_named(name):
    if name in tessera.__all__:
        assert getattr(tessera, name) is not None
        return
    if name == "initialize_ray_cluster":  # in lower case as the modules are, which are looked for here first
        assert not hasattr(tessera, name)
        return
    with pytest.raises(ImportError, match=rf"^{name}: .+\.$"):
        __import__("tessera", fromlist=(name,))  # as `from tessera import name` does


def test_other_names_of_the_module():
    assert not hasattr(tessera, "vllm")
    assert not hasattr(tessera, "NoSuchClass")
    with pytest.raises(ImportError, match="GuidedDecodingParams is called StructuredOutputsParams here."):
        tessera.GuidedDecodingParams  # noqa: B018 - reading it is enough


def test_no_name_is_in_the_table_that_is_served():
    places = {"LLM(": OWN, "SamplingParams(": set(SamplingParams.__struct_fields__), "tessera.": set(tessera.__all__)}
    for name in _table():
        for place, served in places.items():
            assert name.removeprefix(place).rstrip(")") not in served or not name.startswith(place), name
        if name.startswith("LLM."):
            assert not hasattr(LLM, name[4:])


def test_prompts_of_vllm_s_classes():
    assert tessera.TextPrompt(prompt="a") == {"prompt": "a"}
    assert tessera.TokensPrompt(prompt_token_ids=[1]) == {"prompt_token_ids": [1]}
