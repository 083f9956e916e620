"""The route of the System One API: /v1/systemone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from starlette.types import Scope

from tessera.errors import RequestError
from tessera.server.context import ServerContext
from tessera.server.decisions.labels import Labels
from tessera.server.decisions.prompts import question_prompts
from tessera.server.decisions.run import DecisionRun, for_each
from tessera.server.decisions.systemone_protocol import SystemOneDecision, SystemOneRequest, SystemOneUsage
from tessera.server.decisions.systemone_questions import NamedQuestion, named_questions, state_text
from tessera.server.decode import LONG_BODY, RequestDecoder, Values
from tessera.server.generation.chat import ChatFields, ChatMessage
from tessera.server.generation.endpoint import GenerationEndpoint
from tessera.server.generation.prepare import RequestOwner
from tessera.server.generation.run import renamed_fields
from tessera.server.openapi import JsonRoute

_NAMES = {"messages": "state", "prompt": "state"}
_UNSERVED: Mapping[str, Values] = MappingProxyType({"assets": ({},)})


def route(context: ServerContext, labels: Labels | None) -> JsonRoute:
    """labels: None without a tokenizer."""
    limit = context.settings.limits.body_bytes
    decoder = RequestDecoder(context, SystemOneRequest, _UNSERVED, {"state": limit, "questions": limit})

    async def read(body: bytes, scope: Scope) -> SystemOneDeciding:
        asked = await decoder.decode(body)
        model = context.generating_model(asked.model, scope)
        if labels is None:
            raise RequestError("This server has no tokenizer, so nothing can be decided.")
        await labels.load()

        def parsed() -> tuple[str, list[NamedQuestion]]:
            return state_text(asked.state), named_questions(asked.questions, labels)

        state, questions = parsed() if len(body) < LONG_BODY else await context.assembly.run(parsed)
        chat = ChatFields(
            messages=[ChatMessage("user", state)], model=asked.model, priority=asked.priority,
            cache_salt=asked.cache_salt, reasoning_effort="none",
        )  # fmt: skip
        owner = RequestOwner.from_request(context, model, chat, scope)
        shown = [question.labelled for question in questions]
        with renamed_fields(_NAMES):
            prompts = await question_prompts(context.settings, model, chat, [one.text for one in shown], owner.client)
        return SystemOneDeciding(context, questions, DecisionRun(context, model, shown, prompts, owner))

    return JsonRoute(
        "/v1/systemone",
        GenerationEndpoint(read, context),
        "Answers questions about a state with probabilities, by the System One API.",
        methods=("POST",),
        body=SystemOneRequest,
        answer=SystemOneDecision,
    )


class SystemOneDeciding:
    """The questions of one request, and the decision that answers them."""

    def __init__(self, context: ServerContext, questions: Sequence[NamedQuestion], run: DecisionRun) -> None:
        self._context = context
        self._questions = questions
        self._run = run

    async def whole(self) -> SystemOneDecision:
        found = await self._run.logprobs()
        answered = await for_each(self._context, lambda index, logprobs: self._questions[index].answer(logprobs), found)
        names = [question.name for question in self._questions]
        return SystemOneDecision(
            model=self._run.model.name,
            answers=dict(zip(names, (answer for answer, _ in answered), strict=True)),
            usage=SystemOneUsage(self._run.num_prompt_tokens),
            diagnostics=dict(zip(names, (diagnostics for _, diagnostics in answered), strict=True)),
        )
