"""OpenAI's route: /v1/decisions."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from starlette.types import Scope

from tessera.errors import RequestError
from tessera.server.context import ServerContext
from tessera.server.decisions.labels import Labels
from tessera.server.decisions.prompts import question_prompts
from tessera.server.decisions.protocol import MAX_QUESTIONS, Decision, DecisionRequest
from tessera.server.decisions.questions import LabelledQuestion, text_of
from tessera.server.decisions.run import DecisionRun, for_each
from tessera.server.decode import RequestDecoder
from tessera.server.generation.chat import ChatFields, ChatMessage
from tessera.server.generation.endpoint import GenerationEndpoint
from tessera.server.generation.items import Item, input_items, messages_of
from tessera.server.generation.prepare import RequestOwner
from tessera.server.generation.run import renamed_fields
from tessera.server.generation.usage import ResponseUsage, TokenUsage
from tessera.server.openapi import JsonRoute
from tessera.server.served_model import ServedModel

_NAMES = {"messages": "input", "prompt": "input"}
_TOOLS = {"custom_tool_call": "function_call", "custom_tool_call_output": "function_call_output"}


def route(context: ServerContext, labels: Labels | None) -> JsonRoute:
    """labels: None without a tokenizer."""
    body = context.settings.limits.body_bytes
    decoder = RequestDecoder(context, DecisionRequest, {}, {"input": body, "questions": body})

    async def read(body: bytes, scope: Scope) -> Deciding:
        asked = await decoder.decode(body)
        model = context.generating_model(asked.model, scope)
        if labels is None:
            raise RequestError("This server has no tokenizer, so nothing can be decided.")
        return await Deciding.prepare(context, model, asked, labels, scope)

    return JsonRoute(
        "/v1/decisions",
        GenerationEndpoint(read, context),
        "Answers questions about an input with probabilities.",
        methods=("POST",),
        body=DecisionRequest,
        answer=Decision,
    )


class Deciding:
    """The questions of one request, and the decision that answers them."""

    def __init__(self, context: ServerContext, questions: Sequence[LabelledQuestion], run: DecisionRun) -> None:
        self._context = context
        self._questions = questions
        self._run = run

    @classmethod
    async def prepare(
        cls, context: ServerContext, model: ServedModel, request: DecisionRequest, labels: Labels, scope: Scope
    ) -> Deciding:
        """Raises RequestError, TextWorkerError."""
        if not 1 <= len(request.questions) <= MAX_QUESTIONS:
            count = len(request.questions)
            raise RequestError(f"questions must have 1 to {MAX_QUESTIONS} entries, got {count}.", param="questions")
        await labels.load()
        asked = await for_each(
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
        shown = [one.labelled for one in asked]
        with renamed_fields(_NAMES):
            prompts = await question_prompts(context.settings, model, chat, [one.text for one in shown], owner.client)
        return cls(context, asked, DecisionRun(context, model, shown, prompts, owner))

    async def whole(self) -> Decision:
        found = await self._run.logprobs()
        answers = await for_each(
            self._context, lambda index, logprobs: self._questions[index].answer(logprobs.position), found
        )
        cached = sum(one.num_cached_tokens for one in found)
        return Decision(
            model=self._run.model.name,
            answers=answers,
            usage=ResponseUsage.from_tokens(TokenUsage(self._run.num_prompt_tokens, 0, cached)),
        )


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
