"""Bronze: tiny random models from prompts to tokens, on the platform and on the reference."""

from __future__ import annotations

import json
import math
import random
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tessera.llm import LLM
from tessera.request import RequestOutput, SamplingParams
from tessera.testing.compare import TOLERANCES
from tessera.testing.conformance.case import PASSED, Case, ConformanceError, Verdict
from tessera.testing.conformance.target import OWN, Target

_VOCAB = 101
_SIZES: Mapping[str, Any] = MappingProxyType(
    {
        "vocab_size": _VOCAB,
        "hidden_size": 72,
        "intermediate_size": 88,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-6,
    }
)
_FAMILIES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "llama": {"architectures": ["LlamaForCausalLM"]},
        "gemma2": {"architectures": ["Gemma2ForCausalLM"], "sliding_window": 19},
        "mixtral": {
            "architectures": ["MixtralForCausalLM"],
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "sliding_window": None,
        },
    }
)
_ANSWER = 12  # tokens
_SLACK = 10  # of a log probability, over the tolerance of one op: layers add up


def model_cases(target: Target) -> Iterator[Case]:
    """One a family and dtype."""
    for family in _FAMILIES:
        for dtype in target.platform.capabilities.dtypes:
            yield Case(f"model/{family}-{dtype}", "bronze", "model", partial(_check, target, family, dtype))


def _check(target: Target, family: str, dtype: str) -> Verdict:
    with tempfile.TemporaryDirectory(prefix="tessera-conformance-") as folder:
        settings = {**_SIZES, **_FAMILIES[family], "model_type": family}
        Path(folder, "config.json").write_text(json.dumps(settings), encoding="utf-8")
        found, expected = (_answers(folder, path, dtype) for path in (target.path, OWN["reference"]))
    for place, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        what = f"{family} in {dtype}, prompt {place} of {len(theirs.prompt_token_ids or ())} tokens"
        _compare(what, mine, theirs, dtype)
    return PASSED


def _compare(what: str, found: RequestOutput, expected: RequestOutput, dtype: str) -> None:
    """The prompt's log probabilities; in float32, where roundings choose no token, the answer too. Raises
    ConformanceError."""
    mine, theirs = (_logprobs(output) for output in (found, expected))
    slack = _SLACK * TOLERANCES[dtype]
    for place, (one, other) in enumerate(zip(mine, theirs, strict=True)):
        if not math.isclose(one, other, rel_tol=slack, abs_tol=slack):
            raise ConformanceError(f"{what}: token {place + 1} has log probability {one:.6g}, not {other:.6g}")
    answer, right = (list(output.outputs[0].token_ids) for output in (found, expected))
    if dtype == "float32" and answer != right:
        raise ConformanceError(f"{what}: the answer is {answer}, not {right}")


def _logprobs(output: RequestOutput) -> list[float]:
    """Of the prompt's tokens but the first."""
    tokens, entries = output.prompt_token_ids or (), output.prompt_logprobs or ()
    return [entry[token].logprob for token, entry in zip(tokens, entries, strict=True) if entry is not None]


def _answers(folder: str, platform: str, dtype: str) -> list[RequestOutput]:
    """To prompts of many lengths, in chunks, half of them greedily and half drawn by seed."""
    chance = random.Random(0)  # noqa: S311  # no secret: the same prompts each time
    prompts = [[chance.randrange(3, _VOCAB) for _ in range(length)] for length in (1, 5, 16, 17, 33, 60, 90)]
    params = [
        SamplingParams(temperature=float(place % 2), seed=place, max_tokens=_ANSWER, ignore_eos=True, prompt_logprobs=0)
        for place in range(len(prompts))
    ]
    llm = LLM(
        folder, platform=platform, load_format="dummy", skip_tokenizer_init=True, dtype=dtype, max_num_seqs=4,
        max_num_batched_tokens=64, kv_cache_memory_bytes=1 << 21,
    )  # fmt: skip
    with llm:
        return llm.generate(prompt_token_ids=prompts, sampling_params=params, use_tqdm=False)
