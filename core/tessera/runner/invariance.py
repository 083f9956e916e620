"""Refuses --batch-invariant where a request's bits could depend on the batch."""

from __future__ import annotations

from collections.abc import Iterator

from tessera.config import EngineConfig
from tessera.errors import RefusedError
from tessera.layers.build import Build
from tessera.platform.device import Reason
from tessera.platform.explain import op_place
from tessera.platform.model import ModelFacts
from tessera.platform.platform import Platform


def refuse_variance(platform: Platform, config: EngineConfig, facts: ModelFacts, build: Build | None = None) -> None:
    """Asks the platform and then, at op depth, each kernel, reference and attention layer of the model that was built.
    Raises RefusedError with the first reason."""
    if not config.batch_invariant:
        return
    reason = platform.batch_invariant(config, facts)
    if reason is None and build is not None:
        reason = next(_reasons(build), None)
    if reason is not None:
        raise RefusedError(
            f"platform '{platform.name}' does not run this with --batch-invariant: {reason}. Remove the flag, or "
            "change what the reason names."
        )


def _reasons(build: Build) -> Iterator[Reason]:
    for bound in build.mixers:
        reason = bound.backend.batch_invariant(bound.spec)
        if reason is not None:
            yield f"{bound.spec.kind} by '{bound.backend.name}' ({bound.spec.place}): {reason}"
    for (name, spec), reason in build.ops.variant.items():
        yield f"op '{name}' ({op_place(spec)}): {reason}"
