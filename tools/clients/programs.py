"""The programs: each is what its client's own documentation shows, and asserts what it got. This file runs in the
clients' environment, which has nothing of this project: `python programs.py NAME BASE_URL`."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable
from typing import Any

MODEL = "scripted"
QUESTION = "What is the weather in Paris?"
HELLO = "Hello, this is scripted."
SUNNY = "It is sunny in Paris."
CHAT = [{"role": "user", "content": QUESTION}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Current weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def weather(city: str) -> str:
    """Current weather in a city."""
    return f"Sunny in {city}"


def city_model() -> Any:
    from pydantic import BaseModel

    class City(BaseModel):
        name: str
        large: bool

    return City


def check(actual: Any, expected: Any) -> None:
    """Instances of models by their fields: some clients return a class of their own."""
    if hasattr(expected, "model_dump"):
        actual, expected = actual.model_dump(), expected.model_dump()
    if actual != expected:
        raise AssertionError(f"{actual!r} is not {expected!r}")


def instructor(_base: str) -> None:
    import anthropic
    import instructor
    import openai

    city = city_model()
    paris = city(name="Paris", large=True)
    for mode in (
        instructor.Mode.TOOLS,
        instructor.Mode.TOOLS_STRICT,
        instructor.Mode.JSON,
        instructor.Mode.JSON_SCHEMA,
    ):
        client = instructor.from_openai(openai.OpenAI(), mode=mode)
        check(client.chat.completions.create(model=MODEL, response_model=city, messages=CHAT), paris)
    other = instructor.from_anthropic(anthropic.Anthropic())
    check(other.messages.create(model=MODEL, max_tokens=200, response_model=city, messages=CHAT), paris)


def litellm(base: str) -> None:
    import litellm

    for provider, url in (("openai", f"{base}/v1"), ("anthropic", base), ("ollama_chat", base)):
        given: dict[str, Any] = {"model": f"{provider}/{MODEL}", "api_base": url, "api_key": "any", "max_tokens": 200}
        check(litellm.completion(messages=CHAT, **given).choices[0].message.content, HELLO)
        parts = list(litellm.completion(messages=CHAT, stream=True, **given))
        check("".join(part.choices[0].delta.content or "" for part in parts), HELLO)
        if provider != "ollama_chat":
            (call,) = litellm.completion(messages=CHAT, tools=[TOOL], **given).choices[0].message.tool_calls
            check(call.function.name, "weather")
    response = litellm.responses(model=f"openai/{MODEL}", api_base=f"{base}/v1", api_key="any", input=QUESTION)
    check(response.output[0].content[0].text, HELLO)


def langchain(_base: str) -> None:
    from langchain_anthropic import ChatAnthropic
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    city = city_model()
    paris = city(name="Paris", large=True)
    models = (
        ChatOpenAI(model=MODEL),
        ChatOpenAI(model=MODEL, use_responses_api=True),
        ChatAnthropic(model=MODEL, max_tokens=200),
    )
    for model in models:
        check("".join(part.text for part in model.stream(QUESTION)), HELLO)
        (call,) = model.bind_tools([tool(weather)]).invoke(QUESTION).tool_calls
        check((call["name"], call["args"]), ("weather", {"city": "Paris"}))
        check(model.with_structured_output(city).invoke(QUESTION), paris)
    check(ChatOpenAI(model=MODEL).with_structured_output(city, method="json_mode").invoke(QUESTION), paris)


async def openai_agents(_base: str) -> None:
    import openai
    from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool

    city = city_model()
    for kind in (OpenAIResponsesModel, OpenAIChatCompletionsModel):
        model = kind(model=MODEL, openai_client=openai.AsyncOpenAI())
        agent = Agent(name="agent", instructions="Be brief.", model=model, tools=[function_tool(weather)])
        check((await Runner.run(agent, QUESTION, max_turns=3)).final_output, SUNNY)
        streamed = Runner.run_streamed(agent, QUESTION, max_turns=3)
        async for _ in streamed.stream_events():
            pass
        check(streamed.final_output, SUNNY)
        typed = Agent(name="typed", model=model, output_type=city)
        check((await Runner.run(typed, QUESTION)).final_output, city(name="Paris", large=True))


async def pydantic_ai(_base: str) -> None:
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel

    city = city_model()
    paris = city(name="Paris", large=True)
    for model in (OpenAIChatModel(MODEL), OpenAIResponsesModel(MODEL)):
        check((await Agent(model, output_type=city).run(QUESTION)).output, paris)
        check((await Agent(model, output_type=NativeOutput(city)).run(QUESTION)).output, paris)
        check((await Agent(model, tools=[weather]).run(QUESTION)).output, SUNNY)
        async with Agent(model, tools=[weather]).run_stream(QUESTION) as streamed:
            check(await streamed.get_output(), SUNNY)


def llama_index(base: str) -> None:
    from llama_index.llms.openai_like import OpenAILike

    model = OpenAILike(
        model=MODEL, api_base=f"{base}/v1", api_key="any", is_chat_model=True, is_function_calling_model=True,
        context_window=1024,
    )  # fmt: skip
    check(model.complete(QUESTION).text, HELLO)
    check("".join(part.delta for part in model.stream_complete(QUESTION)), HELLO)


PROGRAMS: dict[str, Callable[[str], Any]] = {
    program.__name__: program for program in (instructor, litellm, langchain, openai_agents, pydantic_ai, llama_index)
}


if __name__ == "__main__":
    running = PROGRAMS[sys.argv[1]](sys.argv[2])
    if inspect.iscoroutine(running):
        asyncio.run(running)
