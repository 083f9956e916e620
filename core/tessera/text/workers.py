"""The front end's side of the text workers: which worker gets a job, and what comes back.

There are four workers, each with a queue: one for short jobs, so that a chat does not wait for a long text (a running
job cannot be split or suspended), and one each for long prompts, for long texts that are only tokenized, and for
grammars, which are started when the first such job arrives. A worker has one job at a time and the others wait here,
where clients take turns and each has a limit. Hence it is known which job made a worker die, the jobs behind it are not
lost, and a job whose client has disconnected is dropped, or ended if it is at work for long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Self, TypeVar

from tessera.errors import TextLimitError
from tessera.processes.job_kind import Failed
from tessera.processes.job_queue import JobQueue
from tessera.sampling_params import SamplingParams, StructuredOutputsParams, changed
from tessera.text.grammar import FIELD, special_tokens
from tessera.text.job_packing import LONG_JOB, JobPacker
from tessera.text.tokenizer import EncodedPair, TruncationSide, Vocabulary
from tessera.text.worker import (
    TEXT,
    Answer,
    ChatJob,
    Checked,
    Decoded,
    DecodeJob,
    Encoded,
    EncodeJob,
    GrammarJob,
    Job,
    Listed,
    Start,
    WorkerReady,
)
from tessera.text_pair import TextPair

T = TypeVar("T")

MAX_GRAMMARS = 64
"""How many grammars that were right are remembered."""


class TextWorkers:
    """A front end's access to a model's tokenizer and chat template: `vocabulary` turns token ids into text in this
    process, incrementally if needed, and the workers do everything else. The first worker starts loading at once, in
    parallel with the engine."""

    def __init__(self, start: Start) -> None:
        """Raises ModelError or TextWorkerError."""
        assert start.tokenizer is not None
        self._short = JobQueue(TEXT, start)
        self._long = JobQueue(TEXT, start)
        self._listing = JobQueue(TEXT, start)
        self._checked: dict[StructuredOutputsParams, Checked] = {}  # the one used last is the last
        self._packer = JobPacker()
        self.has_template = False
        self.template = self.response_template = ""
        process = self._short.begin()
        try:
            self.vocabulary = Vocabulary.from_folder(start.tokenizer)
        except BaseException:
            process.close()
            raise
        special = special_tokens(self.vocabulary, start.eos_token_ids)
        allow = start.allow_additional_properties
        self._grammars = JobQueue(TEXT, Start(None, allow_additional_properties=allow, special_tokens=special))

    async def __aenter__(self) -> Self:
        await self.ready()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def restarts(self) -> int:
        """Number of workers that were replaced."""
        return sum(queue.restarts for queue in self._queues)

    @property
    def _queues(self) -> tuple[JobQueue[WorkerReady, Answer], ...]:
        return self._short, self._long, self._listing, self._grammars

    async def ready(self) -> None:
        """Waits until the first worker has loaded the model's files. Raises ModelError or TextWorkerError."""
        ready = await self._short.load()
        self.has_template, self.template = ready.has_template, ready.template
        self.response_template = ready.response_template

    async def chat(self, job: ChatJob, owner: str = "") -> Encoded:
        """owner: the client, who takes turns with the others. Raises RequestError, TextLimitError, TextWorkerError or
        OverloadedError."""
        return await self._ask(job, Encoded, owner)

    async def encode(
        self,
        texts: Sequence[str],
        add_special_tokens: bool = True,
        *,
        max_tokens: int | None = None,
        truncation_side: TruncationSide | None = None,
        numbered: bool = False,
        placeholders: Mapping[str, str] = MappingProxyType({}),
        replacements: Mapping[str, list[str]] = MappingProxyType({}),
        owner: str = "",
    ) -> list[list[int]]:
        """The token ids of each text; see Tokenizer.encode. numbered: an error's param names the text at fault, as
        `prompt[3]`. placeholders, replacements: by modality, of the images and sounds of the only text, if it has any.
        owner, errors: as of chat()."""
        assert not placeholders or len(texts) == 1
        ids: list[list[int]] = []
        for some in _grouped(texts, len):
            job = EncodeJob(some, add_special_tokens, max_tokens, truncation_side=truncation_side)
            job.first = len(ids) if numbered else None
            job.placeholders, job.replacements = dict(placeholders), dict(replacements)
            ids += (await self._ask(job, Encoded, owner)).ids
        return ids

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
        """As encode(), of pairs of texts."""
        encoded: list[EncodedPair] = []
        for some in _grouped(pairs, lambda pair: len(pair.first) + len(pair.second)):
            firsts, seconds = map(list, zip(*some, strict=True))
            job = EncodeJob(firsts, add_special_tokens, max_tokens, second=seconds, truncation_side=truncation_side)
            job.first = len(encoded) if numbered else None
            answer = await self._ask(job, Encoded, owner)
            assert answer.boundaries is not None
            encoded += map(EncodedPair, answer.ids, answer.boundaries)
        return encoded

    async def list_tokens(self, job: ChatJob | EncodeJob, owner: str = "") -> Listed:
        """The tokens of one text as JSON, which takes a fifth of the memory of a list. No prompt waits for such a job
        that is long. owner, errors: as of chat()."""
        job.listed = True
        return await self._ask(job, Listed, owner)

    async def decode(
        self, ids: Sequence[int], skip_special_tokens: bool = True, *, below: int = 0, owner: str = ""
    ) -> bytes:
        """The text of many ids, as JSON; Vocabulary.decode makes one in this process. below: see DecodeJob. owner,
        errors: as of chat()."""
        return (await self._ask(DecodeJob(list(ids), skip_special_tokens, below), Decoded, owner)).text

    async def check_grammar(self, params: SamplingParams, owner: str = "") -> SamplingParams:
        """The params with a grammar that can be used, and its source; see leniency.compile_leniently. owner, errors: as
        of chat(). Those that were right last are not compiled again: many requests have the same."""
        asked = params.structured_outputs
        if asked is None or params.grammar_source is not None:
            return params
        checked = self._checked.pop(asked, None)
        if checked is None:
            try:
                checked = await self._ask(GrammarJob(asked), Checked, owner)
            except TextLimitError as error:
                raise TextLimitError(
                    f"{FIELD}.{asked.kind} cannot be used: compiling it took more time or memory than it may.",
                    param=f"{FIELD}.{asked.kind}",
                ) from error
        self._checked[asked] = checked
        if checked.instead is not None:
            self._checked[checked.instead] = Checked(checked.source)
        while len(self._checked) > MAX_GRAMMARS:
            del self._checked[next(iter(self._checked))]
        return changed(params, structured_outputs=checked.instead or asked, grammar_source=checked.source)

    async def close(self) -> None:
        """Ends the workers at once. May be called again."""
        self._packer.close()
        await asyncio.gather(*(queue.close() for queue in self._queues))

    async def _ask(self, job: Job, kind: type[T], owner: str = "") -> T:
        self._short.check_open()
        data = await self._packer.pack(job)
        queue = self._long
        if isinstance(job, GrammarJob):
            queue = self._grammars
        elif len(data) < LONG_JOB:
            queue = self._short
        elif isinstance(job, DecodeJob) or job.listed:
            queue = self._listing
        answer = await queue.ask(data, owner)
        if isinstance(answer, Failed):
            raise answer.failure.error()
        assert isinstance(answer, kind)
        return answer


def _grouped(texts: Sequence[T], length: Callable[[T], int]) -> Iterator[list[T]]:
    """The texts in jobs that are not long, but for texts that are, each of which is a job of its own: others take turns
    with it, and its ids are read at once. length: of one, in characters."""
    some: list[T] = []
    total = 0
    for text in texts:
        if some and total + length(text) >= LONG_JOB:
            yield some
            some, total = [], 0
        some.append(text)
        total += length(text)
    yield some
