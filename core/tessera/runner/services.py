"""What core hands to a model runner."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from tessera.arrays import Array
from tessera.config import EngineConfig
from tessera.errors import PlatformError
from tessera.layers.build import TENSOR_GROUP, Build
from tessera.loader.checkpoint import Dummy, Safetensors
from tessera.models.refused import RefusedTypeError
from tessera.platform.attention import AttentionBackend
from tessera.platform.collectives import Communicator
from tessera.platform.ops import BoundOps, OpSet, SampleSpec, SamplingRows, with_extra
from tessera.platform.platform import Capabilities, Device
from tessera.platform.runner import CachePlan, Feature, Model
from tessera.platform.runner import InputBatch as HostBatch
from tessera.plugins import load_path, load_registry
from tessera.reference import REFERENCE
from tessera.reference.sampling import sample
from tessera.runner.batch import InputBatch

THROUGH_TRANSFORMERS = "tessera.models.through_transformers.model:through_transformers"


class Services:
    """RunnerServices of one worker. bound: the ops and the build of the model that build_model made."""

    def __init__(
        self, config: EngineConfig, device: Device, groups: Mapping[str, Communicator], capabilities: Capabilities
    ) -> None:
        self.config, self.device, self.groups = config, device, groups
        self.registry = load_registry(config.plugins)
        self.source = Dummy(config.seed) if config.model.load_format == "dummy" else Safetensors(config.model.path)
        self.dtype = resolve_dtype(config.model.dtype, self.source.dtype, capabilities)
        self._features = [cast(Callable[[EngineConfig], Feature], load_path(path))(config) for path in config.features]
        self.build: Build | None = None

    def reference(self) -> OpSet:
        return with_extra(REFERENCE, [load_path(entry.path) for entry in self.registry.ops])

    def build_model(self, ops: OpSet, backends: Sequence[AttentionBackend]) -> Model:
        bound = BoundOps(ops, self.device, self.groups, no_fallback=self.config.no_fallback)
        self.build = Build(bound, self.device, self.dtype, backends, self.groups.get(TENSOR_GROUP))
        model = self._model(self.build)
        for feature in self._features:
            if feature.cache_specs():
                raise PlatformError("a feature with caches of its own is not served yet.")
            model = feature.wrap(model)
        return model

    def _model(self, build: Build) -> Model:
        """A native one, or one through transformers' code, which is imported for that alone."""
        models, named = self.registry.models, self.architecture
        factory = load_path(models.resolve(named) if named in models else THROUGH_TRANSFORMERS)
        try:
            model: Model | None = factory(build, self.checkpoint(), self.config.model.max_model_len)
        except RefusedTypeError as refused:
            raise models.unsupported(named, str(refused)) from refused
        if model is None:
            raise models.unsupported(named)
        return model

    @property
    def architecture(self) -> str:
        names = self.config.model.checkpoint.get("architectures") or ["?"]
        return str(names[0])

    def checkpoint(self) -> Mapping[str, Any]:
        return self.config.model.checkpoint

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        if not isinstance(self.source, Safetensors):
            raise PlatformError("this platform loads checkpoints only; leave out --load-format dummy.")
        for name in self.source.names():
            yield name, self.source.whole(name)

    def input_batch(self, plan: CachePlan) -> InputBatch:
        return InputBatch(plan, [column for feature in self._features for column in feature.columns()])

    def features(self) -> Sequence[Feature]:
        return self._features

    def sample(self, logits: Tensor, batch: HostBatch, rows: Array, positions: Array) -> Array:
        host = torch.as_tensor(logits)
        columns = batch.sampling
        sampling = SamplingRows(
            temperature=torch.from_numpy(columns.temperature[rows]),
            top_k=torch.from_numpy(columns.top_k[rows]),
            top_p=torch.from_numpy(columns.top_p[rows]),
            min_p=torch.from_numpy(columns.min_p[rows]),
            seed=torch.from_numpy(columns.seed[rows]),
            position=torch.from_numpy(positions.astype(np.int64)),
        )
        spec = SampleSpec(host.shape[-1], greedy=not columns.temperature[rows].any(), filters=True)
        tokens: Array = sample(spec, host, sampling).tokens.numpy()
        return tokens


def resolve_dtype(asked: str, checkpoint: str, capabilities: Capabilities) -> str:
    """The dtype weights and activations have: what the user asked for, else the checkpoint's where the platform has it,
    else the platform's first. A float32 checkpoint is served in the platform's first choice, as bfloat16 usually is
    enough. Raises PlatformError for one the platform does not have."""
    if asked != "auto":
        if asked not in capabilities.dtypes:
            raise PlatformError(
                f"dtype {asked} is not available on this platform; --dtype takes {', '.join(capabilities.dtypes)}."
            )
        return asked
    return checkpoint if checkpoint in capabilities.dtypes and checkpoint != "float32" else capabilities.dtypes[0]
