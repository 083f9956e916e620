"""`python -m tools.quantization_loss`: a table of what --quantization and --kv-cache-dtype cost a model, and save.
python -m tools.quantization_loss                     # the bundled demo, with its held-out questions
python -m tools.quantization_loss --model FOLDER --texts 8 --questions 0
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence

from tessera import LLM
from tessera.config import EngineConfig, build_config
from tessera.engine.scores import loss, scores_of
from tessera.sampling_params import SamplingParams
from tessera.text.scored_texts import WINDOW
from tools.demo_model.evaluate import MAX_TOKENS, QUESTIONS
from tools.demo_model.generate import held_out_questions
from tools.demo_model.judge import is_right
from tools.quantization_loss.texts import texts_of

HEAD = (
    "--quantization",
    "--kv-cache-dtype",
    "bits per weight",
    "perplexity",
    "KL, nats per token",
    "same most likely token",
    "correct answers",
)
WAYS: Sequence[tuple[str | None, str]] = (
    (None, "auto"),
    ("int8", "auto"),
    ("int4", "auto"),
    (None, "int8"),
    ("int8", "int8"),
)
"""(quantization, kv_cache_dtype) of each row."""


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder or GGUF file; the bundled demo unless given")
    parser.add_argument("--platform", default="cpu")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--texts", type=int, default=100, help="number of texts, of 512 tokens but for the demo")
    parser.add_argument("--questions", type=int, default=QUESTIONS, help="of the demo's, to answer; 0: none")
    given = parser.parse_args()
    rows = table(given.model, given.platform, given.dtype, texts=given.texts, questions=given.questions)
    for row in (HEAD, ("---",) * len(HEAD), *rows):
        print(f"| {' | '.join(row)} |")


def table(
    model: str | None, platform: str, dtype: str, *, texts: int, questions: int, tokenizer: bool = True
) -> list[tuple[str, ...]]:
    """One row for each of WAYS, with the columns of HEAD."""
    configs = [_config(model, platform, dtype, *way, tokenizer=tokenizer) for way in WAYS]
    asked = texts_of(configs[0].model, texts)
    first = scores_of(configs[0], asked)
    rows: list[tuple[str, ...]] = []
    for (name, cache_dtype), config in zip(WAYS, configs, strict=True):
        found = first if config is configs[0] else scores_of(config, asked)  # no more than two: they take much memory
        lost = loss(asked, first, found)
        right = answered(model, platform, dtype, name, cache_dtype, questions) if questions else None
        rows.append(
            (
                name or "none", cache_dtype, f"{found.bits:.2f}", f"{lost.perplexity:.4f}", f"{lost.divergence:.5f}",
                f"{lost.agreement:.2%}", "-" if right is None else f"{right} of {questions}",
            )
        )  # fmt: skip
    return rows


def _config(
    model: str | None, platform: str, dtype: str, name: str | None, cache_dtype: str, *, tokenizer: bool
) -> EngineConfig:
    config = build_config(
        model=model, platform=platform, dtype=dtype, quantization=name, kv_cache_dtype=cache_dtype, max_num_seqs=8,
        kv_cache_memory_bytes=64 << 20, skip_tokenizer_init=not tokenizer or None,
    )  # fmt: skip
    context = min(config.model.max_model_len, WINDOW + 1)  # the cache need not hold more
    return dataclasses.replace(config, embedded=True, model=dataclasses.replace(config.model, max_model_len=context))


def answered(model: str | None, platform: str, dtype: str, name: str | None, cache_dtype: str, count: int) -> int:
    """The number of the demo's held-out questions that are answered correctly."""
    questions = held_out_questions(count)
    with LLM(
        model,
        platform=platform,
        dtype=dtype,
        quantization=name,
        kv_cache_dtype=cache_dtype,
        kv_cache_memory_bytes=64 << 20,
    ) as llm:
        answers = llm.chat(
            [messages for _, messages in questions],
            SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS),
            use_tqdm=False,
        )
    replies: Sequence[str] = [answer.outputs[0].text for answer in answers]
    return sum(is_right(item, reply) for (item, _), reply in zip(questions, replies, strict=True))


if __name__ == "__main__":
    main()
