"""A request that pools, as its fields say: who wants numbers, of which model, and what becomes of texts that are too
long."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.types import Scope

from tessera.config.pooler import PoolerConfig, PoolingTask
from tessera.engine.model_tasks import check_pools
from tessera.engine.truncation import TextLimit
from tessera.server.context import ServerContext
from tessera.server.generation.prepare import Identity, RequestOwner
from tessera.server.pooling.fields import PoolingFields
from tessera.server.served_model import ServedModel
from tessera.server.task_routes import TASK_ROUTES


@dataclass(frozen=True)
class PoolingRequest:
    context: ServerContext
    model: ServedModel
    # what the model is asked for
    task: PoolingTask
    identity: Identity
    owner: RequestOwner
    cut: TextLimit

    @classmethod
    def from_fields(
        cls, context: ServerContext, fields: PoolingFields, scope: Scope, prefix: str, *tasks: PoolingTask
    ) -> PoolingRequest:
        """prefix: of the answer's id. tasks: that answer it; the first that the model has is used. Raises RequestError,
        NotFoundError, EngineDeadError."""
        model = context.running_model(fields.model, scope)
        task = check_pools(model.engine.config.model, tasks, TASK_ROUTES)
        identity = Identity.from_request(model, prefix, fields, context.settings.limits, scope)
        owner = RequestOwner.from_request(context, model, fields, scope)
        most = model.engine.info.max_model_len
        cut = TextLimit.from_params(fields.truncate_prompt_tokens, fields.truncation_side, most)
        return cls(context, model, task, identity, owner, cut)

    @property
    def pooler(self) -> PoolerConfig:
        pooler = self.model.engine.config.model.pooler
        assert pooler is not None, "it has been checked that the model pools"
        return pooler
