"""LangChain's own integration tests of embeddings, against the server that embeds. The pytest of the clients'
environment runs them; OPENAI_BASE_URL says where the server is."""

from __future__ import annotations

from typing import Any

from langchain_openai import OpenAIEmbeddings
from langchain_tests.integration_tests import EmbeddingsIntegrationTests


class TestStandard(EmbeddingsIntegrationTests):
    @property
    def embeddings_class(self) -> type[OpenAIEmbeddings]:
        return OpenAIEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        # Otherwise it sends the ids of OpenAI's own tokenizer.
        return {"model": "embedder", "check_embedding_ctx_length": False}
