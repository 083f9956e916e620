from __future__ import annotations

import math

from benchmarks.agreement import Reference
from benchmarks.gguf_answers import PROMPT_TOKENS, compared, prompts_of

from tessera.text.scored_texts import ScoredText

REFERENCE = Reference("llama.cpp", [[1], [2]], [[5, 6], [8, 9]], [[{5: 0.0}, {6: 0.0, 2: 0.2}], [{8: 0.0}, {9: 0.0}]])


def test_perplexity_and_continuations():
    half, quarter = math.log(1 / 2), math.log(1 / 4)
    assert compared([[half, half], [half]], [[half], [quarter]], [[5, 2], [8, 9]], REFERENCE) == [
        f"perplexity 2.0000 beside {math.sqrt(8):.4f}: {2 / math.sqrt(8) - 1:+.2%}",
        "continuations 1 of 2 the same; the first token that differs is at most 0.200 nats less likely",
    ]
    (_, line) = compared([[half]], [[half]], [[5, 7], [8, 9]], REFERENCE)
    assert line.endswith("the first token that differs is more than is listed")


def test_prompts_are_pieces_with_the_beginning_of_their_text():
    texts = [ScoredText([number * 1000 + place for place in range(100)], [True] * 100) for number in (1, 2)]
    prompts = prompts_of(texts, 9)
    assert [prompt[0] for prompt in prompts] == [1000, 2000] * 4 + [1000]
    assert {len(prompt) for prompt in prompts} == {1 + PROMPT_TOKENS}
    assert prompts[2][1:] == list(range(1025, 1049))
    assert len({tuple(prompt) for prompt in prompts}) == len(prompts)
