"""The routes of this family."""

from __future__ import annotations

from tessera.server.body_dispatch import by_member
from tessera.server.context import ServerContext
from tessera.server.openapi import JsonRoute
from tessera.server.pooling import classify, cohere, embeddings, pool, rerank, score, tei


def routes(context: ServerContext) -> list[JsonRoute]:
    embedding, ranking = embeddings.route(context), rerank.route(context)
    return [
        embedding,
        # At this path two APIs have one each, which call the texts by different names.
        by_member("/rerank", {"documents": ranking, "texts": tei.rerank_route(context)}),
        ranking.at("/v1/rerank"),
        ranking.at("/v2/rerank"),
        *score.routes(context),
        classify.route(context),
        pool.route(context),
        cohere.route(context),
        *tei.routes(context),
    ]
