"""Texts of one call of LLM are encoded together, and a text at fault is named all the same."""

from __future__ import annotations

from tessera.errors import RequestError
from tessera.llm.batch_encoding import EncodingLimit, encode_together
from tessera.text_pair import TextPair


class Workers:
    """Encodes a text to its length. jobs: what each call was asked."""

    def __init__(self):
        self.jobs = []

    def encode(self, texts, *, max_tokens, truncation_side):
        self.jobs.append((texts, max_tokens, truncation_side))
        if "bad" in texts:
            raise RequestError("The tokenizer cannot encode it.")
        return [[len(text)] for text in texts]

    def encode_pairs(self, pairs, *, max_tokens, truncation_side):
        self.jobs.append((pairs, max_tokens, truncation_side))
        return [[len(pair.first), len(pair.second)] for pair in pairs]


def test_texts_with_one_limit_are_one_job():
    workers, few, many = Workers(), EncodingLimit(3, "left"), EncodingLimit(9)
    pairs = [TextPair("a", "bc"), TextPair("def", "g")]
    prompts = ["one", [5, 6], "three", *pairs, "four4", "alone"]
    limits = [many, many, few, many, many, many, None]
    assert encode_together(workers, prompts, limits) == {0: [3], 5: [5], 3: [1, 2], 4: [3, 1]}
    assert workers.jobs == [(["one", "four4"], 9, None), (pairs, 9, None)]  # one alike is encoded where it is used


def test_of_a_job_that_fails_nothing_is_known():
    workers, most = Workers(), EncodingLimit(9)
    assert encode_together(workers, ["a", "bad", "c"], [most] * 3) == {}
    assert encode_together(workers, ["a", "c"], [most] * 2) == {0: [1], 1: [1]}
