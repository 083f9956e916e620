"""A tokenizer whose tokens are the bytes of UTF-8, and steps written out by hand."""

from __future__ import annotations

import numpy as np
import tokenizers

from tessera.arrays import int32
from tessera.config import EngineConfig, ModelConfig, SchedulerConfig
from tessera.engine.frontend import FrontEnd
from tessera.scheduler.outputs import EngineCoreOutputs, FinishedRequest, RequestLogprobs, StartedRequest
from tessera.text import Tokenizer

END = 256
NUM_TOKENS = 257
MAX_MODEL_LEN = 100


def byte_tokenizer() -> Tokenizer:
    return Tokenizer(byte_level(), {"eos_token": "<|end|>"})


def byte_level() -> tokenizers.Tokenizer:
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    order = {_byte(character): character for character in alphabet}
    model = tokenizers.models.BPE(vocab={order[byte]: byte for byte in range(256)}, merges=[])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    return tokenizer


def _byte(character: str) -> int:
    """GPT-2's alphabet: printable Latin-1 stands for itself, other bytes in order for the characters from 256 on."""
    itself = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in itself]
    return ord(character) if ord(character) < 256 else others[ord(character) - 256]


def front_end(tokenizer: Tokenizer | None = None, *, max_num_seqs: int = 8, max_waiting: int = 8) -> FrontEnd:
    model = ModelConfig("", "bytes", {}, NUM_TOKENS, MAX_MODEL_LEN, eos_token_ids=(END,))
    scheduler = SchedulerConfig(max_num_seqs=max_num_seqs, max_waiting=max_waiting)
    return FrontEnd(EngineConfig(model=model, platform="", scheduler=scheduler), tokenizer, max_model_len=MAX_MODEL_LEN)


def step(
    tokens: dict[int, list[int]],
    *,
    finished: list[FinishedRequest] | None = None,
    logprobs: list[RequestLogprobs] | None = None,
    started: list[StartedRequest] | None = None,
    preempted: list[int] | None = None,
) -> EngineCoreOutputs:
    return EngineCoreOutputs(
        keys=np.array(list(tokens), dtype=np.int64),
        counts=int32([len(new) for new in tokens.values()]),
        tokens=int32([token for new in tokens.values() for token in new]),
        finished=finished or [],
        logprobs=logprobs or [],
        started=started or [],
        preempted=preempted or [],
    )
