"""POST /rerank: the documents that answer a query best, first, by the API that Jina, Cohere and vLLM share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType
from starlette.types import Scope

from tessera.engine.scoring import SCORING_TASKS
from tessera.errors import RequestError
from tessera.media.data_url import SCHEME
from tessera.server.context import ServerContext
from tessera.server.decode import RequestDecoder
from tessera.server.generation.endpoint import GenerationEndpoint
from tessera.server.generation.prepare import Identity
from tessera.server.openapi import JsonRoute, field_schema
from tessera.server.pooling.answers import PoolingAnswer, PoolingUsage
from tessera.server.pooling.fields import UNSERVED, InputItem, PoolingFields
from tessera.server.pooling.inputs import item_input, listed_items, search_instructions
from tessera.server.pooling.request import PoolingRequest
from tessera.server.pooling.scores import PairScores
from tessera.server.settings import Limits

_UNSERVED = {**UNSERVED, "max_chunks_per_doc": (), "rank_fields": ([], ["text"])}


class RerankDocument(msgspec.Struct, omit_defaults=True):
    """What a result shows of a document: its text, and the URL of its image where that is no data URL."""

    text: str | None = None
    image: str | None = None

    @classmethod
    def from_item(cls, item: str | InputItem) -> RerankDocument:
        if isinstance(item, str):
            return cls(item)
        texts = [part.text for part in item.content or () if part.text is not None]
        text = item.text if item.content is None else "\n".join(texts) or None
        shown = item.image is not None and not item.image.startswith(SCHEME)
        return cls(text, item.image if shown else None)


class RerankRequest(PoolingFields, kw_only=True):
    """A query and the documents to put in order. top_n: how many of them the answer has; 0 is all. max_tokens_per_doc:
    cuts documents that are too long for the model; no smaller limit is served."""

    query: str | InputItem
    documents: Annotated[list[str | InputItem], field_schema(minItems=1, maxItems=Limits.pooled_inputs)]
    top_n: Annotated[int, field_schema(minimum=0)] | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: Annotated[int, field_schema(minimum=1)] | None = None

    def cut(self) -> RerankRequest:
        """The same, with what max_tokens_per_doc asks of texts that are too long, unless the request says it."""
        if self.max_tokens_per_doc is None or self.truncate_prompt_tokens is not None:
            return self
        side = self.truncation_side or "right"
        return msgspec.structs.replace(self, truncate_prompt_tokens=-1, truncation_side=side)


class RerankResult(msgspec.Struct, kw_only=True):
    """index: of the document in the request. document: unless return_documents is false."""

    index: int
    relevance_score: float
    document: RerankDocument | UnsetType = UNSET


class ApiVersion(msgspec.Struct):
    version: str = "2"


class CountedTokens(msgspec.Struct):
    input_tokens: int


class CohereMeta(msgspec.Struct, kw_only=True):
    """What Cohere's clients read beside the results."""

    api_version: ApiVersion = msgspec.field(default_factory=ApiVersion)
    tokens: CountedTokens


class RerankAnswer(msgspec.Struct, kw_only=True):
    """results: from the best one on."""

    id: str
    object: str = "list"
    model: str
    results: list[RerankResult]
    usage: PoolingUsage
    meta: CohereMeta


def route(context: ServerContext) -> JsonRoute:
    limits = context.settings.limits
    large = {"documents": limits.body_bytes, "query": limits.body_bytes}
    decoder = RequestDecoder(context, RerankRequest, _UNSERVED, large)

    async def read(body: bytes, scope: Scope) -> PoolingAnswer:
        asked = (await decoder.decode(body)).cut()
        request = PoolingRequest.from_fields(context, asked, scope, "rerank", *SCORING_TASKS)
        if asked.top_n is not None and asked.top_n < 0:
            raise RequestError(f"top_n must be at least 0, got {asked.top_n}.", param="top_n")
        _check_document_limit(asked.max_tokens_per_doc, request.model.engine.info.max_model_len)
        query, documents = [item_input("query", asked.query)], listed_items("documents", asked.documents, limits)
        activation, names = asked.use_activation, search_instructions(request)
        pairs = await PairScores.prepare(request, query, documents, use_activation=activation, instructions=names)
        shown = asked.documents if asked.return_documents is not False else None
        return PoolingAnswer(Ranking(pairs, request.identity, asked.top_n or len(documents), shown).answer)

    return JsonRoute(
        "/rerank",
        GenerationEndpoint(read, context),
        "Documents in the order in which they answer a query.",
        methods=("POST",),
        body=RerankRequest,
        answer=RerankAnswer,
    )


def _check_document_limit(limit: int | None, max_model_len: int) -> None:
    """Cohere's clients send limits that few models reach. Raises RequestError for one that would cut more."""
    if limit is not None and limit < max_model_len:
        text = f"max_tokens_per_doc must be at least the {max_model_len} tokens that the model takes; remove it."
        raise RequestError(text, param="max_tokens_per_doc")


@dataclass(frozen=True)
class Ranking:
    pairs: PairScores
    identity: Identity
    # results that are returned
    limit: int
    # the documents, if results show them
    documents: Sequence[str | InputItem] | None

    async def answer(self) -> RerankAnswer:
        scores = await self.pairs.scores()
        usage = PoolingUsage.from_tokens(self.pairs.usage())
        return RerankAnswer(
            id=self.identity.id,
            model=self.identity.model,
            results=[self._result(index, scores[index]) for index in ranked(scores)[: self.limit]],
            usage=usage,
            meta=CohereMeta(tokens=CountedTokens(usage.prompt_tokens)),
        )

    def _result(self, index: int, score: float) -> RerankResult:
        document = UNSET if self.documents is None else RerankDocument.from_item(self.documents[index])
        return RerankResult(index=index, relevance_score=score, document=document)


def ranked(scores: Sequence[float]) -> list[int]:
    """The numbers of the scores, the highest first; of equal ones, the first."""
    return sorted(range(len(scores)), key=lambda index: -scores[index])
