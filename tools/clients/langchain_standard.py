"""LangChain's own integration tests of chat models, those about text, against the scripted server. The pytest of the
clients' environment runs them; OPENAI_BASE_URL says where the server is."""

from __future__ import annotations

from typing import Any

from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests


class TestStandard(ChatModelIntegrationTests):
    @property
    def chat_model_class(self) -> type[ChatOpenAI]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": "scripted", "temperature": 0, "stream_usage": True}

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def returns_usage_metadata(self) -> bool:
        return True
