"""llama.cpp as the reference for a GGUF file.

The argument is a JSON file with `model`, `threads`, `texts` and `prompts` (token ids) and `tokens` (of an answer).
Prints one line of JSON: for each text the log probability of each token after the first, and for each prompt the greedy
answer and, for each token of it, the likely tokens there, and how many nats less likely each one is."""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.peers.llama_cpp import version
from benchmarks.process import claim_stdout
from benchmarks.task import WIDEST

ROOM = 1024  # tokens of the longest text, or of a prompt and its answer


class Model:
    """A model with one sequence, whose logits can be read."""

    def __init__(self, path: str, threads: int) -> None:
        import llama_cpp

        self._lib: Any = llama_cpp
        self._quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)  # referenced: called from C
        llama_cpp.llama_log_set(self._quiet, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        if not model:
            raise SystemExit(f"llama.cpp could not load {Path(path).name}.")
        self._vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = params.n_batch = ROOM
        params.n_threads = params.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(model, params)
        self._batch = llama_cpp.llama_batch_init(ROOM, 0, 1)

    def scores(self, text: Sequence[int]) -> list[float]:
        """The log probability of each token after the first."""
        logits = self._logits(text, 0, every=True)
        return [float(_log_probabilities(logits[at])[token]) for at, token in enumerate(text[1:])]

    def answer(self, prompt: Sequence[int], tokens: int) -> Iterator[tuple[int, dict[int, float]]]:
        """Yields each token of the greedy answer, with those that are almost as likely."""
        (logits,) = self._logits(prompt, 0, every=False)
        for number in range(tokens):
            below = logits.max() - logits
            best = int(below.argmin())
            yield best, {int(token): round(float(below[token]), 3) for token in np.flatnonzero(below <= WIDEST)}
            if number < tokens - 1:
                (logits,) = self._logits([best], len(prompt) + number, every=False)

    def _logits(self, ids: Sequence[int], start: int, *, every: bool) -> list[Any]:
        """Those of all tokens, or of the last one. A sequence begins at `start` 0."""
        lib, batch = self._lib, self._batch
        if start == 0:
            lib.llama_memory_clear(lib.llama_get_memory(self._context), True)
        batch.n_tokens = len(ids)
        for index, token in enumerate(ids):
            batch.token[index], batch.pos[index], batch.logits[index] = (
                token,
                start + index,
                every or index == len(ids) - 1,
            )
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, 0
        if lib.llama_decode(self._context, batch) != 0:
            raise SystemExit(f"llama.cpp could not run a step of {len(ids)} tokens.")
        wanted = range(len(ids)) if every else (len(ids) - 1,)
        rows = (lib.llama_get_logits_ith(self._context, index) for index in wanted)
        return [np.ctypeslib.as_array(row, (self._vocabulary,)).copy() for row in rows]


def _log_probabilities(logits: Any) -> Any:
    shifted = logits.astype(np.float64) - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def main() -> None:
    results = claim_stdout()
    asked = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    model = Model(asked["model"], asked["threads"])
    scores = [model.scores(text) for text in asked["texts"]]
    answers = [list(model.answer(prompt, asked["tokens"])) for prompt in asked["prompts"]]
    line = {
        "version": version(),
        "scores": scores,
        "answers": [[token for token, _ in answer] for answer in answers],
        "near": [[near for _, near in answer] for answer in answers],
    }
    print(json.dumps(line), file=results, flush=True)


if __name__ == "__main__":
    main()
