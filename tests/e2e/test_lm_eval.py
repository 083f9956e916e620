"""What lm-eval's local-completions asks of a server, against transformers: the log probability of a continuation."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import transformers

from tests.e2e.served import Served
from tests.platforms.tiny_models import VOCAB, save_family, text_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_family("llama", tmp_path_factory.mktemp("lm-eval"))


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    arguments = [str(folder), "--platform", "tessera.testing:ReferencePlatform", "--dtype", "float32"]
    arguments += ["--kv-cache-memory-bytes", "4MiB", "--max-num-batched-tokens", "48", "--max-num-seqs", "8"]
    with Served(arguments, tmp_path_factory.mktemp("log") / "log") as server:
        yield server


def scores(choice: dict[str, Any], context: int) -> tuple[float, bool]:
    """As lm-eval reads a choice: the sum over the continuation, and whether each of its tokens is the best."""
    logprobs = choice["logprobs"]
    own, best = (logprobs[name][context:-1] for name in ("token_logprobs", "top_logprobs"))
    return sum(own), all(value == max(top.values()) for value, top in zip(own, best, strict=True))


def test_continuations_are_as_likely_as_transformers_says(server: Served, folder: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    rng = random.Random(4)
    prompts = [[rng.randrange(3, VOCAB) for _ in range(rng.choice((2, 9, 60, 97)))] for _ in range(10)]
    contexts = [rng.randrange(1, len(prompt)) for prompt in prompts]
    with torch.inference_mode():
        for i in (1, 4):  # continuations that are the greedy ones
            for _ in range(3):
                prompts[i] = [*prompts[i], int(model(torch.tensor([prompts[i]])).logits[0, -1].argmax())]
            contexts[i] = len(prompts[i]) - 3
        tables = [torch.log_softmax(model(torch.tensor([prompt])).logits[0], -1) for prompt in prompts]
    body = {"model": "llama", "prompt": prompts, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
    answer = httpx.post(f"{server.url}/v1/completions", json={**body, "temperature": 0}, timeout=60).json()
    greedy = 0
    for choice, prompt, context, table in zip(answer["choices"], prompts, contexts, tables, strict=True):
        total, is_greedy = scores(choice, context)
        wanted = [float(table[i - 1, prompt[i]]) for i in range(context, len(prompt))]
        assert total == pytest.approx(sum(wanted), abs=2e-3)
        assert is_greedy == all(int(table[i - 1].argmax()) == prompt[i] for i in range(context, len(prompt)))
        greedy += is_greedy
        logprobs = choice["logprobs"]
        assert choice["text"].startswith(text_of(prompt))
        assert (logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]) == (None, None)
        assert logprobs["text_offset"] == list(range(len(prompt) + 1))
    assert greedy >= 2


def test_a_prompt_alone(server: Served) -> None:
    body = {"model": "llama", "prompt": [5, 6, 7], "max_tokens": 0, "logprobs": 2, "echo": True}
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == (text_of([5, 6, 7]), "length")
    assert len(choice["logprobs"]["tokens"]) == 3
    assert answer["usage"] == {
        "prompt_tokens": 3, "completion_tokens": 0, "total_tokens": 3, "prompt_tokens_details": {"cached_tokens": 0},
    }  # fmt: skip


def test_an_argument_that_nothing_takes_is_refused_by_name(server: Served) -> None:
    body = {"model": "llama", "prompt": [5], "vllm_xargs": {"strength": 2}}
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "extra_args.strength")
    assert "'strength'" in answer.json()["error"]["message"]
