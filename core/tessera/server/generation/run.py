"""One chat, from its request to what the model says, read as it arrives: what every route that chats has in common."""

from __future__ import annotations

import codecs
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Protocol, TypeVar

import msgspec
from starlette.types import Scope

from tessera.errors import RequestError
from tessera.parsing.calls import Tool
from tessera.parsing.response import Content, Event, Reasoning, ResponseFormat, ResponseParser
from tessera.request import CompletionOutput, RequestOutput
from tessera.sampling_params import ReasoningParams, SamplingParams
from tessera.server.assembly import taken
from tessera.server.context import ServerContext
from tessera.server.generation.chat import ChatFields
from tessera.server.generation.output import Generation, collect
from tessera.server.generation.prepare import Identity, PreparedRequest, RequestOwner, prepare
from tessera.server.generation.prompt import RenderedChat, render
from tessera.server.generation.sampling import check_alternatives, check_fields, generation_method, sampling_params
from tessera.server.generation.tools import ToolUse, prepare_constrained, tool_use
from tessera.server.security import client_of
from tessera.server.served_model import ServedModel
from tessera.server.settings import ServerSettings
from tessera.text import Vocabulary

T = TypeVar("T")
NO_NAMES: Mapping[str, str] = MappingProxyType({})


class ChatRun:
    """A chat whose answer is due. reasons: whether its answer shows reasoning."""

    def __init__(
        self,
        context: ServerContext,
        request: ChatFields,
        prepared: PreparedRequest,
        use: ToolUse,
        rendered: RenderedChat,
    ) -> None:
        self.identity = prepared.identity
        self.generation = Generation(context, prepared)
        self._names_function = use.names_function
        choices, written = range(prepared.num_choices), use.format
        self.reasons = written is not None and written.reasons and request.include_reasoning is not False
        self._readers: Sequence[AnswerReader] = [PlainReader() for _ in choices]
        if written is not None and written.reads(tools=bool(use.tools)):
            begun, prompt, hidden = rendered.reasons, rendered.answer_begin, not self.reasons
            self._readers = [
                FormatReader(
                    written, use.tools, prepared.model.engine.tokenizer, begun=begun, prompt=prompt, hidden=hidden
                )
                for _ in choices
            ]
            self.generation.count_reasoning(lambda: sum(reader.reasoning_tokens for reader in self._readers))

    @classmethod
    async def prepare(
        cls,
        context: ServerContext,
        request: ChatFields,
        scope: Scope,
        prefix: str,
        field_names: Mapping[str, str] = NO_NAMES,
    ) -> ChatRun:
        """prefix: of the answer's id. field_names: what another API calls the fields, to say in errors. Raises
        RequestError, NotFoundError, EngineDeadError, TextWorkerError."""
        settings = context.settings
        with renamed_fields(field_names):
            check_fields(request, settings.limits)
            model = context.generating_model(request.model, scope)
            use = _tool_use(settings, model, request)
            params = _sampling_params(settings, model, request)
            method = generation_method(model, request, params)
            identity = Identity.from_request(model, prefix, request, settings.limits, scope)
            owner = RequestOwner.from_request(context, model, request, scope)
            if use.tools or request.response_format is not None or request.structured_outputs is not None:
                params = await prepare_constrained(model, request, use, params, owner.client)
            else:
                params = await model.engine.prepare_params(params, owner.client)
            rendered = await render(settings, model, request, use, params.max_tokens, client=owner.client)
            params = _reading_params(params, use, request.thinking_token_budget, reasons=rendered.reasons)
            prepared = await prepare(context, model, identity, owner, method, params, [rendered.prompt])
        return cls(context, request, prepared, use, rendered)

    def read(self, output: RequestOutput) -> list[tuple[CompletionOutput, list[Event]]]:
        """What is new of each choice."""
        return [(answer, self._readers[answer.index].read(answer)) for answer in output.outputs]

    async def whole(self, assemble: Callable[[list[tuple[CompletionOutput, list[Event]]]], T]) -> T:
        """What `assemble` makes of all choices, once all have ended. It runs on another thread if they are large."""
        answers = await collect(self.generation)

        def read() -> T:
            events = [self._readers[answer.index].read(answer) for answer in answers]
            return assemble(list(zip(taken(answers), events, strict=True)))

        return await self.generation.assembled(answers, read)

    def finish_reason(self, answer: CompletionOutput) -> str | None:
        """As OpenAI says it: calls that the model chose to make, or had to choose from, are why it stopped."""
        called = self._readers[answer.index].calls and not self._names_function
        return "tool_calls" if called and answer.finish_reason == "stop" else answer.finish_reason


async def count_tokens(
    context: ServerContext, request: ChatFields, scope: Scope, field_names: Mapping[str, str] = NO_NAMES
) -> int:
    """The tokens of a chat's prompt. scope: of who asks. field_names: as of ChatRun.prepare. Raises RequestError,
    NotFoundError, TextWorkerError."""
    with renamed_fields(field_names):
        settings, model = context.settings, context.allowed_model(request.model, scope)
        rendered = await render(settings, model, request, _tool_use(settings, model, request), client=client_of(scope))
        return len(rendered.prompt.token_ids)


@contextmanager
def renamed_fields(field_names: Mapping[str, str]) -> Iterator[None]:
    """Errors name fields as another API calls them: the first of `field_names` that is in the param is replaced."""
    try:
        yield
    except RequestError as error:
        name = next((name for name in field_names if error.param is not None and name in error.param), None)
        if name is None or error.param is None:
            raise
        param = error.param.replace(name, field_names[name], 1)
        message = error.message.replace(error.param, param, 1)
        raise type(error)(message, param=param, code=error.code) from None


def _tool_use(settings: ServerSettings, model: ServedModel, request: ChatFields) -> ToolUse:
    """Raises RequestError."""
    if request.tools or request.tool_choice is not None:
        return tool_use(request, model.format, settings.limits)
    return ToolUse(model.format)


def _sampling_params(settings: ServerSettings, model: ServedModel, request: ChatFields) -> SamplingParams:
    field = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
    max_tokens = getattr(request, field)
    if max_tokens is not None and not 1 <= max_tokens < 2**31:
        raise RequestError(f"{field} must be at least 1 and below 2**31, got {max_tokens}.", param=field)
    return sampling_params(
        request,
        settings.default_sampling,
        max_tokens=settings.answers.capped(max_tokens),
        logprobs=_num_logprobs(model, request),
        detokenize=True,
    )


def _num_logprobs(model: ServedModel, request: ChatFields) -> int | None:
    top = request.top_logprobs
    if request.logprobs and top is None:
        top = 0
    check_alternatives(request, "top_logprobs", top, model.engine.config.model)
    if top and not request.logprobs:
        raise RequestError("top_logprobs needs logprobs=true.", param="top_logprobs")
    return (top or 0) if request.logprobs else None


def _reading_params(params: SamplingParams, use: ToolUse, budget: int | None, *, reasons: bool) -> SamplingParams:
    """The params with what reading the answer needs: the markers stay in the text, and a grammar waits for the end of
    the reasoning. Raises RequestError for a budget of reasoning that the model has none of."""
    written = use.format
    gate, special_tokens = None, params.kept_special_tokens
    if written is not None and written.reads(tools=bool(use.tools)):
        special_tokens = written.markers
    if written is not None and not (params.structured_outputs is None and budget is None):
        markers = written.before_calls if use.tools else written.reasoning
        gate = None if markers is None else ReasoningParams(markers.begin, markers.end, begun=reasons)
    return msgspec.structs.replace(
        params, kept_special_tokens=special_tokens, reasoning=gate, thinking_token_budget=budget
    )


# ---- readers of the answer


class AnswerReader(Protocol):
    """Reads one choice. calls: how many it has so far. reasoning_tokens: of its tokens so far."""

    @property
    def calls(self) -> int: ...

    @property
    def reasoning_tokens(self) -> int: ...

    def read(self, answer: CompletionOutput) -> list[Event]:
        """What is new, or all of a whole answer."""
        ...


class PlainReader:
    """For answers that are text."""

    calls: int = 0
    reasoning_tokens: int = 0

    def __init__(self) -> None:
        self._place = 0

    def read(self, answer: CompletionOutput) -> list[Event]:
        self._place += len(answer.text)
        return [Content(answer.text, self._place)] if answer.text else []


class FormatReader:
    """For answers with reasoning or calls. begun: whether they begin within reasoning. prompt: what the prompt has
    written of them, where the format needs it. hidden: reasoning is left out."""

    def __init__(
        self,
        written: ResponseFormat,
        tools: Iterable[Tool],
        vocabulary: Vocabulary | None,
        *,
        begun: bool,
        prompt: str,
        hidden: bool,
    ) -> None:
        self._parser = ResponseParser(written, tools, reasons=begun, prompt=prompt)
        self._hidden = hidden
        self._counter = ReasoningCounter(self._parser, vocabulary)

    @property
    def calls(self) -> int:
        return self._parser.num_calls

    @property
    def reasoning_tokens(self) -> int:
        return self._counter.count

    def read(self, answer: CompletionOutput) -> list[Event]:
        events = self._parser.feed(answer.text)
        self._counter.add(answer)
        if answer.finished:
            events += self._parser.finish()
        return [event for event in events if not isinstance(event, Reasoning)] if self._hidden else events


class ReasoningCounter:
    """Counts the tokens of reasoning, with those of its markers, by where tokens begin in the answer."""

    def __init__(self, parser: ResponseParser, vocabulary: Vocabulary | None) -> None:
        self._parser = parser
        self._vocabulary = vocabulary
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._next = 0
        self._begins: list[int] = []
        self._waiting: list[int] = []
        """Tokens after the reasoning so far, which may come again."""

    def add(self, answer: CompletionOutput) -> None:
        """answer: what is new, after the parser has read it."""
        self._waiting += answer.token_ids
        if self._vocabulary is None or self._next >= self._parser.reasoning_end:
            return
        for token in self._waiting:
            self._begins.append(self._next)
            self._next += len(self._utf8.decode(self._vocabulary.token_bytes(token)))
        self._waiting = []

    @property
    def count(self) -> int:
        begins, since = self._begins, self._parser.reasons_since
        closed = sum(bisect_left(begins, end) - bisect_left(begins, begin) for begin, end in self._parser.reasoned)
        return closed if since is None else closed + len(begins) - bisect_left(begins, since)
