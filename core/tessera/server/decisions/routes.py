"""The routes that answer questions with probabilities."""

from __future__ import annotations

from tessera.server.context import ServerContext
from tessera.server.decisions import openai, systemone
from tessera.server.decisions.labels import Labels
from tessera.server.openapi import JsonRoute


def routes(context: ServerContext) -> list[JsonRoute]:
    engine = context.engine
    labels = None if engine.tokenizer is None else Labels(engine.tokenizer, engine.config.model.vocab_size)
    return [openai.route(context, labels), systemone.route(context, labels)]
