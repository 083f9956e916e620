"""From the engine's tokens to answers: text, stop strings, ends, output kinds, n, log probabilities."""

from __future__ import annotations

from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.arrays import int32
from tessera.engine import logprobs
from tessera.engine.messages import EngineStats
from tessera.engine.metrics import EngineMetrics
from tessera.errors import EngineDeadError, EngineStepError, OverloadedError, QueuedTokensError, RequestError
from tessera.platform.feature import FeatureCounter
from tessera.request import Logprob
from tessera.sampling_params import RequestOutputKind, SamplingParams
from tessera.scheduler.outputs import FinishedRequest, RequestLogprobs, SchedulerCounters, StartedRequest
from tessera.step import RowLogprobs
from tests.unit.engine.bytewise import END, byte_tokenizer, front_end, step

TOKENIZER = byte_tokenizer()
CUMULATIVE, DELTA, FINAL_ONLY = RequestOutputKind
TEXTS = st.text(st.sampled_from("abc é漢😀"), max_size=20)


def begin(params, prompt="Hi", tokenizer=TOKENIZER):
    front = front_end(tokenizer)
    text = prompt if isinstance(prompt, str) else None
    ids = prompt if text is None else TOKENIZER.encode(text)
    state = front.submit(front.prepare(ids, params, text=text), params, "r", arrival=10.0)
    return front, state


def feed(front, state, steps, *, finish=None):
    """Feeds an only answer's steps, takes after each; the outputs and the aborted keys."""
    key = state.requests[0].key
    outputs, aborted = [], []
    for number, tokens in enumerate(steps):
        ends = [FinishedRequest(key, *finish)] if finish and number == len(steps) - 1 else []
        update = front.update(step({key: tokens}, finished=ends), 11.0 + number)
        aborted += update.abort
        output = state.take() if update.changed else None
        if output is not None:
            outputs.append(output)
    return outputs, aborted


def chunked(tokens, cuts):
    edges = [0, *sorted(cut % (len(tokens) + 1) for cut in cuts), len(tokens)]
    return [tokens[a:b] for a, b in pairwise(edges)]


@given(TEXTS, st.lists(st.integers(0, 99), max_size=5), st.sampled_from(RequestOutputKind))
def test_any_chunking_gives_the_same_text(text, cuts, kind):
    tokens = [*text.encode(), END]
    front, state = begin(SamplingParams(max_tokens=90, output_kind=kind))
    outputs, aborted = feed(front, state, chunked(tokens, cuts), finish=("stop",))
    texts = [output.outputs[0].text for output in outputs]
    assert ("".join(texts) if kind is DELTA else texts[-1]) == text
    ids = [output.outputs[0].token_ids for output in outputs]
    assert (list(chain.from_iterable(ids)) if kind is DELTA else ids[-1]) == tokens
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    assert outputs[-1].outputs[0].finish_reason == "stop"
    assert outputs[-1].outputs[0].stop_reason is None
    assert aborted == []
    assert front.num_unfinished == 0


@given(
    TEXTS,
    st.lists(st.text(st.sampled_from("abc é漢😀"), min_size=1, max_size=3), min_size=1, max_size=3),
    st.lists(st.integers(0, 99), max_size=5),
    st.booleans(),
)
def test_the_first_stop_string_ends_the_text_however_tokens_come(text, stops, cuts, include):
    found = [(text.index(stop), -len(stop), stop) for stop in stops if stop in text]
    params = SamplingParams(max_tokens=90, stop=stops, include_stop_str_in_output=include, output_kind=DELTA)
    front, state = begin(params)
    tokens = list(text.encode())
    outputs, aborted = feed(front, state, chunked(tokens, cuts), finish=("length",))
    final = outputs[-1].outputs[0]
    shown = "".join(output.outputs[0].text for output in outputs)
    if not found:
        assert (shown, final.finish_reason, final.stop_reason) == (text, "length", None)
        return
    position, _, stop = min(found)
    assert shown == text[:position] + (stop if include else "")
    assert (final.finish_reason, final.stop_reason) == ("stop", stop)
    ids = [token for output in outputs for token in output.outputs[0].token_ids]
    assert ids == tokens[: len(ids)]
    assert stop in bytes(ids).decode(errors="ignore")
    assert aborted in ([], [state.requests[0].key])


def test_a_stop_string_aborts_in_the_engine_and_late_tokens_are_ignored():
    front, state = begin(SamplingParams(max_tokens=90, stop="END", output_kind=DELTA))
    key = state.requests[0].key
    assert front.update(step({key: list(b"One EN")}), 1.0).abort == []
    assert state.take().outputs[0].text == "One "
    assert front.update(step({key: list(b"D")}), 2.0).abort == [key]
    output = state.take()
    assert output.finished
    assert (output.outputs[0].text, output.outputs[0].stop_reason) == ("", "END")
    late = front.update(step({key: list(b"!")}, finished=[FinishedRequest(key, "abort")]), 3.0)
    assert (late.changed, late.abort) == ([], [])
    assert state.take() is None
    assert front.metrics.request_success == {"stop": 1, "length": 0, "abort": 0, "error": 0}


def test_an_answer_that_nothing_may_follow_is_the_request_s_error_and_is_counted():
    front, state = begin(SamplingParams(max_tokens=90, output_kind=DELTA))
    key = state.requests[0].key
    front.update(step({key: list(b"cut")}), 1.0)
    end = FinishedRequest(key, "error", message="No end.", param="", failure="dead_end")
    front.update(step({}, finished=[end]), 2.0)
    with pytest.raises(RequestError, match="No end") as refused:
        state.take()
    assert (refused.value.status, refused.value.code, refused.value.param) == (400, "dead_end", None)
    counted = {metric.label[1]: metric.value for metric in front.metrics.read() if metric.name == "request_failures"}
    assert counted == {"dead_end": 1, "too_complex": 0, "nothing_allowed": 0}
    assert front.metrics.request_success["stop"] == 0


def test_a_stop_string_does_not_count_within_min_tokens():
    front, state = begin(SamplingParams(max_tokens=90, min_tokens=4, stop="ab"))
    outputs, _ = feed(front, state, [list(b"abab"), list(b"cab")])
    assert outputs[-1].outputs[0].text == "ababc"
    assert outputs[-1].finished


def test_what_a_stop_string_held_back_comes_out_at_the_end():
    front, state = begin(SamplingParams(max_tokens=3, stop="abcd", output_kind=DELTA))
    outputs, _ = feed(front, state, [list(b"a"), list(b"b"), list(b"c")], finish=("length",))
    assert [output.outputs[0].text for output in outputs] == ["", "", "abc"]


@pytest.mark.parametrize(("reason", "text"), [("length", "a"), ("abort", "a"), ("stop", "a\ufffd")])
def test_half_a_character_at_the_end_is_left_out_unless_the_model_ended_there(reason, text):
    for kind in (DELTA, FINAL_ONLY):
        front, state = begin(SamplingParams(max_tokens=9, output_kind=kind))
        outputs, _ = feed(front, state, [[*"aé".encode()[:2], *([END] if reason == "stop" else [])]], finish=(reason,))
        assert "".join(output.outputs[0].text for output in outputs) == text, kind


@pytest.mark.parametrize(("include", "text"), [(False, "ab"), (True, "abc")])
def test_a_stop_token_leaves_its_text_only_where_asked(include, text):
    params = SamplingParams(stop_token_ids=[ord("c")], include_stop_str_in_output=include)
    front, state = begin(params)
    outputs, _ = feed(front, state, [list(b"abc")], finish=("stop", ord("c")))
    final = outputs[-1].outputs[0]
    assert (final.text, final.token_ids, final.stop_reason) == (text, list(b"abc"), ord("c"))


def test_special_tokens_show_only_where_asked():
    for skip, text in ((True, "ab"), (False, "a<|end|>b")):
        front, state = begin(SamplingParams(ignore_eos=True, skip_special_tokens=skip))
        outputs, _ = feed(front, state, [[97, END, 98]], finish=("length",))
        assert outputs[-1].outputs[0].text == text


@pytest.mark.parametrize("tokenizer", [TOKENIZER, None])
def test_without_detokenizing_there_are_ids_and_no_text(tokenizer):
    front, state = begin(SamplingParams(detokenize=False), prompt=[1, 2], tokenizer=tokenizer)
    outputs, _ = feed(front, state, [[97], [98]], finish=("length",))
    assert (outputs[-1].outputs[0].text, outputs[-1].outputs[0].token_ids) == ("", [97, 98])
    assert (outputs[-1].prompt, outputs[-1].prompt_token_ids) == (None, [1, 2])


def test_a_slow_reader_finds_all_at_once():
    front, state = begin(SamplingParams(max_tokens=90, output_kind=DELTA))
    key = state.requests[0].key
    for token in b"slow":
        front.update(step({key: [token]}), 1.0)
    output = state.take()
    assert (output.outputs[0].text, output.outputs[0].token_ids) == ("slow", list(b"slow"))
    assert state.take() is None


def test_n_answers_grow_and_end_apart():
    front, state = begin(SamplingParams(n=2, seed=1, output_kind=DELTA))
    first, second = (request.key for request in state.requests)
    front.update(step({second: [98]}), 1.0)
    output = state.take()
    assert [(one.index, one.text) for one in output.outputs] == [(1, "b")]
    front.update(step({first: [97], second: [98]}, finished=[FinishedRequest(second, "length")]), 2.0)
    output = state.take()
    assert [(one.index, one.text, one.finish_reason) for one in output.outputs] == [(0, "a", None), (1, "b", "length")]
    assert not output.finished
    front.update(step({first: [END]}, finished=[FinishedRequest(first, "stop")]), 3.0)
    output = state.take()
    assert [(one.index, one.finish_reason) for one in output.outputs] == [(0, "stop")]
    assert output.finished


def test_final_only_waits_for_all_answers():
    front, state = begin(SamplingParams(n=2, seed=1, output_kind=FINAL_ONLY))
    first, second = (request.key for request in state.requests)
    front.update(step({first: [97], second: [98]}, finished=[FinishedRequest(first, "length")]), 1.0)
    assert state.take() is None
    front.update(step({second: [98]}, finished=[FinishedRequest(second, "length")]), 2.0)
    assert [one.text for one in state.take().outputs] == ["a", "bb"]


def test_log_probabilities_are_by_token_with_the_drawn_one_first():
    front, state = begin(SamplingParams(max_tokens=9, logprobs=2, output_kind=DELTA))
    key = state.requests[0].key
    rows = RowLogprobs(
        0, int32([[99, 97, 98], [97, 97, 98]]), np.float32([[-3, -1, -2], [-0.5, -0.5, -2]]), int32([5, 1])
    )
    front.update(step({key: [99, 97]}, logprobs=[RequestLogprobs(key, rows)]), 1.0)
    output = state.take().outputs[0]
    assert list(output.logprobs) == [
        {99: Logprob(-3, 5, "c"), 97: Logprob(-1, 1, "a"), 98: Logprob(-2, 2, "b")},
        {97: Logprob(-0.5, 1, "a"), 98: Logprob(-2, 2, "b")},
    ]
    assert output.cumulative_logprob == -3.5
    rows = RowLogprobs(0, int32([[END, 1, 2]]), np.float32([[-1, -2, -3]]), int32([1]))
    finished = [FinishedRequest(key, "stop")]
    front.update(step({key: [END]}, logprobs=[RequestLogprobs(key, rows)], finished=finished), 2.0)
    output = state.take().outputs[0]
    assert [list(position) for position in output.logprobs] == [[END, 1, 2]]
    assert output.cumulative_logprob == -4.5


def test_entries_of_log_probabilities_are_made_for_whoever_reads_them(monkeypatch):
    made = []
    by_token = logprobs.by_token
    monkeypatch.setattr(logprobs, "by_token", lambda *given: made.append(given) or by_token(*given))
    front, state = begin(SamplingParams(max_tokens=9, logprobs=1, output_kind=CUMULATIVE))
    key = state.requests[0].key
    rows = RowLogprobs(0, int32([[97, 98], [98, 97]]), np.float32([[-1, -2], [-3, -4]]), int32([1, 2]))
    front.update(step({key: [97, 98]}, logprobs=[RequestLogprobs(key, rows)]), 1.0)
    first = state.take().outputs[0]
    front.update(step({key: [97]}, logprobs=[RequestLogprobs(key, rows)]), 2.0)
    assert (len(first.logprobs), first.logprobs.width, state.num_unread, made) == (2, 2, 2, [])
    assert [entry[98].logprob for entry in first.logprobs[:2]] == [-2, -3]
    assert len(made) == 2
    assert len(state.take().outputs[0].logprobs) == 3


def test_log_probabilities_end_where_a_stop_string_ends_the_tokens():
    front, state = begin(SamplingParams(max_tokens=9, logprobs=0, stop="b"))
    key = state.requests[0].key
    rows = RowLogprobs(0, int32([[97], [98], [99]]), np.float32([[-1], [-2], [-4]]), int32([1, 1, 1]))
    front.update(step({key: list(b"abc")}, logprobs=[RequestLogprobs(key, rows)]), 1.0)
    output = state.take().outputs[0]
    assert (output.token_ids, len(output.logprobs), output.cumulative_logprob) == ([97, 98], 2, -3.0)


def test_a_failed_answer_ends_the_request_with_an_error():
    front, state = begin(SamplingParams(n=2, seed=1))
    first, second = (request.key for request in state.requests)
    update = front.update(step({}, finished=[FinishedRequest(first, "error", None, "The row overflowed.")]), 1.0)
    assert update.abort == [second]
    with pytest.raises(EngineStepError, match="The row overflowed"):
        state.take()
    assert front.num_unfinished == 0


def test_a_refused_request_ends_with_the_refusal():
    front, state = begin(SamplingParams())
    update = front.fail(state.requests[0].key, OverloadedError("Too many wait."), 1.0)
    assert update.changed == [state]
    with pytest.raises(OverloadedError):
        state.take()


def rejections(front):
    return {m.label[1]: m.value for m in front.metrics.read() if m.name == "admission_rejections"}


def test_requests_that_find_no_room_are_counted_by_the_limit():
    front, state = begin(SamplingParams(n=2, seed=1))
    first, _ = (request.key for request in state.requests)
    front.fail(first, QueuedTokensError("Too many tokens wait."), 1.0)
    front.fail(first, QueuedTokensError("It has ended."), 1.0)
    assert rejections(front) == {"max_num_queued_reqs": 0, "max_num_queued_tokens": 1}
    front.max_running = -front._max_waiting
    with pytest.raises(OverloadedError, match="already running or waiting"):
        front.submit(front.prepare([72], SamplingParams()), SamplingParams(), "s", arrival=0.0)
    assert rejections(front) == {"max_num_queued_reqs": 1, "max_num_queued_tokens": 1}


def test_a_completion_s_preemptions_are_counted_until_it_ends():
    front, state = begin(SamplingParams(n=2, seed=1, max_tokens=9))
    first, second = (request.key for request in state.requests)
    front.update(step({}, preempted=[first, second, first]), 11.0)
    front.update(step({first: [97]}, preempted=[first, 999], finished=[FinishedRequest(first, "length")]), 12.0)
    front.update(step({second: [97]}, finished=[FinishedRequest(second, "length")]), 13.0)
    preempted = front.metrics.request_num_preemptions
    assert (preempted.count, preempted.sum) == (2, 4.0)
    assert preempted.counts[:3] == [1, 0, 1]


def test_adapters_of_running_and_of_waiting_requests():
    front = front_end(TOKENIZER)
    params = SamplingParams()
    for name, folder in (("a", "/french"), ("b", "/latin"), ("c", "/french"), ("d", None)):
        args = {} if folder is None else {"lora": folder}
        front.submit(front.prepare([72], params), params, name, arrival=0.0, feature_args=args)
    assert front.adapters() == (set(), {"/french", "/latin"})
    key = front.find("a").requests[0].key
    front.update(step({}, started=[StartedRequest(key, 0, 1.0)]), 1.0)
    assert front.adapters() == ({"/french"}, {"/french", "/latin"})
    front.update(step({key: [97]}, finished=[FinishedRequest(key, "length")]), 2.0)
    assert front.adapters() == (set(), {"/french", "/latin"})


def test_dropping_aborts_what_has_not_ended():
    front, state = begin(SamplingParams(n=2, seed=1))
    first, second = (request.key for request in state.requests)
    front.update(step({first: [97]}, finished=[FinishedRequest(first, "length")]), 1.0)
    assert front.drop(state, 2.0) == [second]
    assert [one.finish_reason for one in state.take().outputs] == ["length", "abort"]
    assert front.drop(state, 3.0) == []


def test_each_request_hears_of_the_engines_death():
    front = front_end(TOKENIZER)
    params = SamplingParams()
    states = [front.submit(front.prepare([72, 105], params), params, name, arrival=0.0) for name in "ab"]
    assert front.fail_all(lambda: EngineDeadError("gone"), 1.0) == states
    errors = []
    for state in states:
        with pytest.raises(EngineDeadError, match="gone") as caught:
            state.take()
        errors.append(caught.value)
    assert errors[0] is not errors[1]


def test_times_and_cached_tokens():
    front, state = begin(SamplingParams(max_tokens=3))
    key = state.requests[0].key
    front.update(step({key: [97]}, started=[StartedRequest(key, 1, 10.5)]), 11.0)
    front.update(step({key: [98]}), 12.0)
    front.update(
        step({key: [99]}, finished=[FinishedRequest(key, "length")], started=[StartedRequest(key, 2, 11.9)]), 14.0
    )
    output = state.take()
    times = output.metrics
    assert (times.arrival, times.first_scheduled, times.first_token, times.last_token) == (10.0, 10.5, 11.0, 14.0)
    assert output.num_cached_tokens == 1
    metrics = front.metrics
    sums = {m.name: (m.value.count, m.value.sum) for m in metrics.read() if m.kind == "histogram"}
    assert sums == {
        "time_to_first_token_seconds": (1, 1.0),
        "inter_token_latency_seconds": (2, 3.0),
        "request_time_per_output_token_seconds": (1, 1.5),
        "e2e_request_latency_seconds": (1, 4.0),
        "request_queue_time_seconds": (1, 0.5),
        "request_inference_time_seconds": (1, 3.5),
        "request_prefill_time_seconds": (1, 0.5),
        "request_decode_time_seconds": (1, 3.0),
        "request_prompt_tokens": (1, 2.0),
        "request_prefill_kv_computed_tokens": (1, 1.0),
        "request_generation_tokens": (1, 3.0),
        "request_max_num_generation_tokens": (1, 3.0),
        "request_params_max_tokens": (1, 3.0),
        "request_params_n": (1, 1.0),
        "request_num_preemptions": (1, 0.0),
        "iteration_tokens_total": (3, 4.0),
    }


def test_the_counts_are_those_that_vllm_s_own_test_of_metrics_wants():
    front, tokens = front_end(TOKENIZER), 10
    params = SamplingParams(max_tokens=tokens, n=1)
    for number in range(10):
        state = front.submit(front.prepare([72, 105], params), params, str(number), arrival=10.0)
        key = state.requests[0].key
        for at in range(tokens):
            started = [StartedRequest(key, 0, 10.5)] if at == 0 else []
            finished = [FinishedRequest(key, "length")] if at == tokens - 1 else []
            front.update(step({key: [97]}, started=started, finished=finished), 11.0 + at)
        front.update(step({}), 30.0)
    found = {m.name: (m.value.count, m.value.sum) for m in front.metrics.read() if m.kind == "histogram"}
    assert found["iteration_tokens_total"] == (10 * tokens, 10 * (2 + tokens))
    assert found["inter_token_latency_seconds"][0] == 10 * (tokens - 1)
    assert found["request_params_max_tokens"] == (10, 10 * tokens)
    assert found["request_params_n"] == (10, 10)
    for name in ("time_to_first_token", "e2e_request_latency", "request_inference_time", "request_prefill_time"):
        assert found[f"{name}_seconds"][0] == 10


def test_a_request_s_longest_answer_is_observed_once_when_all_have_ended():
    front, state = begin(SamplingParams(n=2, seed=1, max_tokens=7))
    first, second = (request.key for request in state.requests)
    front.update(step({first: [97]}, finished=[FinishedRequest(first, "length")]), 11.0)
    longest = front.metrics.request_max_num_generation_tokens
    assert longest.count == 0
    front.update(step({second: [97, 98]}, finished=[FinishedRequest(second, "length")]), 12.0)
    assert (longest.count, longest.sum) == (1, 2)
    assert (front.metrics.request_params_n.count, front.metrics.request_params_n.sum) == (1, 2)
    assert (front.metrics.request_params_max_tokens.count, front.metrics.request_params_max_tokens.sum) == (2, 14)


# ---- another engine --------------------------------------------------------------------------------------------------


def gone():
    return EngineDeadError("The engine is gone.")


def test_what_an_engine_may_have_run_started_or_was_next():
    front = front_end(TOKENIZER, max_num_seqs=2, max_waiting=8)
    params, states = SamplingParams(max_tokens=9), []
    for number, priority in enumerate((0, 0, 5, 0, 0, -1)):
        prompt = front.prepare([1, 2], params)
        states.append(front.submit(prompt, params, f"r{number}", arrival=1.0 + number, priority=priority))
    key = states[2].requests[0].key
    front.update(step({}, started=[StartedRequest(key, 0, 10.5)]), 11.0)
    assert front.may_have_run() == [states[2], states[5], states[0]]


@pytest.mark.parametrize("kind", RequestOutputKind)
def test_what_a_reader_has_had_some_of_ends_and_the_rest_starts_over(kind):
    front, state = begin(SamplingParams(max_tokens=90, output_kind=kind))
    key = state.requests[0].key
    front.update(step({key: list(b"ab")}, started=[StartedRequest(key, 1, 10.5)]), 11.0)
    had_some = state.take() is not None
    assert had_some == (kind is not FINAL_ONLY)
    lost = front.lose(gone, 12.0)
    assert lost == ([state] if had_some else [])
    if had_some:
        with pytest.raises(EngineDeadError):
            state.take()
        assert front.replay() == []
    else:
        assert front.replay() == [state]
        assert front.unfinished(state) == state.requests
        front.update(step({key: [*b"xyz", END]}, finished=[FinishedRequest(key, "stop")]), 13.0)
        output = state.take()
        assert (output.outputs[0].text, output.num_cached_tokens) == ("xyz", 1)


def test_a_stream_of_which_nothing_was_read_starts_over():
    """Tokens were there, and nobody had taken them."""
    front, state = begin(SamplingParams(max_tokens=90, output_kind=DELTA, logprobs=0, stop="q"))
    key = state.requests[0].key
    logprobs = RequestLogprobs(key, RowLogprobs(0, int32([[97]]), np.float32([[-1.0]]), int32([1])))
    front.update(step({key: [97]}, logprobs=[logprobs]), 11.0)
    assert front.lose(gone, 12.0) == []
    assert state.take() is None
    front.update(step({key: [97]}, logprobs=[logprobs]), 13.0)
    front.update(step({key: list(b"bc")}, finished=[FinishedRequest(key, "length")]), 14.0)
    (answer,) = state.take().outputs
    assert (answer.text, answer.token_ids, answer.cumulative_logprob) == ("abc", [*b"abc"], -1.0)
    assert front.num_unfinished == 0


def test_of_several_answers_those_that_ended_are_kept():
    front, state = begin(SamplingParams(max_tokens=90, n=2, output_kind=FINAL_ONLY, seed=5))
    first, second = (request.key for request in state.requests)
    front.update(step({first: list(b"one"), second: list(b"tw")}, finished=[FinishedRequest(first, "length")]), 11.0)
    assert front.lose(gone, 12.0) == []
    assert front.unfinished(state) == [state.requests[1]]
    front.update(step({second: list(b"two")}, finished=[FinishedRequest(second, "length")]), 13.0)
    assert [answer.text for answer in state.take().outputs] == ["one", "two"]


def test_counters_go_on_where_the_lost_engine_left_them():
    metrics = EngineMetrics(100)
    counters = SchedulerCounters(generation_tokens=10, steps=4)
    metrics.stats = EngineStats(
        3, 2, 0.5, counters, {"gate": 3, "sample": 1}, 2, [FeatureCounter("looks", "Looks.", 4)]
    )
    metrics.engine_lost()
    values = {metric.name: metric.value for metric in metrics.read()}
    assert (values["num_requests_running"], values["kv_cache_usage_perc"], values["generation_tokens"]) == (0, 0.0, 10)
    assert values["looks"] == 4
    metrics.stats = EngineStats(counters=SchedulerCounters(generation_tokens=5), fallbacks={"gate": 4}, compilations=1)
    metrics.stats.feature_counters.append(FeatureCounter("looks", "Looks.", 3))
    fallbacks = {metric.label: metric.value for metric in metrics.read() if metric.name == "reference_fallbacks"}
    assert fallbacks == {("op", "gate"): 7, ("op", "sample"): 1}
    values = {metric.name: metric.value for metric in metrics.read()}
    assert (values["generation_tokens"], values["kernel_compilations"], values["looks"]) == (15, 3, 7)
