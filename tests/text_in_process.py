"""In place of the text workers: the same jobs, done in the test's own process."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import TypeVar

import msgspec

from tessera.processes.frames import read_frame
from tessera.sampling_params import SamplingParams, changed
from tessera.text import Tokenizer
from tessera.text.grammar import special_tokens
from tessera.text.job_packing import packed
from tessera.text.tokenizer import EncodedPair, TruncationSide
from tessera.text.worker import (
    ChatJob,
    Checked,
    Decoded,
    DecodeJob,
    Encoded,
    EncodeJob,
    GrammarJob,
    Grammars,
    Job,
    Listed,
    Start,
    Texts,
)
from tessera.text_pair import TextPair

T = TypeVar("T")


class TextInProcess:
    """template: in place of the tokenizer's own."""

    restarts = 0

    def __init__(self, tokenizer: Tokenizer, template: str | None = None) -> None:
        self.vocabulary = tokenizer
        self._texts = Texts(tokenizer, template)
        self.has_template, self.template = self._texts.has_template, self._texts.template
        self.response_template = self._texts.response_template
        self._grammars = Grammars(Start(None, special_tokens=special_tokens(tokenizer, ())))
        self._jobs = msgspec.msgpack.Decoder(Job)

    async def chat(self, job: ChatJob, owner: str = "") -> Encoded:
        return self._do(job, Encoded)

    async def list_tokens(self, job: ChatJob | EncodeJob, owner: str = "") -> Listed:
        job.listed = True
        return self._do(job, Listed)

    async def encode(
        self,
        texts: Sequence[str],
        add_special_tokens: bool = True,
        *,
        max_tokens: int | None = None,
        truncation_side: TruncationSide | None = None,
        numbered: bool = False,
        owner: str = "",
    ) -> list[list[int]]:
        job = EncodeJob(list(texts), add_special_tokens, max_tokens, truncation_side=truncation_side)
        job.first = 0 if numbered else None
        return self._do(job, Encoded).ids

    async def encode_pairs(
        self,
        pairs: Sequence[TextPair],
        add_special_tokens: bool = True,
        *,
        max_tokens: int | None = None,
        truncation_side: TruncationSide | None = None,
        numbered: bool = False,
        owner: str = "",
    ) -> list[EncodedPair]:
        firsts, seconds = [pair.first for pair in pairs], [pair.second for pair in pairs]
        job = EncodeJob(firsts, add_special_tokens, max_tokens, second=seconds, truncation_side=truncation_side)
        job.first = 0 if numbered else None
        encoded = self._do(job, Encoded)
        assert encoded.boundaries is not None
        return [EncodedPair(*pair) for pair in zip(encoded.ids, encoded.boundaries, strict=True)]

    async def decode(
        self, ids: Sequence[int], skip_special_tokens: bool = True, *, below: int = 0, owner: str = ""
    ) -> bytes:
        return self._do(DecodeJob(list(ids), skip_special_tokens, below), Decoded).text

    async def check_grammar(self, params: SamplingParams, owner: str = "") -> SamplingParams:
        if params.structured_outputs is None or params.grammar_source is not None:
            return params
        checked = self._do(GrammarJob(params.structured_outputs), Checked)
        asked = checked.instead or params.structured_outputs
        return changed(params, structured_outputs=asked, grammar_source=checked.source)

    def _do(self, job: Job, kind: type[T]) -> T:
        """By way of the bytes that would go to a worker."""
        worker = self._grammars if isinstance(job, GrammarJob) else self._texts
        done = worker.do(self._jobs.decode(read_frame(BytesIO(packed(job)).readinto)))
        assert isinstance(done, kind)
        return done
