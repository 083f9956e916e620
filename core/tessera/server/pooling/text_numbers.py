"""Requests for the numbers of a list of texts, written as their fields say: what /v1/embeddings and /pooling share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tessera.pooling_params import PoolingParams
from tessera.server.assembly import Large
from tessera.server.pooling.answers import PoolingUsage, written
from tessera.server.pooling.encoding import VectorEncoding
from tessera.server.pooling.fields import VectorFields
from tessera.server.pooling.inputs import read_inputs
from tessera.server.pooling.request import PoolingRequest
from tessera.server.pooling.run import PoolingRun


@dataclass(frozen=True)
class TextNumbers:
    run: PoolingRun
    encoding: VectorEncoding

    @classmethod
    async def prepare(cls, request: PoolingRequest, fields: VectorFields) -> TextNumbers:
        """Raises RequestError, TextWorkerError."""
        encoding = VectorEncoding.from_fields(fields)
        params = PoolingParams(request.task, dimensions=fields.dimensions, use_activation=fields.activates)
        inputs, special = await read_inputs(request, fields), fields.adds_special_tokens
        return cls(await PoolingRun.prepare(request, inputs, params, add_special_tokens=special), encoding)

    async def answer(self, kind: Callable[..., Large], element: Callable[[int, Any], Large]) -> list[bytes]:
        """Runs the request. kind: the answer's class, with the list `data`. element: makes one of it, of its index and
        its numbers as VectorEncoding.write() returns them."""
        outputs, identity = await self.run.outputs(), self.run.request.identity
        usage = PoolingUsage.from_tokens(self.run.usage())
        answer = kind(id=identity.id, created=identity.created, model=identity.model, data=[], usage=usage)
        data = (element(index, self.encoding.write(numbers)) for index, numbers in enumerate(outputs))
        return await written(self.run.request.context.assembly, answer, data, self.run.num_numbers)
