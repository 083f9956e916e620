"""LLM on a tiny model with random weights: what a notebook's user writes; the server's engine says the same."""

from __future__ import annotations

import inspect
import json
import re
import tempfile
import threading
import time

import msgspec
import pytest
import zmq

from tessera.config import build_config
from tessera.config.engine import ENGINE_FLAGS
from tessera.engine.async_engine import AsyncEngine
from tessera.errors import ConfigError, EngineDeadError, ModelError, RequestError
from tessera.llm import LLM
from tessera.sampling_params import RequestOutputKind, SamplingParams
from tessera.text.worker import Start
from tessera.text.workers import TextWorkers
from tests.unit.engine.bytewise import END, NUM_TOKENS, byte_level

PLATFORM = "tessera_cpu.platform:CpuPlatform"
OPTIONS = {"load_format": "dummy", "platform": PLATFORM, "dtype": "float32", "kv_cache_memory_bytes": 1 << 22}
GREEDY = SamplingParams(temperature=0, max_tokens=8)
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}:{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 12,
        "vocab_size": NUM_TOKENS,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "torch_dtype": "float32",
        "eos_token_id": END,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }
    (path / "config.json").write_text(json.dumps(config))
    (path / "generation_config.json").write_text(json.dumps({"temperature": 0.25, "top_k": 3}))
    (path / "tokenizer.json").write_text(byte_level().to_str())
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>", "chat_template": TEMPLATE}))
    return path


@pytest.fixture(scope="module")
def llm(folder):
    with LLM(folder, **OPTIONS) as llm:
        yield llm


def tokens(outputs):
    return [output.outputs[0].token_ids for output in outputs]


def test_each_request_takes_a_copy_of_parameters_that_are_changed_later(llm):
    params = SamplingParams(temperature=0, max_tokens=2)
    llm.enqueue("Hello", params)
    params.max_tokens = 5
    llm.enqueue("Hello", params)
    params.temperature = -1
    short, long = llm.wait_for_completion(use_tqdm=False)
    assert tokens([long])[0][:2] == tokens([short])[0]
    assert (len(tokens([short])[0]), len(tokens([long])[0])) == (2, 5)
    for call in (llm.generate, llm.enqueue):
        with pytest.raises(RequestError, match="temperature must be at least 0, got -1"):
            call("Hello", params)
    assert params.output_kind == RequestOutputKind.CUMULATIVE


def test_the_last_tokens_of_a_prompt_are_kept(llm):
    params = SamplingParams(temperature=0, max_tokens=8, truncate_prompt_tokens=5)
    long = "x" * 500 + "Hello"
    (plain,) = llm.generate("Hello", GREEDY, use_tqdm=False)
    for prompt in (long, list(long.encode())):
        (cut,) = llm.generate(prompt, params, use_tqdm=False)
        assert cut.prompt_token_ids == list(b"Hello")
        assert tokens([cut]) == tokens([plain])
    (begun,) = llm.generate(long, SamplingParams(truncate_prompt_tokens=3, truncation_side="right"), use_tqdm=False)
    assert begun.prompt_token_ids == list(b"xxx")
    params.truncate_prompt_tokens = -1
    (fits,) = llm.chat([{"role": "user", "content": long}], params, False)
    assert len(fits.prompt_token_ids) == 128 - 8
    with pytest.raises(RequestError, match="truncate_prompt_tokens must be 1 to 128"):
        llm.generate(long, SamplingParams(truncate_prompt_tokens=200))
    with pytest.raises(RequestError, match="maximum context length is 128"):
        llm.generate(long, GREEDY)


def test_conversations_may_be_queued(llm):
    conversations = [[{"role": "user", "content": text}] for text in ("a", "b")]
    ids = llm.enqueue_chat(conversations, GREEDY, add_generation_prompt=True)
    queued = llm.wait_for_completion(use_tqdm=False)
    assert [output.request_id for output in queued] == ids
    assert tokens(queued) == tokens(llm.chat(conversations, GREEDY, use_tqdm=False))
    with pytest.raises(RequestError, match="tokenization_kwargs: use SamplingParams"):
        llm.enqueue_chat(conversations, GREEDY, tokenization_kwargs={"a": 1})
    with pytest.raises(TypeError, match="LLM.chat.. got an unexpected keyword argument 'tool'"):
        llm.chat(conversations, GREEDY, tool=[])


def test_keywords_that_vllm_s_callers_pass(folder):
    import torch

    options = {**OPTIONS, "dtype": torch.float32, "disable_log_stats": True, "enable_expert_parallel": False}
    with pytest.warns(UserWarning, match="disable_log_stats has no effect: statistics are in") as seen:
        llm = LLM(folder, **options)
    assert [warning.filename for warning in seen] == [__file__]
    with llm:
        assert llm.generate("Hello", GREEDY, use_tqdm=False, tokenization_kwargs=None)[0].finished
    with pytest.raises(ConfigError, match="dtype must be one of auto, bfloat16, .* got 'int8'"):
        LLM(folder, **{**OPTIONS, "dtype": torch.int8})


def test_a_prompt_may_be_written_in_many_ways(llm):
    ids = list(b"Hello")
    expected = tokens(llm.generate("Hello", GREEDY))
    assert len(expected[0]) == 8
    for prompts in (["Hello"], ids, [ids], {"prompt": "Hello"}, [{"prompt_token_ids": ids}]):
        assert tokens(llm.generate(prompts, GREEDY, use_tqdm=False)) == expected
    assert tokens(llm.generate(prompt_token_ids=[ids], sampling_params=GREEDY)) == expected
    assert tokens(llm.generate(prompt_token_ids=ids, sampling_params=GREEDY)) == expected
    assert llm.generate([], GREEDY) == []


@pytest.mark.parametrize("given", [(), (None,), (5,), ([{"text": "a"}],), ([None],), (b"bytes",), ([b"a"],)])
def test_what_is_no_prompt_is_refused(llm, given):
    with pytest.raises(RequestError):
        llm.generate(*given, sampling_params=GREEDY)


@pytest.mark.parametrize("word", ["x", "xx"])
def test_fields_that_leave_nothing_to_draw_are_named(llm, word):
    """From the first token on, or once the answer is an x."""
    asked = SamplingParams(temperature=0, max_tokens=4, allowed_token_ids=[ord("x")], bad_words=[word])
    with pytest.raises(RequestError, match="No token is left to draw by allowed_token_ids and bad_words") as refused:
        llm.generate(["a", "b"], [GREEDY, asked])
    assert refused.value.param == "allowed_token_ids"


def test_outputs_are_in_order_with_a_text_and_its_tokens(llm):
    prompts = [f"Prompt {number}" for number in range(30)]
    outputs = llm.generate(
        prompts, [SamplingParams(max_tokens=number % 5 + 1, ignore_eos=True) for number in range(30)]
    )
    assert [output.prompt for output in outputs] == prompts
    assert [len(ids) for ids in tokens(outputs)] == [number % 5 + 1 for number in range(30)]
    tokenizer = llm.get_tokenizer()
    for output in outputs:
        assert output.finished
        text = output.outputs[0].text
        # Part of a character at the end of a text that was cut is left out.
        assert tokenizer.decode(output.outputs[0].token_ids) in (text, f"{text}\ufffd")


def test_parameters_and_priorities_must_be_as_many_as_prompts(llm):
    with pytest.raises(RequestError, match="Got 2 prompts but 1 sampling_params"):
        llm.generate(["a", "b"], [GREEDY])
    with pytest.raises(RequestError, match="2 prompts but 3 priority"):
        llm.generate(["a", "b"], GREEDY, priority=[1, 2, 3])


def test_a_wrong_prompt_among_many_is_refused_before_anything_runs(llm):
    before = {metric.name: metric.value for metric in llm.get_metrics()}["prompt_tokens"]
    with pytest.raises(RequestError, match="maximum context length is 128 tokens"):
        llm.generate(["a", "b" * 200], GREEDY)
    assert {metric.name: metric.value for metric in llm.get_metrics()}["prompt_tokens"] == before


def test_an_answer_that_cannot_be_completed_names_its_prompt_and_others_are_answered_later(llm):
    dead = SamplingParams(structured_outputs={"grammar": 'start: "a" rest::0x0\nrest::_: "b" %if bit_set(0)'})
    with pytest.raises(RequestError, match=r"^prompts\[1\]: The answer cannot be completed") as refused:
        llm.generate(["Hello", "Hello"], [SamplingParams(max_tokens=4), dead], use_tqdm=False)
    assert refused.value.code == "dead_end"
    (output,) = llm.generate(["Hello"], SamplingParams(max_tokens=4, ignore_eos=True), use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 4


def test_what_is_enqueued_is_answered_in_order_and_once(llm):
    params = [SamplingParams(temperature=0, max_tokens=number, ignore_eos=True) for number in (5, 2)]
    expected = tokens(llm.generate(["a", "b", "Hello"], [*params, GREEDY]))
    ids = llm.enqueue(["a", "b"], params) + llm.enqueue({"prompt": "Hello"}, GREEDY)
    assert tokens(llm.generate("Hello", GREEDY)) == expected[2:], "a call between leaves it alone"
    outputs = llm.wait_for_completion()
    assert tokens(outputs) == expected
    assert [output.request_id for output in outputs] == ids
    assert len(set(ids)) == 3
    assert llm.wait_for_completion() == []


def test_of_a_wrong_prompt_among_many_none_is_enqueued(llm):
    with pytest.raises(RequestError, match=r"prompts\[1\]: .*maximum context length is 128 tokens"):
        llm.enqueue(["a", "b" * 200], GREEDY)
    assert llm.wait_for_completion() == []


def test_what_was_enqueued_is_forgotten_where_a_wait_is_interrupted(llm, monkeypatch):
    llm.enqueue("Hello", GREEDY)
    with monkeypatch.context() as patch:
        patch.setattr(llm._offline, "_feed", lambda waiting: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            llm.wait_for_completion()
    assert llm.wait_for_completion() == []
    assert len(tokens(llm.generate("Hello", GREEDY))[0]) == 8


def test_without_parameters_it_takes_the_models_own(llm):
    default = llm.get_default_sampling_params()
    assert (default.temperature, default.top_k, default.max_tokens) == (0.25, 3, 16)
    assert len(tokens(llm.generate("a"))[0]) <= 16


def test_a_seed_repeats_and_n_answers_differ(llm):
    params = SamplingParams(n=4, seed=11, max_tokens=12)
    first, again = (llm.generate("Hello", params)[0] for _ in range(2))
    texts = [completion.text for completion in first.outputs]
    assert texts == [completion.text for completion in again.outputs]
    assert len(set(texts)) == 4


def test_a_stop_string_ends_the_text(llm):
    whole = llm.generate("Hello", SamplingParams(temperature=0, max_tokens=30, detokenize=True))[0].outputs[0]
    stop = next(char for char in whole.text[3:] if char not in whole.text[:3] and char != "\ufffd")
    cut = llm.generate("Hello", SamplingParams(temperature=0, max_tokens=30, stop=stop))[0].outputs[0]
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", stop)


def test_chat_goes_through_the_template(llm):
    conversation = [{"role": "user", "content": "Hi"}]
    (output,) = llm.chat(conversation, GREEDY)
    assert output.prompt == "user:Hi\nassistant:"
    both = llm.chat([conversation, [*conversation, {"role": "assistant", "content": "Ho"}]], GREEDY)
    assert [output.prompt for output in both] == ["user:Hi\nassistant:", "user:Hi\nassistant:Ho\nassistant:"]
    (output,) = llm.chat(
        [*conversation, {"role": "assistant", "content": "Ho"}],
        GREEDY,
        add_generation_prompt=False,
        continue_final_message=True,
    )
    assert output.prompt == "user:Hi\nassistant:Ho"
    (output,) = llm.chat(conversation, GREEDY, chat_template="{{ messages[0].content }}!")
    assert output.prompt == "Hi!"


def test_the_bar_says_how_fast_it_is(llm, capfd):
    llm.generate(["a", "b"], GREEDY)
    written = capfd.readouterr().err
    assert re.search(
        r"Processed prompts: 100%.* 2/2 .*est\. speed input: [\d.]+ toks/s, output: [\d.]+ toks/s", written
    )
    llm.generate(["a", "b"], GREEDY, use_tqdm=False)
    assert capfd.readouterr().err == ""


async def test_it_works_in_a_running_event_loop(llm):
    assert len(tokens(llm.generate("Hello", GREEDY))[0]) == 8


def test_a_second_one_works_beside_and_after_the_first(llm, folder):
    expected = tokens(llm.generate("Hello", GREEDY))
    for _ in range(2):
        with LLM(str(folder), **OPTIONS) as other:
            assert tokens(other.generate("Hello", GREEDY)) == expected
            assert tokens(llm.generate("Hello", GREEDY)) == expected
        with pytest.raises(EngineDeadError, match="closed"):
            other.generate("Hello", GREEDY)


def test_without_a_tokenizer_it_takes_and_gives_ids(llm, folder):
    with LLM(folder, skip_tokenizer_init=True, **OPTIONS) as bare:
        (output,) = bare.generate(prompt_token_ids=[list(b"Hello")], sampling_params=GREEDY)
        assert (output.prompt, output.outputs[0].text) == (None, "")
        assert [output.outputs[0].token_ids] == tokens(llm.generate("Hello", GREEDY))
        for call in (lambda: bare.generate("Hello"), bare.get_tokenizer, lambda: bare.chat([])):
            with pytest.raises(RequestError, match="tokenizer"):
                call()


def test_an_unknown_keyword_names_the_nearest():
    with pytest.raises(TypeError, match=r"argument 'max_model_length'; did you mean 'max_model_len'"):
        LLM(max_model_length=5)


# They say whom a server turns away, while an offline call starts no more than the engine takes; or name adapters, which
# an offline call names by their folders; or are for what outlives a call.
FOR_SERVERS = {
    *("max_waiting", "max_num_queued_tokens", "lora_modules", "data_parallel_size", "sticky_cache_salt"),
    *("nnodes", "node_rank", "master_addr", "master_port", "cluster_key_file", "kv_transfer_config"),
}


def test_its_keywords_are_the_engines_flags_and_reach_it(monkeypatch):
    given = {flag.name: f"of {flag.name}" for flag in ENGINE_FLAGS if flag.name not in FOR_SERVERS}
    assert list(inspect.signature(LLM).parameters) == ["model", *given]
    reached = {}

    def refuse(model, **flags):
        reached.update(flags)
        raise ModelError("seen")

    monkeypatch.setattr("tessera.llm.llm.build_config", refuse)
    with pytest.raises(ModelError, match="seen"):
        LLM(**given)
    assert reached == given
    with pytest.raises(ConfigError, match="max_waiting: LLM takes any number of prompts; remove it."):
        LLM(max_waiting=5)


def test_objects_are_open_where_the_engine_says_so_and_the_schema_does_not(llm, folder):
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
    params = SamplingParams(n=8, temperature=2.0, seed=3, max_tokens=40, structured_outputs={"json": schema})
    (closed,) = llm.generate("Hello", params)
    assert all(json.loads(answer.text) == {"a": 1} for answer in closed.outputs)
    with LLM(folder, allow_additional_properties=True, **OPTIONS) as opened:
        (answered,) = opened.generate("Hello", params)
        assert any("," in answer.text for answer in answered.outputs)
        params.structured_outputs = {"json": schema, "disable_additional_properties": True}
        (closed,) = opened.generate("Hello", params)
        assert all(json.loads(answer.text) == {"a": 1} for answer in closed.outputs)


def test_a_missing_model_is_one_line(tmp_path):
    with pytest.raises(ModelError):
        LLM(tmp_path / "nowhere")


def test_without_a_model_it_is_the_demo(folder, monkeypatch):
    monkeypatch.setattr("tessera.config.locate.demo_folder", lambda: folder)
    with LLM(**OPTIONS) as demo:
        assert len(tokens(demo.generate("Hello", GREEDY))[0]) == 8


async def test_the_engine_in_its_own_process_says_the_same(llm, folder):
    options = {**OPTIONS, "model": str(folder)}
    begin = time.monotonic()
    text = TextWorkers(Start(str(folder)))
    engine = await AsyncEngine.start(build_config(**options), text=text)
    try:
        for params in (GREEDY, SamplingParams(seed=5, max_tokens=20, stop="a")):
            streamed = SamplingParams(
                temperature=params.temperature,
                seed=params.seed,
                stop=params.stop,
                max_tokens=params.max_tokens,
                output_kind=RequestOutputKind.DELTA,
            )
            answer = "".join([output.outputs[0].text async for output in engine.generate("Hello", streamed)])
            assert answer == llm.generate("Hello", params)[0].outputs[0].text
        assert engine.info.platform == "cpu"
        assert sum(engine.info.phases.values()) < time.monotonic() - begin
    finally:
        await engine.shutdown()
        await text.close()


def test_a_call_can_be_ended_from_another_thread(llm):
    """Of more prompts than run at once: some had begun, some had not."""
    steps = []
    step = llm._offline._engine_step

    def counted():
        steps.append(1)
        if len(steps) == 5:
            threading.Thread(target=llm.abort).run()
        return step()

    llm._offline._engine_step = counted
    try:
        outputs = llm.generate(["Hello"] * 300, SamplingParams(temperature=0, max_tokens=60, ignore_eos=True))
    finally:
        del llm._offline._engine_step
    assert len(outputs) == 300
    assert {output.outputs[0].finish_reason for output in outputs} == {"abort"}
    assert 0 < len(outputs[0].outputs[0].token_ids) < 60
    assert outputs[-1].outputs[0].token_ids == []
    assert len(tokens(llm.generate("Hello", GREEDY))[0]) == 8, "the next call is not ended"


def test_a_reset_cache_knows_nothing(llm):
    prompt = "x" * 64
    cached = []
    for reset in (False, False, True):
        if reset:
            assert llm.reset_prefix_cache()
        cached.append(llm.generate(prompt, GREEDY)[0].num_cached_tokens)
    assert cached[1] > 0
    assert cached[2] == 0


async def test_an_async_engine_tells_of_itself(folder):
    config = build_config(model=str(folder), **OPTIONS)
    text = TextWorkers(Start(config.model.tokenizer))
    engine = await AsyncEngine.start(config, text=text)
    try:
        assert engine.is_running
        await engine.check_health()
        assert (await engine.get_tokenizer()).encode("yy") == (await text.encode(["yy"]))[0]
        cached = []
        for salt in ("one", "one", "other", ""):
            async for output in engine.generate("y" * 64, GREEDY, cache_salt=salt):
                last = output
            cached.append(last.num_cached_tokens)
        assert cached[0] == cached[2] == cached[3] == 0, "another tenant's identical prompt is computed again"
        assert cached[1] > 0
    finally:
        await engine.shutdown()
        await text.close()
    assert not engine.is_running
    with pytest.raises(EngineDeadError):
        await engine.check_health()


def test_events_say_what_the_cache_has_of_a_prompt(folder, tmp_path_factory):
    with tempfile.TemporaryDirectory(prefix="kv-") as sockets, zmq.Context() as context:
        where = {"endpoint": f"ipc://{sockets}/events", "replay_endpoint": f"ipc://{sockets}/replay"}
        events = {"enable_kv_cache_events": True, **where}
        llm = LLM(folder, **OPTIONS, block_size=8, kv_events_config=events)
        with context.socket(zmq.DEALER) as replay:
            replay.connect(where["replay_endpoint"])
            prompt = [*range(1, 21)]
            llm.generate(prompt, GREEDY, use_tqdm=False)
            stored = {}
            for _ in range(50):
                time.sleep(0.02)
                replay.send_multipart((b"", (0).to_bytes(8, "big")))
                while (parts := replay.recv_multipart())[3]:
                    for event in msgspec.msgpack.decode(parts[3])[1]:
                        if event["type"] == "BlockStored":
                            stored[event["block_hashes"][0]] = event
                if stored:
                    break
        llm.close()
    (event, *_) = stored.values()
    assert event["token_ids"][:16] == prompt[:16]
    assert event["parent_block_hash"] is None
    assert (event["group_idx"], event["block_size"], event["medium"]) == (0, 8, None)
