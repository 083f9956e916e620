"""One chat, from its request to what the model says: what every route that chats has in common."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

import msgspec
from starlette.types import Scope

from tessera.errors import RequestError
from tessera.parsing.response import Event
from tessera.request import CompletionOutput
from tessera.sampling_params import ReasoningParams, SamplingParams, StructuredOutputsParams
from tessera.server.assembly import taken
from tessera.server.context import ServerContext
from tessera.server.generation.answer_reader import AnswerReader, FormatReader, PlainReader
from tessera.server.generation.beams import way_of
from tessera.server.generation.chat import ChatFields
from tessera.server.generation.output import Generation, Identity, collect
from tessera.server.generation.owner import owner_of
from tessera.server.generation.prompt import RenderedChat, render
from tessera.server.generation.sampling import check_alternatives, check_common, sampling_params
from tessera.server.generation.structured import structured_outputs
from tessera.server.generation.tools import ToolUse, check_grammar, grammar_of, tool_use
from tessera.server.security import client_of

if TYPE_CHECKING:
    pass

T = TypeVar("T")
NO_NAMES: Mapping[str, str] = MappingProxyType({})


class ChatRun:
    """A chat whose answer is due. reasons: whether its answer shows reasoning."""

    def __init__(
        self,
        context: ServerContext,
        request: ChatFields,
        identity: Identity,
        generation: Generation,
        use: ToolUse,
        rendered: RenderedChat,
    ) -> None:
        self.identity = identity
        self.generation = generation
        self._named = use.named
        known = use.instead or context.format
        choices = range(generation.num_choices)
        self.reasons = known is not None and known.reasons and request.include_reasoning is not False
        self._readers: Sequence[AnswerReader] = [PlainReader() for _ in choices]
        if known is not None and known.reads(tools=bool(use.tools)):
            _, begun, written = rendered
            vocabulary, hidden = context.engine.tokenizer, not self.reasons
            self._readers = [
                FormatReader(known, use.tools, vocabulary, begun=begun, prompt=written, hidden=hidden) for _ in choices
            ]
            generation.counts_reasoning(lambda: sum(reader.reasoning_tokens for reader in self._readers))

    @classmethod
    async def begin(
        cls,
        context: ServerContext,
        request: ChatFields,
        scope: Scope,
        prefix: str,
        names: Mapping[str, str] = NO_NAMES,
    ) -> ChatRun:
        """prefix: of the answer's id. names: what another API calls the fields, to say in errors. Raises RequestError,
        NotFoundError, EngineDeadError, TextWorkerError."""
        with in_terms_of(names):
            return await cls._begin(context, request, scope, prefix)

    @classmethod
    async def _begin(cls, context: ServerContext, request: ChatFields, scope: Scope, prefix: str) -> ChatRun:
        limits = context.settings.limits
        check_common(request, limits)
        context.check_model(request.model)
        use = tool_use(request, context.format, limits)
        own = structured_outputs(request)
        asked = grammar_of(own, use, context.format)
        params = _sampling_params(context, request, asked.params)
        way = way_of(context, request, params)
        identity = Identity.of(context, prefix, request, scope)
        params = await check_grammar(context, use, own, asked, params)
        rendered = await render(context, request, use, params.max_tokens, client=client_of(scope))
        params = _reading(context, params, use, request.thinking_token_budget, begun=rendered.begun)
        generation = Generation(context, owner_of(context, request, scope), [rendered.prompt], params, way, identity.id)
        return cls(context, request, identity, generation, use, rendered)

    async def updates(self) -> AsyncGenerator[list[tuple[CompletionOutput, list[Event]]], None]:
        """What is new of each choice, as outputs arrive. Closing it aborts the request."""
        async for _, output in self.generation.outputs():
            yield [(answer, self._readers[answer.index].read(answer)) for answer in output.outputs]

    async def whole(self, assemble: Callable[[list[tuple[CompletionOutput, list[Event]]]], T]) -> T:
        """What `assemble` makes of all choices, once all have ended. It runs on another thread if they are large."""
        answers = await collect(self.generation)

        def read() -> T:
            events = [self._readers[answer.index].read(answer) for answer in answers]
            return assemble(list(zip(taken(answers), events, strict=True)))

        return await self.generation.assembled(answers, read)

    def finish_reason(self, answer: CompletionOutput) -> str | None:
        """As OpenAI says it: calls that the model chose to make, or had to choose from, are why it stopped."""
        called = self._readers[answer.index].calls and not self._named
        return "tool_calls" if called and answer.finish_reason == "stop" else answer.finish_reason


async def count_tokens(
    context: ServerContext, request: ChatFields, scope: Scope, names: Mapping[str, str] = NO_NAMES
) -> int:
    """The tokens of a chat's prompt. scope: of who asks. names: as of ChatRun.begin. Raises RequestError,
    NotFoundError, TextWorkerError."""
    with in_terms_of(names):
        context.check_name(request.model)
        use = tool_use(request, context.format, context.settings.limits)
        rendered = await render(context, request, use, client=client_of(scope))
        return len(rendered.prompt.token_ids)


@contextmanager
def in_terms_of(names: Mapping[str, str]) -> Iterator[None]:
    """Errors name fields as another API calls them: the first of `names` that is in the param is replaced."""
    try:
        yield
    except RequestError as error:
        own = next((name for name in names if error.param is not None and name in error.param), None)
        if own is None or error.param is None:
            raise
        param = error.param.replace(own, names[own], 1)
        message = error.message.replace(error.param, param, 1)
        raise type(error)(message, param=param, code=error.code) from None


def _sampling_params(
    context: ServerContext, request: ChatFields, structured: StructuredOutputsParams | None
) -> SamplingParams:
    field = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
    most = getattr(request, field)
    if most is not None and not 1 <= most < 2**31:
        raise RequestError(f"{field} must be at least 1 and below 2**31, got {most}.", param=field)
    return sampling_params(
        request,
        context.settings.default_sampling,
        max_tokens=context.settings.answers.capped(most),
        logprobs=_logprobs(context, request),
        detokenize=True,
        structured=structured,
    )


def _logprobs(context: ServerContext, request: ChatFields) -> int | None:
    top = request.top_logprobs
    if request.logprobs and top is None:
        top = 0
    check_alternatives(request, "top_logprobs", top, context.engine.config.model)
    if top and not request.logprobs:
        raise RequestError("top_logprobs needs logprobs=true.", param="top_logprobs")
    return (top or 0) if request.logprobs else None


def _reading(
    context: ServerContext, params: SamplingParams, use: ToolUse, budget: int | None, *, begun: bool
) -> SamplingParams:
    """The params with what reading the answer needs: the markers stay in the text, and a grammar waits for the end of
    the reasoning. Raises RequestError for a budget of reasoning that the model has none of."""
    known = use.instead or context.format
    gate, kept = None, params.kept_special_tokens
    if known is not None and known.reads(tools=bool(use.tools)):
        kept = known.markers
    if known is not None and not (params.structured_outputs is None and budget is None):
        markers = known.before_calls if use.tools else known.reasoning
        gate = None if markers is None else ReasoningParams(markers.begin, markers.end, begun=begun)
    return msgspec.structs.replace(params, kept_special_tokens=kept, reasoning=gate, thinking_token_budget=budget)
