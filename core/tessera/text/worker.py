"""The text worker's process: renders chat templates and tokenizes text, one job at a time, within limits.

A model folder can contain code in disguise: a chat template is a program, and a tokenizer's normalizers and regular
expressions can take any amount of time and memory for a few characters. The only way to stop them is to end their
process; see processes/job_loop.py, which sets its limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from tessera.errors import ModelError, RequestError, TextLimitError, TextWorkerError
from tessera.processes.job_kind import Failed, JobKind
from tessera.processes.job_limits import MIB, JobLimits
from tessera.processes.job_loop import run
from tessera.sampling_params import GrammarSource, StructuredOutputsParams
from tessera.text.grammar import byte_tokenizer
from tessera.text.leniency import compile_leniently
from tessera.text.placeholders import with_replacements
from tessera.text.template import ChatTemplate
from tessera.text.tokenizer import BrokenTokenizerError, EncodedPair, Tokenizer, TruncationSide
from tessera.text.user_text import PromptPiece, SpecialTexts
from tessera.text_pair import TextPair

if TYPE_CHECKING:
    from llguidance import LLTokenizer

# Four bytes per character, times four for what normalization may add.
_MOST_TOKENS_PER_CHAR = 16
_MOST_TOKENS = 1024
_MOST_BEGUN = 2**16
MAX_SOURCE_CHARS = 2**20
"""Of a grammar that is sent to the engine with each request that has it."""


# ---- messages -----------------------------------------------------------------------------------------------------


class Start(msgspec.Struct):
    """What a worker begins with."""

    # The tokenizer's folder; None: a worker that only checks grammars.
    tokenizer: str | None
    # Source of a chat template to use instead of the model's.
    template: str | None = None
    # The form of content that the template expects; None detects it.
    content_format: Literal["string", "openai"] | None = None
    # Special tokens in a chat's messages are tokens; else they are text (text/user_text.py).
    parse_special_tokens: bool = False
    # Whether objects of JSON Schemas are open where neither the schema nor the request says.
    allow_additional_properties: bool = False
    # The model's, in the order of its configuration.
    eos_token_ids: tuple[int, ...] = ()
    # Pairs of texts are rendered through the chat template, as messages of the roles query and document, behind one of
    # the role system that says this, if it is not empty; None: the tokenizer joins them.
    pair_instruction: str | None = None
    # The model's, by their texts, for a worker that only checks grammars.
    special_tokens: dict[str, int] = {}


class ChatJob(msgspec.Struct, tag="chat"):
    """A chat's messages and the other inputs of its template."""

    messages: Any
    tools: Any = None
    documents: Any = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    # Further variables of the template.
    template_kwargs: Mapping[str, Any] | None = None
    # Source of a template to use instead of the worker's.
    template: str | None = None
    # Limit of the prompt.
    max_chars: int | None = None
    add_special_tokens: bool = False
    # As of Tokenizer.encode.
    max_tokens: int | None = None
    # Whether to return the prompt's text too.
    text: bool = False
    # Whether to answer Listed.
    listed: bool = False
    # Whether to fill Listed.spelled.
    spelled: bool = False
    # The texts that begin and end reasoning, to say whether the prompt ends within it.
    reasoning: tuple[str, str] | None = None
    # The pattern after whose last match in the prompt the answer has begun, to return that part; "" for none.
    anchor: str = ""
    # By modality, what the prompt's text has once for each image or sound; others are refused.
    placeholders: dict[str, str] = {}
    # By modality, what takes the place of each placeholder, in the order of the prompt.
    replacements: dict[str, list[str]] = {}


class EncodeJob(msgspec.Struct, tag="encode"):
    """Encodes texts; fields as in ChatJob."""

    texts: list[str]
    add_special_tokens: bool = True
    max_tokens: int | None = None
    listed: bool = False
    spelled: bool = False
    # The text that belongs to each of `texts`, if these are pairs.
    second: list[str] | None = None
    # The side from which a text that is longer than max_tokens is cut; None refuses it.
    truncation_side: TruncationSide | None = None
    # The number of the first text among those of its request, to name the one at fault; None names none.
    first: int | None = None
    # As of a chat. The only text has the placeholders.
    placeholders: dict[str, str] = {}
    replacements: dict[str, list[str]] = {}


class DecodeJob(msgspec.Struct, tag="decode"):
    """Token ids to text. below: what each must be less than; 0 takes any."""

    ids: list[int]
    skip_special_tokens: bool = True
    below: int = 0


class GrammarJob(msgspec.Struct, tag="grammar"):
    """A grammar to check."""

    params: StructuredOutputsParams


class WorkerReady(msgspec.Struct, tag="ready"):
    """The worker has loaded its files. has_template: whether there is a template for chats without tools. template: the
    source of all of the model's templates. response_template: see Tokenizer."""

    has_template: bool
    template: str = ""
    response_template: str = ""


class Encoded(msgspec.Struct, tag="encoded"):
    """What a chat or texts are in tokens."""

    # Of each text or pair.
    ids: list[list[int]]
    # The chat's prompt, only if requested.
    text: str | None = None
    # Whether the prompt ends within reasoning; None if it neither begins nor ends any.
    reasons: bool | None = None
    # What the prompt has of the answer, if an anchor was given.
    begun: str = ""
    # Of each pair, how many of its ids belong to the first text.
    boundaries: list[int] | None = None


class Listed(msgspec.Struct, tag="listed"):
    """The tokens of the only text. count: how many there are. ids: as JSON; spelled: the tokens as the vocabulary
    spells them, as JSON, null unless requested."""

    count: int
    ids: bytes
    spelled: bytes


class Decoded(msgspec.Struct, tag="decoded"):
    """text: as JSON."""

    text: bytes


class Checked(msgspec.Struct, tag="checked"):
    """A grammar can be used."""

    # What an engine compiles; None if it is too long to be sent with each request.
    source: GrammarSource | None
    # What to use in place of what was asked for; None: that.
    instead: StructuredOutputsParams | None = None


Job = ChatJob | EncodeJob | DecodeJob | GrammarJob
Answer = Encoded | Listed | Decoded | Checked


def _limits(job_bytes: int) -> JobLimits:
    """Several times what ordinary tokenizers need: a second and 200 MB per megabyte of text."""
    return JobLimits(min(2 + 5 * job_bytes // MIB, 60), 512 * MIB + 256 * job_bytes)


def _ready(data: bytes) -> WorkerReady | Failed:
    answer: WorkerReady | Failed = msgspec.msgpack.decode(data, type=WorkerReady | Failed)
    return answer


def _answer(data: bytes) -> Answer | Failed:
    answer: Answer | Failed = msgspec.msgpack.decode(data, type=Answer | Failed)
    return answer


TEXT: JobKind[WorkerReady, Answer] = JobKind(
    name="text worker",
    module="tessera.text",
    variables=MappingProxyType(
        {
            "PYTHONSAFEPATH": "1",
            # Threads would each use memory, and processor time would no longer match elapsed time.
            "TOKENIZERS_PARALLELISM": "false",
            "RUST_BACKTRACE": "0",
            # So that glibc returns what a long text took.
            "MALLOC_MMAP_THRESHOLD_": str(MIB),
        }
    ),
    loading=JobLimits(30, 2048 * MIB),
    limits=_limits,
    encode=msgspec.msgpack.encode,
    decode_ready=_ready,
    decode=_answer,
    files="The tokenizer and the chat template",
    work="Rendering or tokenizing this text",
    limit_error=TextLimitError,
    worker_error=TextWorkerError,
    overloaded="Too many texts wait to be tokenized; try again.",
)


# ---- the process -------------------------------------------------------------------------------------------------


class Texts:
    """Runs jobs with one model's tokenizer and chat template. Raises ModelError."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: str | None = None,
        content_format: Literal["string", "openai"] | None = None,
        *,
        parse_special_tokens: bool = False,
        pair_instruction: str | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._special = SpecialTexts(()) if parse_special_tokens else tokenizer.special_texts
        self._parse_special_tokens = parse_special_tokens
        self._including_cached = lru_cache(maxsize=1)(self._special.including)
        sources = template or tokenizer.chat_templates
        self.has_template = bool(sources)
        self.template = sources if isinstance(sources, str) else "\n".join(sources.values())
        self.response_template = tokenizer.response_template
        self._template = ChatTemplate(sources, tokenizer.special_tokens, content_format)
        self._compile_cached = lru_cache(maxsize=1)(self._compile)
        self._pair_instruction = pair_instruction
        if pair_instruction is not None:
            self._check_pairs()

    def do(self, job: Job) -> Encoded | Listed | Decoded | Checked:
        """Raises RequestError or MemoryError."""
        assert not isinstance(job, GrammarJob), "grammars have a worker of their own"
        match job:
            case ChatJob():
                return self._chat(job)
            case EncodeJob(listed=True):
                text = with_replacements(job.texts[0], job.placeholders, job.replacements)
                ids = self._encode(text, job.add_special_tokens, job.max_tokens)
                return self._listed(ids, spelled=job.spelled)
            case EncodeJob():
                return self._encode_all(job)
            case DecodeJob(tokens, skip_special_tokens, below):
                if below and tokens and not 0 <= min(tokens) <= max(tokens) < below:
                    raise RequestError(f"tokens must be token ids from 0 to {below - 1}.", param="tokens")
                return Decoded(msgspec.json.encode(self._tokenizer.decode(tokens, skip_special_tokens)))

    def _encode_all(self, job: EncodeJob) -> Encoded:
        """Raises RequestError, which names the text at fault if the job says what number it has."""
        encoded = Encoded([], boundaries=None if job.second is None else [])
        for index, text in enumerate(job.texts):
            try:
                if encoded.boundaries is not None and job.second is not None:
                    pair = self._encode_pair(job, TextPair(text, job.second[index]))
                    encoded.ids.append(pair.ids)
                    encoded.boundaries.append(pair.boundary)
                else:
                    side = job.truncation_side
                    full = with_replacements(text, job.placeholders, job.replacements)
                    encoded.ids.append(self._encode(full, job.add_special_tokens, job.max_tokens, side=side))
            except RequestError as error:
                if job.first is not None and not isinstance(error, BrokenTokenizerError):
                    error.param = f"prompt[{job.first + index}]"
                raise
        return encoded

    def _encode_pair(self, job: EncodeJob, pair: TextPair) -> EncodedPair:
        if self._pair_instruction is not None:
            return self._rendered_pair(job, pair, self._pair_instruction)
        encoded = self._tokenizer.encode_pair(
            pair, job.add_special_tokens, max_tokens=job.max_tokens, truncation_side=job.truncation_side
        )
        _check_count(len(encoded.ids), sum(map(len, pair)), job.max_tokens)
        return encoded

    def _rendered_pair(self, job: EncodeJob, pair: TextPair, instruction: str) -> EncodedPair:
        """Of a pair that is too long, the second text is cut: the words around it say what is asked."""
        limit = None if job.truncation_side is None else job.max_tokens
        ids = self._chat_ids(pair, instruction, job.max_tokens if limit is None else None)
        if limit is not None and len(ids) > limit:
            second = self._encode(pair.second, False, None)
            while len(ids) > limit:
                keep = len(second) - (len(ids) - limit)
                if keep < 1:
                    text = f"A pair is at most {limit} tokens long, and this one is longer without its second text."
                    raise RequestError(text, param="prompt", code="context_length_exceeded")
                second = second[:keep] if job.truncation_side == "right" else second[-keep:]
                ids = self._chat_ids(pair._replace(second=self._tokenizer.decode(second)), instruction, None)
        return EncodedPair(ids, len(ids))

    def _chat_ids(self, pair: TextPair, instruction: str, max_tokens: int | None) -> list[int]:
        messages = [{"role": "system", "content": instruction}] if instruction else []
        messages += [{"role": "query", "content": pair.first}, {"role": "document", "content": pair.second}]
        encoded = self._chat(ChatJob(messages, max_tokens=max_tokens))
        assert isinstance(encoded, Encoded)
        return encoded.ids[0]

    def _check_pairs(self) -> None:
        """Raises ModelError for a template without a place for each text of a pair."""
        pair = [{"role": "query", "content": "question"}, {"role": "document", "content": "passage"}]
        try:
            text = self._template.render(pair) if self.has_template else ""
        except RequestError as error:
            text = error.message
        if not ("question" in text and "passage" in text):
            raise ModelError(
                "The model reads a query and a document in its chat template, and the template has no place for them; "
                "start the server with a --chat-template for the roles query and document."
            )

    def _chat(self, job: ChatJob) -> Encoded | Listed:
        template = self._template if job.template is None else self._compile_cached(job.template)
        mark = self._special_with(job.placeholders).mark()
        marked = template.render(
            mark.put(job.messages),
            tools=mark.put(job.tools),
            documents=mark.put(job.documents),
            add_generation_prompt=job.add_generation_prompt,
            continue_final_message=job.continue_final_message,
            template_kwargs=job.template_kwargs,
            placeholders=job.placeholders,
        )
        if job.max_chars is not None and len(mark.removed(marked)) > job.max_chars:
            raise RequestError(f"A chat has at most {job.max_chars} characters.", param="messages")
        marked = with_replacements(marked, job.placeholders, job.replacements)
        text = mark.removed(marked)
        ids = self._encode(text, job.add_special_tokens, job.max_tokens, mark.pieces(marked))
        if job.listed:
            return self._listed(ids, spelled=job.spelled)
        reasons = None if job.reasoning is None else _within_reasoning(text, *job.reasoning)
        begun = _after(job.anchor, text) if job.anchor else ""
        return Encoded([ids], text if job.text else None, reasons, begun)

    def _special_with(self, placeholders: Mapping[str, str]) -> SpecialTexts:
        """What a client's text has no tokens of. Some models' vocabulary has a placeholder as plain text."""
        if self._parse_special_tokens or not placeholders:
            return self._special
        return self._including_cached(*placeholders.values())

    def _encode(
        self,
        text: str,
        add_special_tokens: bool,
        max_tokens: int | None,
        pieces: Sequence[PromptPiece] = (),
        side: TruncationSide | None = None,
    ) -> list[int]:
        """Limits the number of ids, so that a tokenizer cannot flood the caller."""
        ids = self._tokenizer.encode(
            text, add_special_tokens, max_tokens=max_tokens, pieces=pieces, truncation_side=side
        )
        _check_count(len(ids), len(text), max_tokens)
        return ids

    def _listed(self, ids: list[int], *, spelled: bool) -> Listed:
        texts = [self._tokenizer.token(token) or "" for token in ids] if spelled else None
        return Listed(len(ids), msgspec.json.encode(ids), msgspec.json.encode(texts))

    def _compile(self, source: str) -> ChatTemplate:
        return ChatTemplate(source, self._tokenizer.special_tokens)


def _check_count(tokens: int, characters: int, max_tokens: int | None) -> None:
    """Raises RequestError for more tokens than there may be. characters: of the text."""
    if max_tokens is not None and tokens > max_tokens:
        raise RequestError(
            f"This model's maximum context length is {max_tokens} tokens. However, you requested a prompt of "
            f"{tokens} tokens.",
            param="prompt",
            code="context_length_exceeded",
        )
    most = _MOST_TOKENS + _MOST_TOKENS_PER_CHAR * characters
    if tokens > most:
        said = f"The model's tokenizer makes more than the limit of {most} tokens of this text."
        raise RequestError(said, param="prompt", code=TextLimitError.code)


def _within_reasoning(prompt: str, begin: str, end: str) -> bool | None:
    """Whether a template has begun reasoning at the end of the prompt (True), or ended it for the model (False)."""
    tail = prompt.rstrip()
    if tail.endswith(begin.rstrip()):
        return True
    return False if tail.endswith(end) else None


def _after(anchor: str, prompt: str) -> str:
    """The prompt after the last match of the anchor; all of it if there is none, as transformers has it. At most its
    last 65,536 characters: the front end reads them between other clients' tokens."""
    import regex  # type: ignore[import-untyped]  # it has no stubs of its own, and few models need it

    end = 0
    for found in regex.finditer(anchor, prompt, regex.DOTALL):
        end = found.end()
    return prompt[max(end, len(prompt) - _MOST_BEGUN) :]


class Grammars:
    """Checks grammars, over single bytes, and translates them for an engine."""

    has_template = False
    template = response_template = ""

    def __init__(self, start: Start) -> None:
        self._start = start

    @cached_property
    def _bytes(self) -> LLTokenizer:
        return byte_tokenizer()

    def do(self, job: Job) -> Checked:
        """Raises RequestError or MemoryError."""
        assert isinstance(job, GrammarJob)
        params = job.params
        if self._start.allow_additional_properties and params.disable_additional_properties is None:
            params = msgspec.structs.replace(params, disable_additional_properties=False)
        grammar = compile_leniently(params, self._bytes)
        source = grammar.source(self._start.special_tokens)
        return Checked(
            source if len(source.grammars) <= MAX_SOURCE_CHARS else None,
            None if grammar.params is job.params else grammar.params,
        )


class _TextFiles:
    """What the process has loaded."""

    def __init__(self, texts: Texts | Grammars) -> None:
        self._texts = texts
        self._jobs = msgspec.msgpack.Decoder(Job)
        self.ready = WorkerReady(texts.has_template, texts.template, texts.response_template)

    def answer(self, job: bytearray) -> Answer:
        """Raises RequestError or MemoryError."""
        return self._texts.do(self._jobs.decode(job))


def _load(started: bytearray) -> _TextFiles:
    """Raises ModelError or MemoryError."""
    start = msgspec.msgpack.decode(started, type=Start)
    if start.tokenizer is None:
        return _TextFiles(Grammars(start))
    return _TextFiles(
        Texts(
            Tokenizer.from_folder(start.tokenizer),
            start.template,
            start.content_format,
            parse_special_tokens=start.parse_special_tokens,
            pair_instruction=start.pair_instruction,
        )
    )


def main() -> int:
    """Runs the process and returns its exit code."""
    return run(TEXT, _load, fatal=BrokenTokenizerError)
