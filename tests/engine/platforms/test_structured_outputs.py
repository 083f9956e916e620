"""Structured outputs on every platform: an answer is what its grammar allows, whatever else is going on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from jsonschema import Draft202012Validator

from tessera.llm import LLM
from tessera.sampling_params import ReasoningParams, SamplingParams
from tests.engine.platforms.conftest import Alone, Start
from tests.engine.platforms.test_tokens_on_every_platform import prompts
from tests.platforms.engine_run import PLATFORMS, EngineRun
from tests.platforms.tiny_models import EOS, text_of
from tests.unit.engine.bytewise import END, byte_level

QUESTIONS = prompts(9, seed=31)
HOT = {"temperature": 1.5}
GRAMMARS: list[dict[str, Any]] = [
    {"regex": "[a-f]{3,9}(-[0-9]+)?"},
    {"choice": ["yes", "yes, sir", "no", "perhaps"]},
    {"regex": r"\{\"[a-z]+\": (true|false|[0-9]{1,3})\}"},
    {"regex": "(ab|cd)*e"},
]


def allowed(grammar: dict[str, Any], text: str) -> bool:
    """By judges that know nothing of llguidance."""
    if "choice" in grammar:
        return text in grammar["choice"]
    if "json" in grammar:
        return Draft202012Validator(grammar["json"]).is_valid(json.loads(text))
    if "grammar" in grammar:
        return re.fullmatch(r"\[(\[|\]|ab?)*\]", text) is not None and balanced(text)
    if "structural_tag" in grammar:
        calls = re.findall(r"<f>(.*?)</f>", text, re.DOTALL)
        return all(isinstance(json.loads(call)["n"], int) for call in calls)
    return re.fullmatch(grammar["regex"], text) is not None


def balanced(text: str) -> bool:
    """Whether the first bracket is closed by the last one and by no other."""
    depths = list(accumulate({"[": 1, "]": -1}.get(character, 0) for character in text))
    return depths[-1] == 0 and min(depths[:-1]) > 0


@pytest.fixture
def run_of(start: Start, llama: Path) -> Callable[..., EngineRun]:
    return partial(start, features=["structured_outputs"], tokenizer=str(llama))


def text(run: EngineRun, key: int) -> str:
    """Without the token that ended it."""
    tokens = run.answers[key]
    return text_of(tokens[:-1] if tokens and tokens[-1] == EOS else tokens)


@pytest.mark.parametrize("params", [{}, HOT], ids=["greedy", "hot"])
def test_answers_are_what_their_grammars_allow(
    run_of: Callable[..., EngineRun], alone: Alone, params: dict[str, Any]
) -> None:
    """In a cache that is too small for all of them, beside requests that have no grammar."""
    run = run_of(max_num_seqs=5, max_model_len=128, kv_cache_memory_bytes=180 * 384)
    for grammar in GRAMMARS:  # compiles them, so that below all requests start together
        run.add(QUESTIONS[0], 1, structured_outputs=grammar)
    run.finish()
    keys = {}
    for i, question in enumerate(QUESTIONS):
        grammar = GRAMMARS[i // 2] if i % 2 else None
        keys[i] = grammar, run.add(question, 40, seed=i, structured_outputs=grammar, ignore_eos=not grammar, **params)
    run.finish()
    assert run.engine.stats.counters.preemptions > 0
    for i, (grammar, key) in keys.items():
        if grammar is None:
            assert run.answers[key] == alone(QUESTIONS[i], 40, seed=i, ignore_eos=True, **params)
        elif run.ended[key] == "stop":
            assert allowed(grammar, text(run, key)), text(run, key)
        else:
            assert run.ended[key] == "length"


def test_a_grammar_gives_the_same_tokens_alone_and_on_the_reference(
    run_of: Callable[..., EngineRun], llama: Path
) -> None:
    def ask(run: EngineRun, together: bool) -> list[list[int]]:
        keys = []
        for i, question in enumerate(QUESTIONS):
            keys.append(run.add(question, 20, seed=i, structured_outputs=GRAMMARS[i % 4], **HOT))
            if not together:
                run.finish()
        run.finish()
        return [run.answers[key] for key in keys]

    options = {"features": ["structured_outputs"], "tokenizer": str(llama), "enable_prefix_caching": False}
    with EngineRun(llama, "reference", **options) as reference:
        expected = ask(reference, together=False)
    assert ask(run_of(max_num_seqs=4), together=True) == expected


def test_siblings_and_prefix_hits_are_each_at_their_own_place_of_the_grammar(run_of: Callable[..., EngineRun]) -> None:
    run, question = run_of(), max(QUESTIONS, key=len) * 2
    asked = {"structured_outputs": {"regex": "[a-z]{4}[0-9]{6}"}, **HOT}
    leader = run.add(question, 30, seed=50, **asked)
    keys = [leader, *(run.add(question, 30, seed=50 + i, leader=leader, **asked) for i in range(1, 4))]
    run.finish()
    keys.append(run.add(question, 30, seed=77, **asked))
    run.finish()
    assert run.engine.stats.counters.forked_tokens > 0
    assert run.cached[keys[-1]] > 0
    texts = [text(run, key) for key in keys]
    assert all(re.fullmatch("[a-z]{4}[0-9]{6}", one) for one in texts), texts
    assert len(set(texts)) == len(texts)
    assert all(run.finished[key].complete for key in keys)


def test_the_end_of_text_may_be_drawn_exactly_where_the_grammar_may_end(run_of: Callable[..., EngineRun]) -> None:
    run = run_of(max_num_seqs=16)
    asked = {"structured_outputs": {"regex": "(ab)+"}, "logit_bias": {EOS: 100.0}}
    ended = [run.add(question, 30, **asked, **HOT) for question in QUESTIONS]
    ignored = [run.add(question, 30, ignore_eos=True, **asked, **HOT) for question in QUESTIONS]
    least = [run.add(question, 30, min_tokens=5, **asked, **HOT) for question in QUESTIONS]
    whole = [run.add(question, 30, ignore_eos=True, structured_outputs={"regex": "abc"}) for question in QUESTIONS]
    run.finish()
    assert {text(run, key) for key in ended} == {"ab"}
    assert {run.ended[key] for key in ended} == {"stop"}
    assert {text(run, key) for key in ignored} == {"ab" * 15}
    assert {run.ended[key] for key in ignored} == {"length"}
    assert {text(run, key) for key in least} == {"ababab"}
    assert {(text(run, key), run.ended[key]) for key in whole} == {("abc", "stop")}


def test_other_fields_choose_among_what_the_grammar_allows(run_of: Callable[..., EngineRun]) -> None:
    run = run_of()
    letters = [ord(letter) - 27 for letter in "abz"]
    grammar = {"structured_outputs": {"regex": "[a-f]{6}"}}
    cases = [
        ({"allowed_token_ids": letters}, "[ab]{6}"),
        ({"bad_words_ids": [[letters[0]], [letters[1]]]}, "[c-f]{6}"),
        ({"logit_bias": {letters[0]: 100.0}}, "a{6}"),
        ({"stop_token_ids": [ord("c") - 27], "logit_bias": {ord("c") - 27: 100.0}}, "c"),
        ({"frequency_penalty": 2.0, "presence_penalty": 2.0, "repetition_penalty": 1e6}, "[a-f]{6}"),
    ]
    keys = [run.add(QUESTIONS[i], 12, **grammar, **fields, **HOT) for i, (fields, _) in enumerate(cases)]
    empty = run.add(QUESTIONS[0], 12, **grammar, allowed_token_ids=[letters[2]])
    scored = run.add(QUESTIONS[1], 12, **grammar, prompt_logprobs=0, logprobs=1)
    run.finish()
    for key, (fields, expected) in zip(keys, cases, strict=True):
        assert re.fullmatch(expected, text(run, key)), (fields, text(run, key))
    assert (run.ended[empty], run.answers[empty]) == ("error", [])
    assert "allow no token" in str(run.finished[empty].message)
    assert re.fullmatch("[a-f]{6}", text(run, scored))
    assert any(row.ranks[0] > 6 for row in run.logprobs[scored])  # of the logits before they were masked


@pytest.mark.parametrize("speculative", [{}, {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}])
def test_a_grammar_that_comes_to_a_dead_end_never_looks_finished(
    run_of: Callable[..., EngineRun], speculative: dict[str, Any]
) -> None:
    """However much the model wants to end there; beside others, which go on."""
    run = run_of(max_num_seqs=8, **speculative)
    wants = {"logit_bias": {EOS: 50.0, ord("b") - 27: 100.0}}
    dead = {"structured_outputs": {"grammar": 'start: ("ab")+ ["c" rest::0x0]\nrest::_: "d" %if bit_set(0)'}}
    dying = [
        run.add(QUESTIONS[0], 20, **dead, logit_bias={EOS: 50.0, ord("b") - 27: 100.0, ord("c") - 27: 99.0}),
        run.add(QUESTIONS[1], 20, **dead, ignore_eos=True, logit_bias={ord("c") - 27: 100.0}),
    ]
    ending = run.add(QUESTIONS[2], 20, **dead, **wants)
    other = run.add(QUESTIONS[3], 20, structured_outputs={"regex": "(ab){6}"}, **wants)
    plain = run.add(QUESTIONS[4], 20, ignore_eos=True)
    run.finish()
    for key in dying:
        assert text(run, key) == "abc"
        assert (run.ended[key], run.finished[key].failure, run.finished[key].param) == ("error", "dead_end", "")
        assert "no end" in str(run.finished[key].message)
    assert (text(run, ending), run.ended[ending]) == ("ab", "stop")
    assert (text(run, other), run.ended[other]) == ("ab" * 6, "stop")
    assert len(run.answers[plain]) == 20


def test_a_grammar_that_cannot_be_used_is_the_client_s_error(run_of: Callable[..., EngineRun]) -> None:
    run = run_of()
    first = run.add(QUESTIONS[0], 5, structured_outputs={"regex": "a"})  # the tokenizer is loaded for it
    bad = run.add(QUESTIONS[1], 5, structured_outputs={"regex": "(a"})  # so this one is compiled later
    last = run.add(QUESTIONS[2], 5, structured_outputs={"regex": "b"})
    run.finish()
    assert run.finished[bad].param == "structured_outputs.regex"
    assert run.finished[bad].message == "structured_outputs.regex cannot be used: unclosed group (at character 1)."
    assert (text(run, first), text(run, last)) == ("a", "b")


# ---- many tokens -----------------------------------------------------------------------------------------------------

MERGES = ("th", "he", "in", "er", "an", "re", "on", "at", "en", "nd", "the", "and", "00", "12", '{"', '": ', '"}')


def odd_vocabulary(folder: Path, model: Path) -> Path:
    """The tiny Llama's configuration over a byte-level BPE of 257 + len(MERGES) tokens, no multiple of 32."""
    config = json.loads((model / "config.json").read_text())
    described = json.loads(byte_level().to_str())
    vocabulary = described["model"]["vocab"]
    alphabet = {byte: character for character, byte in vocabulary.items()}
    for number, word in enumerate(MERGES):
        vocabulary["".join(alphabet[byte] for byte in word.encode())] = END + 1 + number
    size = END + 1 + len(MERGES)
    assert size % 32
    (folder / "tokenizer.json").write_text(json.dumps(described))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": size, "eos_token_id": END}))
    tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    return folder


def test_reasoning_comes_first_and_ends_by_its_budget(run_of: Callable[..., EngineRun]) -> None:
    """A random model never ends it by itself."""
    run = run_of(max_num_seqs=4)
    thinking = {"reasoning": ReasoningParams("<think>", "</think>", begun=True), **HOT}
    keys = {}
    for i, question in enumerate(QUESTIONS):
        grammar = GRAMMARS[i % 4] if i % 3 else None
        budget = 3 + i
        keys[i] = run.add(question, 60, seed=i, structured_outputs=grammar, thinking_token_budget=budget, **thinking)
    run.finish()
    for i, key in keys.items():
        within, end, answer = text_of(run.answers[key]).partition("</think>")
        assert end, within
        assert EOS not in run.answers[key][: 3 + i] or not i % 3
        if i % 3:
            assert allowed(GRAMMARS[i % 4], text(run, key).partition("</think>")[2]), answer


MANY: list[dict[str, Any]] = [
    {"regex": r"\{\"name\": \"[a-z]{1,12}\", \"size\": -?[0-9]{1,6}(\.[0-9]+)?\}"},
    {"regex": "([A-Z][a-z]* ){3,40}(end|fin)"},
    {"regex": r"[^\n]{20,60}"},
    {"regex": "(the|and|then|in)( (the|and|then|in))*"},
    {"choice": ["a", "and", "an", "another", "the end", "été", "日本語"]},
    {"json": {"type": "object", "properties": {"id": {"type": "integer"}, "tags": {"type": "array", "maxItems": 3,
              "items": {"type": "string", "maxLength": 8}}}, "required": ["id", "tags"]}},
    {"grammar": 'root ::= "[" (item | root)* "]"\nitem ::= "a" "b"?'},
    {"structural_tag": {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<f"], "tags": [
        {"begin": "<f>", "content": {"type": "json_schema", "json_schema": {
            "type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}}, "end": "</f>"}],
        "at_least_one": True, "stop_after_first": True}}},
]  # fmt: skip


@pytest.mark.parametrize(
    ("which", "wanted"),
    [
        ("odd", 3_000),
        pytest.param("odd", 100_000, marks=pytest.mark.nightly),
        pytest.param("demo", 100_000, marks=pytest.mark.nightly),
        ("demo", 3_000),
    ],
)
def test_no_token_is_outside_the_grammar(which: str, wanted: int, llama: Path, tmp_path: Path) -> None:
    """Drawn at temperature 1.5; an answer that was cut off must be the beginning of one that the grammar allows, which
    the matcher of another request says: it continues from there to an answer that matches."""
    model = None if which == "demo" else odd_vocabulary(tmp_path, llama)
    drawn, seed = 0, 0
    load = {} if which == "demo" else {"load_format": "dummy"}
    with LLM(model, platform=PLATFORMS["cpu"], dtype="float32", max_num_seqs=64, steps_in_flight=2, **load) as llm:
        while drawn < wanted:
            params = [
                SamplingParams(temperature=1.5, seed=seed + i, max_tokens=120, structured_outputs=MANY[i % len(MANY)])
                for i in range(64)
            ]
            seed += 64
            for output, asked in zip(llm.generate(["Once"] * 64, params, use_tqdm=False), params, strict=True):
                (answer,) = output.outputs
                drawn += len(answer.token_ids)
                grammar = MANY[params.index(asked) % len(MANY)]
                if answer.finish_reason == "stop":
                    assert allowed(grammar, answer.text), answer.text
                else:
                    assert answer.finish_reason == "length"
                    assert begins(grammar, answer.text), answer.text


def begins(grammar: dict[str, Any], said: str) -> bool:
    """Whether a text may begin what a grammar allows, by a matcher over single bytes."""
    from tessera.sampling_params import StructuredOutputsParams
    from tessera.text.grammar import byte_tokenizer, compile_grammar

    matcher = compile_grammar(StructuredOutputsParams(**grammar), byte_tokenizer())
    return matcher.consume_tokens(list(said.encode().removesuffix("\ufffd".encode())))
