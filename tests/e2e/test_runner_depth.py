"""A platform's own model runner over HTTP, with drafts and quantized weights."""

from __future__ import annotations

import os
import urllib.request
from pathlib import Path

import openai

from tessera import LLM, SamplingParams
from tests.e2e.served import Served
from tests.platforms.generated import numpy_package, numpy_platform
from tests.platforms.tiny_models import save_family

ROOT = Path(__file__).parents[2]
PROMPT = "abcabcabcabc"
DRAFTS = '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 2}'


def test_drafts_in_int8_change_no_text(tmp_path: Path) -> None:
    model = save_family("llama", tmp_path)
    paths = (numpy_package().parent, ROOT / "core", ROOT / "platforms" / "cpu")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    flags = ["--platform", numpy_platform(), "--dtype", "float32", "--quantization", "int8", "--served-model-name", "m"]
    flags += ["--speculative-config", DRAFTS]
    with (
        Served([str(model), *flags], tmp_path / "log", environment=environment) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        body = {"model": "m", "prompt": PROMPT, "max_tokens": 40, "temperature": 0}
        said = client.completions.create(**body, extra_body={"ignore_eos": True}).choices[0].text
        with urllib.request.urlopen(f"{server.url}/metrics", timeout=60) as answer:
            assert b"tessera:spec_decode_num_draft_tokens" in answer.read(), "how many pay depends on the machine"
    plain = {"platform": numpy_platform(), "dtype": "float32", "quantization": "int8"}
    with LLM(model, kv_cache_memory_bytes=1 << 21, **plain) as llm:
        params = SamplingParams(max_tokens=40, temperature=0, ignore_eos=True)
        (expected,) = llm.generate(PROMPT, params, use_tqdm=False)
    assert said == expected.outputs[0].text != ""
