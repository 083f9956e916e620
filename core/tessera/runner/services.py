"""What core provides to a model runner."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, cast

from torch import Tensor

from tessera.config import EngineConfig
from tessera.config.defaults import fill_defaults
from tessera.config.modalities import TOWERS, encoder_length, merge_size, sees_prompt
from tessera.config.unserved_media import UNSERVED_MEDIA
from tessera.errors import PlatformError, RefusedError
from tessera.layers.build import PIPELINE_GROUP, Build
from tessera.layers.embedding import HEAD
from tessera.loader.checkpoint import WeightSource
from tessera.loader.load import Place, load_weights
from tessera.loader.source import CheckpointWeights, open_source, resolve_dtype
from tessera.loader.stored_weights import stored_weights
from tessera.models.fields import RefusedTypeError
from tessera.models.text_model import text_fields
from tessera.ops import REFERENCE
from tessera.platform.attention import Mixer, MixerBackend
from tessera.platform.collectives import Communicator
from tessera.platform.device import Device
from tessera.platform.feature import WorkerFeature
from tessera.platform.lora import LoraWeights
from tessera.platform.model import Model, ModelFacts
from tessera.platform.ops import BoundOps, OpSet, Wrapper, with_extra
from tessera.platform.platform import Platform
from tessera.platform.quantization import KV_FP8, KV_INT8, ReadWeight
from tessera.platform.runner import CachePlan, HostSampler
from tessera.plugins import load_path, load_registry, weight_format
from tessera.plugins.features import worker_features
from tessera.quantization.negotiation import negotiate
from tessera.quantization.weights import Weights
from tessera.runner.explain import describe_skipped_weights
from tessera.runner.host_sampler import sample_on_host
from tessera.runner.input_batch import CoreInputBatch

_KV = {"int8": KV_INT8, "fp8": KV_FP8}  # by --kv-cache-dtype
TEXT_CHECKPOINT = "tessera.models.through_transformers.types:text_checkpoint"
MULTIMODAL = "tessera.models.multimodal:multimodal"
THROUGH_TRANSFORMERS = "tessera.models.through_transformers.model:through_transformers"


class Services:
    """The RunnerServices of one worker."""

    def __init__(
        self,
        config: EngineConfig,
        devices: Sequence[Device],
        groups: Mapping[str, Communicator],
        platform: Platform,
        *,
        source: WeightSource | None = None,  # where weights come from; None: as configured
        bind: type[BoundOps] = BoundOps,  # the class of the bound ops
    ) -> None:
        self.config, self.groups, self.platform = config, groups, platform
        self.devices, self.device, self.artifacts = devices, devices[0], devices[0].artifacts
        self.registry = load_registry(config.plugins)
        self.source = source or open_source(config, self.device)
        self._bind = bind
        self.dtype = resolve_dtype(config.model.dtype, self.source.dtype, platform.capabilities)
        self._features = worker_features(config, self.registry)
        # Whether accept() was called.
        self.accepted = False
        # Lines about the checkpoint's files, and what stored_weights() did not quantize.
        self.notes: list[str] = [*self.source.notes]
        # Of the model that build_model() returned.
        self.build: Build | None = None
        # What features allocated on the device for that model.
        self.feature_bytes = 0

    def reference(self) -> OpSet:
        return with_extra(REFERENCE, [load_path(entry.path) for entry in self.registry.ops])

    def build_model(
        self,
        ops: OpSet,
        backends: Sequence[MixerBackend[Any]],
        weights: Weights | None = None,
        split: Callable[[Mixer], Mixer] = lambda mixer: mixer,
    ) -> Model:
        weights = self.negotiate_weights() if weights is None else weights
        bound = self._bind(
            ops, self.device, self.groups, no_fallback=self.config.no_fallback, wrappers=self._wrappers(),
            batch_invariant=self.config.batch_invariant,
        )  # fmt: skip
        kv = _KV.get(self.config.cache.dtype, weights.kv)
        wanted = self.config.model
        self.build = Build(
            bound, self.device, self.dtype, backends, self.groups, weights, kv, split, self.source, wanted.pooler,
            wanted.generates, wanted.modalities, self._spare_positions(),
            bool(wanted.modalities) and sees_prompt(wanted.checkpoint), wanted.most_sources,
            self.config.scheduler.predicts,
        )  # fmt: skip
        if self.build.predicts and self.build.modalities:
            raise RefusedError(
                'speculative_config: the method "mtp" makes drafts for text alone; use the method "ngram", or set '
                f"limit_mm_per_prompt to 0 for {' and '.join(self.build.modalities)}."
            )
        model = self._model(self.build)
        if self.build.predicts and self.build.predictor is None:
            raise RefusedError(
                f"speculative_config: {self.architecture} is served without a layer that predicts further tokens; use "
                'the method "ngram", or leave speculative_config out.'
            )
        pipeline = self.groups.get(PIPELINE_GROUP)
        if pipeline is not None and pipeline.size > 1 and not model.facts.stage_tensors:
            raise RefusedError(
                f"{self.architecture} cannot be divided into stages; remove --pipeline-parallel-size {pipeline.size}."
            )
        if self.config.parallel.expert_parallel and not model.facts.num_experts:
            raise RefusedError(f"{self.architecture} has no experts; remove --enable-expert-parallel.")
        with self.device.arena("features") as arena:
            for feature in self._features:
                feature.attach(self.build.products, bound, arena)
                model = feature.wrap(model)
        self.feature_bytes = arena.nbytes
        return model

    def _spare_positions(self) -> int:
        """As many as a launch has tokens, where those of an image have positions on several axes."""
        by_axis = merge_size(self.config.model.checkpoint) is not None
        return self.config.scheduler.max_num_batched_tokens if by_axis and self.config.model.modalities else 0

    def load_weights(self, place: Place) -> list[MutableMapping[str, Tensor]]:
        assert self.build is not None, "build_model() comes first"
        parameters, eager = self.build.parameters, self.build.tower_parameters
        with self.device.arena("weights") as arena:
            load_weights(parameters, self.source, self.dtype, self.device, arena, lambda _: None, place, eager)
        self.notes += describe_skipped_weights(self.build.weights)
        placed = [parameter for parameter in parameters if not any(parameter is one for one in eager)]
        return [cast("MutableMapping[str, Tensor]", parameter.packed) for parameter in placed]

    def _wrappers(self) -> dict[str, Wrapper]:
        """The wrappers of all features. Raises PlatformError if two wrap the same op."""
        found: dict[str, Wrapper] = {}
        for feature in self._features:
            for name, wrapper in feature.wrappers().items():
                if name in found:
                    raise PlatformError(f"two features wrap the op '{name}'; enable one of them.")
                found[name] = wrapper
        return found

    def linear_layers(self) -> dict[str, tuple[int, int]]:
        assert self.build is not None, "build_model() comes first"
        return {layer.name: (layer.k, layer.n) for product in self.build.products for layer in product.layers}

    def accept(self, facts: ModelFacts) -> None:
        if self.accepted:
            return
        self.config, _ = fill_defaults(self.config, self.platform.defaults(facts), chunkable=facts.chunkable)
        problems = [problem.text for problem in self.platform.check(self.config, facts)]
        if problems:
            raise RefusedError("\n".join(problems))
        self.accepted = True

    def _model(self, build: Build) -> Model:
        """A native model, or one that runs through transformers, which is imported only in that case."""
        models, named, said = self.registry.models, self.architecture, self.config.model.checkpoint
        try:
            native = named in models
            if named in TOWERS and TOWERS[named].any_text:
                text = load_path(TEXT_CHECKPOINT)(said)
                said = said if text is None else text
                named = str(said["architectures"][0])
                native = text is not None and named in models
            factory = load_path(models.resolve(named) if native else THROUGH_TRANSFORMERS)
            fields = text_fields(build, said) if native else said
            model: Model | None = factory(build, fields, self.config.model.max_model_len)
            beside = build.modalities or encoder_length(self.config.model.checkpoint)
            if model is not None and beside and (build.is_first_stage or build.axis_tables):
                model = load_path(MULTIMODAL)(model, build, self.config.model.checkpoint)
        except RefusedTypeError as refused:
            raise models.unsupported(self.architecture, str(refused)) from refused
        if model is None:
            raise models.unsupported(self.architecture, UNSERVED_MEDIA.get(self.architecture, ""))
        return model

    @property
    def architecture(self) -> str:
        names = self.config.model.checkpoint.get("architectures") or ["?"]
        return str(names[0])

    def checkpoint(self) -> Mapping[str, Any]:
        said, head = self.config.model.checkpoint, f"{HEAD}.weight"
        if not isinstance(self.source, CheckpointWeights) or not self.source.holds(head):
            return said
        if said.get("tie_word_embeddings"):
            note = (
                "config.json ties the head to the embedding (tie_word_embeddings), but the checkpoint holds a head of "
                "its own, which is used"
            )
            self.notes = [*dict.fromkeys([*self.notes, note])]
        return {**said, "tie_word_embeddings": False}

    def negotiate_weights(self) -> Weights:
        """What --quantization or the checkpoint says about the weights of products."""
        model = self.config.model
        form = weight_format(model.checkpoint, self.registry)
        method = "" if form is None else str(model.checkpoint["quantization_config"]["quant_method"])
        if form is None and model.quantization is None:
            form, method = self.source.form, "gguf"
        return negotiate(model.quantization, self.platform, form, method, convert=model.convert_weights)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        source = self._checkpoint()
        for name in source.names():
            yield name, source.whole(name)
        source.release()

    def stored_weights(self, linear_layers: Mapping[str, tuple[int, int]]) -> Iterator[ReadWeight]:
        source, weights = self._checkpoint(), self.negotiate_weights()
        yield from stored_weights(source, linear_layers, weights, self.dtype)
        self.notes += describe_skipped_weights(weights)

    def _checkpoint(self) -> CheckpointWeights:
        if not isinstance(self.source, CheckpointWeights):
            raise PlatformError("this platform loads checkpoints only; leave out --load-format dummy.")
        return self.source

    def lora_weights(self, folder: str) -> LoraWeights:
        # Not at the top: nothing of a feature that is off is imported.
        from tessera.runner.lora import read_lora_weights

        return read_lora_weights(folder, self.config.lora.max_rank)

    def input_batch(self, plan: CachePlan) -> CoreInputBatch:
        columns = [column for feature in self._features for column in feature.columns()]
        columns += [] if self.build is None else self.build.columns
        model = self.config.model
        return CoreInputBatch(plan, columns, eos=model.eos_token_ids, vocab=model.vocab_size)

    def features(self) -> Sequence[WorkerFeature]:
        return self._features

    def sampler(self) -> HostSampler:
        if self.config.no_fallback:
            raise PlatformError(
                "op 'sample' would run on the reference (this platform's own runner samples with it), "
                "which --no-fallback forbids; remove the flag."
            )
        return sample_on_host
