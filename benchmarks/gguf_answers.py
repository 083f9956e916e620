"""Compares the answers of a GGUF file with llama.cpp's: `python -m benchmarks.gguf_answers FILE --peer ENVIRONMENT`

Both read the same token ids: English and code of Python's library for perplexity, and 50 pieces of it that are
continued greedily. Where two tokens are almost equally likely, rounding decides between them, so a continuation is
followed up to the first token that differs; there, what counts is how much less likely llama.cpp finds that token."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import msgspec
import numpy as np

from benchmarks.agreement import Reference, agreement
from benchmarks.machine import cores
from benchmarks.running import results
from tessera import LLM, SamplingParams
from tessera.config import EngineConfig, build_config
from tessera.engine.scores import scores_of
from tessera.text.scored_texts import ScoredText
from tools.quantization_loss.texts import texts_of

PROMPT_TOKENS = 24
PEER = "benchmarks.peers.llama_cpp_answers"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="the GGUF file")
    parser.add_argument("--peer", type=Path, required=True, help="an environment with llama-cpp-python and NumPy")
    parser.add_argument("--dtype", default="float32", help="Tessera's (float32)")
    parser.add_argument("--texts", type=int, default=8, help="windows of 512 tokens (8)")
    parser.add_argument("--prompts", type=int, default=50, help="(50)")
    parser.add_argument("--tokens", type=int, default=32, help="of a continuation (32)")
    options = parser.parse_args(arguments)
    config = build_config(model=str(options.file), dtype=options.dtype, max_num_seqs=1)
    texts = texts_of(config.model, options.texts)
    prompts = prompts_of(texts, options.prompts)
    version, theirs, reference = _theirs(options, texts, prompts)
    for line in compared(_ours(config, texts), theirs, _continued(options, prompts), reference):
        print(line)
    print(f"{options.file.name} in {options.dtype}, beside {version}")


def prompts_of(texts: Sequence[ScoredText], count: int) -> list[list[int]]:
    """Pieces from the texts in turn, each with the token that begins its text."""
    prompts = []
    for number in range(count):
        ids = texts[number % len(texts)].ids
        start = 1 + number // len(texts) * PROMPT_TOKENS % (len(ids) - PROMPT_TOKENS)
        prompts.append([ids[0], *ids[start : start + PROMPT_TOKENS]])
    return prompts


def compared(
    ours: Sequence[Sequence[float]],
    theirs: Sequence[Sequence[float]],
    answers: Sequence[Sequence[int]],
    reference: Reference,
) -> list[str]:
    """The lines to print. ours, theirs: log probabilities of the texts' tokens."""
    own, other = (math.exp(-fmean(score for text in scores for score in text)) for scores in (ours, theirs))
    found = agreement(answers, reference)
    same = sum(list(one) == two for one, two in zip(answers, reference.answers, strict=True))
    gap = "more than is listed" if found.gap is None else f"at most {found.gap:.3f} nats less likely"
    return [
        f"perplexity {own:.4f} beside {other:.4f}: {own / other - 1:+.2%}",
        f"continuations {same} of {len(answers)} the same; the first token that differs is {gap}",
    ]


def _theirs(
    options: argparse.Namespace, texts: Sequence[ScoredText], prompts: list[list[int]]
) -> tuple[str, list[list[float]], Reference]:
    asked = {
        "model": str(options.file),
        "threads": len(cores()),
        "texts": [text.ids for text in texts],
        "prompts": prompts,
        "tokens": options.tokens,
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "asked.json"
        path.write_text(json.dumps(asked), encoding="utf-8")
        command = [str(options.peer / "bin" / "python"), "-m", PEER, str(path)]
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        (line,) = results("llama.cpp", command, variables)
    fields = {name: line[name] for name in ("version", "answers", "near")} | {"prompts": prompts}
    return line["version"], line["scores"], msgspec.convert(fields, Reference, strict=False)


def _ours(config: EngineConfig, texts: Sequence[ScoredText]) -> list[list[float]]:
    scores = scores_of(replace(config, embedded=True), texts)
    return [
        np.take_along_axis(found, np.array(text.ids[1:])[:, None], axis=1)[:, 0].tolist()
        for found, text in zip(scores.distributions, texts, strict=True)
    ]


def _continued(options: argparse.Namespace, prompts: Sequence[list[int]]) -> list[list[int]]:
    params = SamplingParams(temperature=0.0, max_tokens=options.tokens, ignore_eos=True, detokenize=False)
    with LLM(str(options.file), dtype=options.dtype) as llm:
        done = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
    return [list(answer.outputs[0].token_ids) for answer in done]


if __name__ == "__main__":
    main(sys.argv[1:])
