"""The route of the Decisions API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import NamedTuple, TypeVar

import msgspec
from starlette.types import Scope

from tessera.arrays import Array, int32
from tessera.errors import EngineStepError, RequestError
from tessera.request import Logprob
from tessera.sampling_params import RequestOutputKind, SamplingParams
from tessera.server.context import ServerContext
from tessera.server.decisions.labels import Labels
from tessera.server.decisions.protocol import MAX_QUESTIONS, MAX_TOKENS, Decision, DecisionRequest
from tessera.server.decisions.questions import LabelledQuestion, text_of
from tessera.server.decode import RequestDecoder
from tessera.server.generation.chat import ChatFields, ChatMessage
from tessera.server.generation.endpoint import GenerationEndpoint
from tessera.server.generation.items import Item, input_items, messages_of
from tessera.server.generation.prepare import RequestOwner
from tessera.server.generation.prompt import render
from tessera.server.generation.run import renamed_fields
from tessera.server.generation.tools import ToolUse
from tessera.server.generation.usage import ResponseUsage, TokenUsage
from tessera.server.openapi import JsonRoute
from tessera.server.served_model import ServedModel
from tessera.server.settings import ServerSettings

T = TypeVar("T")
U = TypeVar("U")
_FEW = 16
"""Questions of a request that take the event loop little."""
_AT_ONCE = 16
"""Questions of a request that the engine has at once. Their answers come together, and are read without a pause."""

_NAMES = {"messages": "input", "prompt": "input"}
_TOOLS = {"custom_tool_call": "function_call", "custom_tool_call_output": "function_call_output"}


def routes(context: ServerContext) -> list[JsonRoute]:
    body = context.settings.limits.body_bytes
    decoder = RequestDecoder(context, DecisionRequest, {}, {"input": body, "questions": body})
    engine = context.engine
    labels = None if engine.tokenizer is None else Labels(engine.tokenizer, engine.config.model.vocab_size)

    async def read(body: bytes, scope: Scope) -> Deciding:
        asked = await decoder.decode(body)
        model = context.generating_model(asked.model)
        if labels is None:
            raise RequestError("This server has no tokenizer, so nothing can be decided.")
        return await Deciding.prepare(context, model, asked, labels, scope)

    return [
        JsonRoute(
            "/v1/decisions",
            GenerationEndpoint(read, context),
            "Answers questions about an input with probabilities.",
            methods=("POST",),
            body=DecisionRequest,
            answer=Decision,
        )
    ]


class LabelLogprobs(NamedTuple):
    """What is kept of the engine's output until all questions are answered. position: the log probabilities of the
    labels."""

    position: Mapping[int, Logprob]
    num_cached_tokens: int


class Deciding:
    """The questions of one request, of which each is a prompt of its own, and the first token of each answer. prompts:
    with the input in front, so all but the first find it in the cache."""

    def __init__(
        self,
        context: ServerContext,
        model: ServedModel,
        questions: Sequence[LabelledQuestion],
        prompts: Sequence[Array],
        owner: RequestOwner,
    ) -> None:
        self._context = context
        self._model = model
        self._questions = questions
        self._prompts = prompts
        self._owner = owner
        self._name = f"decision-{next(context.numbers)}"

    @classmethod
    async def prepare(
        cls, context: ServerContext, model: ServedModel, request: DecisionRequest, labels: Labels, scope: Scope
    ) -> Deciding:
        """Raises RequestError, TextWorkerError."""
        if not 1 <= len(request.questions) <= MAX_QUESTIONS:
            count = len(request.questions)
            raise RequestError(f"questions must have 1 to {MAX_QUESTIONS} entries, got {count}.", param="questions")
        await labels.load()
        asked = await _for_each(
            context,
            lambda index, question: LabelledQuestion.build(question, f"questions[{index}]", labels),
            request.questions,
        )
        messages = _messages(request.input)
        chat = ChatFields(
            messages=messages, model=request.model, priority=request.priority, user=request.user,
            prompt_cache_key=request.prompt_cache_key, reasoning_effort="none",
        )  # fmt: skip
        owner = RequestOwner.from_request(context, model, chat, scope)
        with renamed_fields(_NAMES):
            prompts = await _prompts(context.settings, model, chat, messages, [one.text for one in asked], owner.client)
        return cls(context, model, asked, prompts, owner)

    async def whole(self) -> Decision:
        first, *others = range(len(self._questions))
        given = [await self._ask(first)]
        places = asyncio.Semaphore(_AT_ONCE)

        async def in_turn(index: int) -> LabelLogprobs:
            async with places:
                return await self._ask(index)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(in_turn(index)) for index in others]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None  # each names its cause; the first ended the others
        given += [task.result() for task in tasks]
        answers = await _for_each(
            self._context, lambda index, logprobs: self._questions[index].answer(logprobs.position), given
        )
        tokens = sum(map(len, self._prompts))
        cached = sum(one.num_cached_tokens for one in given)
        return Decision(
            model=self._model.name,
            answers=answers,
            usage=ResponseUsage.from_tokens(TokenUsage(tokens, 0, cached)),
        )

    async def _ask(self, index: int) -> LabelLogprobs:
        """Raises EngineStepError if the engine cut the answer short."""
        params = SamplingParams(
            max_tokens=1,
            temperature=0.0,
            detokenize=False,
            logprob_token_ids=self._questions[index].tokens,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        name = f"{self._name}-{index}"
        prompt = self._prompts[index].tolist()
        outputs = self._model.engine.generate(prompt, params, name, **self._owner.arguments)
        async with aclosing(outputs):
            output = [output async for output in outputs][-1]
        (answer,) = output.outputs
        if not answer.logprobs:
            raise EngineStepError(f"The engine ended an answer with {answer.finish_reason!r}.")
        return LabelLogprobs(answer.logprobs[0], output.num_cached_tokens)


async def _for_each(context: ServerContext, work: Callable[[int, T], U], values: Sequence[T]) -> list[U]:
    """The results of work(index, value); beside the event loop if there are many."""

    def results() -> list[U]:
        return [work(index, value) for index, value in enumerate(values)]

    return results() if len(values) <= _FEW else await context.assembly.run(results)


# ---- the prompt ------------------------------------------------------------------------------------------------------


async def _prompts(
    settings: ServerSettings,
    model: ServedModel,
    chat: ChatFields,
    messages: Sequence[ChatMessage],
    questions: Sequence[str],
    client: str,
) -> list[Array]:
    """[tokens] int32 of each question."""
    prompts, tokens = [], 0
    for question in questions:
        prompts.append(int32(await _prompt(settings, model, chat, messages, question, client)))
        tokens += len(prompts[-1])
        if tokens > MAX_TOKENS:
            raise RequestError(
                f"The input, counted once for each of the questions, must have at most {MAX_TOKENS} tokens.",
                param="questions",
            )
    return prompts


async def _prompt(
    settings: ServerSettings,
    model: ServedModel,
    chat: ChatFields,
    messages: Sequence[ChatMessage],
    question: str,
    client: str,
) -> list[int]:
    """The question is part of the last message if that is the user's: some templates take no two in a row. Reasoning,
    if the template begins it, is ended at once."""
    *before, last = messages
    if last.role == "user":
        asked = [*before, msgspec.structs.replace(last, content=f"{_text(last)}\n\n{question}")]
    else:
        asked = [*messages, ChatMessage("user", question)]
    chat = msgspec.structs.replace(chat, messages=asked)
    rendered = await render(settings, model, chat, ToolUse(model.format), client=client)
    ids = list(rendered.prompt.token_ids)
    if rendered.reasons:
        assert model.format is not None
        assert model.text is not None
        (end,) = await model.text.encode([model.format.without_reasoning], False, owner=client)
        ids += end
    return ids


def _text(message: ChatMessage) -> str:
    parts = message.content or ""
    return parts if isinstance(parts, str) else "\n".join(part.text or "" for part in parts)


def _messages(request_input: str | Sequence[Item]) -> list[ChatMessage]:
    """Raises RequestError."""
    if isinstance(request_input, str):
        if not request_input.strip():
            raise RequestError("input must not be empty.", param="input")
        return [ChatMessage("user", request_input)]
    items = [_plain(item, f"input[{index}]") for index, item in enumerate(request_input)]
    if not items:
        raise RequestError("input must have at least one message.", param="input")
    return messages_of(input_items(items))


def _plain(item: Item, place: str) -> Item:
    """The item with text in place of JSON, and with a function in place of a custom tool."""
    found = {**item}
    if item.get("type") in _TOOLS:
        found["type"] = _TOOLS[item["type"]]
        found["arguments"] = msgspec.json.encode({"input": item.get("input")}).decode()
    for name in ("content", "output"):
        if isinstance(item.get(name), list):
            found[name] = [
                {"type": "input_text", "text": text_of(part, f"{place}.{name}[{index}]")}
                for index, part in enumerate(item[name])
            ]
    return found
