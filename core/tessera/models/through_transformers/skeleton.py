"""A transformers module without weights, its parts, and the attention, masks and experts that this engine registers
with transformers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.pytorch_utils import Conv1D

from tessera.models.fields import RefusedTypeError
from tessera.models.through_transformers.sparse_attention import drop_indexers
from tessera.models.through_transformers.types import ModelType, first_line

SERVED = "tessera"
"""The attention implementation of a served model: no masks are built."""
REHEARSED = "tessera_rehearsal"
"""The attention implementation during the rehearsal: masks carry their kind (mask_kind)."""

NO_INTERFACE = "it does not take attention from transformers' attention interface"

FOREIGN = -1
"""The number of a mask that is none of those that Sight describes."""


@dataclass(frozen=True)
class Sight:
    """Which tokens a query sees, as LayerSpec has it. Its number stands in the masks of the rehearsal."""

    # As LayerSpec.window.
    window: int | None
    # Whether those after it too.
    ahead: bool

    @property
    def number(self) -> int:
        return 2 * (self.window or 0) + self.ahead

    @classmethod
    def from_number(cls, number: int) -> Sight:
        return cls(number // 2 or None, bool(number % 2))


def register() -> None:
    """Registers the implementations with transformers. Idempotent."""
    for name in (SERVED, REHEARSED):
        AttentionInterface.register(name, _attend)
    AttentionMaskInterface.register(REHEARSED, _mask)
    ALL_EXPERTS_FUNCTIONS.register(SERVED, _experts)


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **arguments: Any
) -> tuple[Tensor, None]:
    """query [1, H, T, D], key and value [1, Hk, T, D] -> [1, T, H, D]."""
    attend: Any = module.tessera_attention
    return attend(module, query, key, value, attention_mask, arguments), None


def _experts(module: nn.Module, hidden: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    """hidden [T, n], ids and weights [T, top_k] -> [T, n]."""
    experts: Any = module.tessera_experts
    result: Tensor = experts(module, hidden, ids, weights)
    return result


def _mask(
    *, q_length: int, kv_length: int, mask_function: Any, device: Any, local_size: int | None = None, **_: Any
) -> Tensor:
    """A mask whose every element is its number, so that any slice of it shows it: [1, 1, queries, keys] int64."""
    sight = mask_sight(mask_function, local_size, q_length)
    number = FOREIGN if sight is None else sight.number
    return torch.full((1, 1, q_length, kv_length), number, dtype=torch.int64, device=device)


def mask_sight(mask_function: Any, local_size: int | None, length: int) -> Sight | None:
    """None for a mask of another kind. mask_function: (batch, head, query, key) -> visible, as transformers composes
    it. length: of the text that it is made for."""
    keys = torch.arange(max(4096, 3 * (local_size or 0) + 2))
    queries = torch.tensor([0, 1, len(keys) // 2, len(keys) - 1])[:, None]
    try:
        seen = _seen(mask_function, queries, keys)
    except (IndexError, RuntimeError, TypeError):  # the function looks up the text's tokens: some may be of images
        keys = torch.arange(length)
        seen = _seen(mask_function, keys[:, None], keys)
        causal = local_size is None and bool((seen == (keys <= keys[:, None])).all())
        return Sight(None, ahead=False) if causal else None
    window = int(seen[-1].sum())
    near = (keys - queries).abs() < window
    for sight, expected in (
        (Sight(None, ahead=False), keys <= queries),
        (Sight(None, ahead=True), torch.ones_like(near)),
        (Sight(window, ahead=False), (keys <= queries) & near),
        (Sight(window, ahead=True), near),
    ):
        if bool((seen == expected).all()):
            return sight
    return None


def _seen(mask_function: Any, queries: Tensor, keys: Tensor) -> Tensor:
    """queries [Q, 1], keys [K] -> [Q, K]."""
    seen = torch.as_tensor(mask_function(torch.tensor(0), torch.tensor(0), queries, keys[None, :]))
    return seen.expand(len(queries), len(keys))


@dataclass(frozen=True)
class Anatomy:
    model: PreTrainedModel
    bases: dict[str, PreTrainedModel]  # candidates for the model below the head, outermost first
    embedding: nn.Embedding  # that of token ids
    head: nn.Linear | None  # over the vocabulary; None for a model below its head
    linears: dict[str, nn.Module]  # linear layers to replace, by name, without the head
    experts: dict[str, nn.Module]  # modules that transformers runs through its experts interface

    @classmethod
    def from_model(cls, model: PreTrainedModel, *, generates: bool = True, text: str = "") -> Anatomy:
        """generates: whether it has a head over the vocabulary. text: the name of the model below the head, if it
        can be no other. Raises RefusedTypeError for a model without the parts that every model must have here."""
        head, embedding = model.get_output_embeddings() if generates else None, model.get_input_embeddings()
        if isinstance(head, nn.Linear) != generates or not isinstance(embedding, nn.Embedding):
            raise RefusedTypeError(f"it has no embedding {'and head ' if generates else ''}of the usual form")
        named = dict(model.named_modules())
        return cls(
            model,
            {
                name: module
                for name, module in named.items()
                if name and isinstance(module, PreTrainedModel) and text in ("", name)
            },
            embedding,
            head,
            {
                name: module
                for name, module in named.items()
                if is_product(module) and module is not head and not _is_read(named, name)
            },
            {name: module for name, module in named.items() if hasattr(module, "_is_expert_parallel")},
        )

    @property
    def tied(self) -> bool:
        """Whether the head's weight is the embedding's."""
        return self.head is not None and self.head.weight is self.embedding.weight

    def remove(self, names: Iterable[str]) -> None:
        """Modules that texts do not reach, so that their weights are not loaded."""
        for name in names:
            owner, _, key = name.rpartition(".")
            setattr(self.model.get_submodule(owner), key, None)
        kept = set(self.model.modules())
        for key in [key for key, module in self.linears.items() if module not in kept]:
            del self.linears[key]

    def exchanged(self) -> set[nn.Module]:
        """Modules that transformers' code calls without accessing their weights."""
        modules = {*self.linears.values(), *([] if self.head is None else [self.head])}
        return modules | ({self.embedding} if type(self.embedding) is nn.Embedding else set())


def text_name(whole: PreTrainedModel) -> str:
    """Of the text model below the head in a model with towers. Raises RefusedTypeError where it is not apart from
    them."""
    text = whole.get_decoder()
    name = next((name for name, module in whole.named_modules() if module is text), "")
    if not name or text is whole.base_model:
        raise RefusedTypeError("its text model is not apart from its tower")
    return name


def leave_text(whole: PreTrainedModel) -> None:
    """Removes all of a model with towers but its text model and its head."""
    text: Any = whole.get_decoder()
    kept = {*text.modules(), whole.get_output_embeddings()}
    for module in list(whole.modules()):
        for name, child in list(module.named_children()) if module not in kept else ():
            if kept.isdisjoint(child.modules()):
                module.register_module(name, None)


_READ = frozenset({("LongcatFlashTopkRouter", "classifier")})
"""Linear layers, by the class of the module above them, which does not call them: it multiplies with their weight."""


def _is_read(named: Mapping[str, nn.Module], name: str) -> bool:
    owner, _, key = name.rpartition(".")
    return (type(named[owner]).__name__, key) in _READ


def is_product(module: nn.Module) -> bool:
    """Exactly a linear layer; a subclass may compute something else."""
    return type(module) in (nn.Linear, Conv1D)


def sizes(module: Any) -> tuple[int, int]:
    """The number of outputs and inputs of a linear layer."""
    n, k = module.weight.shape
    return (k, n) if isinstance(module, Conv1D) else (n, k)


def make_skeleton(kind: ModelType, dtype: torch.dtype) -> PreTrainedModel:
    """Raises RefusedTypeError if transformers cannot create the module."""
    register()
    kind.config.use_cache = False
    try:
        model = _make(kind, dtype)
        _trim_experts(model)
        drop_indexers(model)
        _check_rotary(model)
        compute_buffers(model)
    except RefusedTypeError:
        raise
    except Exception as error:  # transformers' code may raise anything for what it does not support
        raise RefusedTypeError(f"its module cannot be made from config.json ({first_line(error)})") from error
    return model.eval().requires_grad_(False)


def _make(kind: ModelType, dtype: torch.dtype) -> PreTrainedModel:
    make = partial(kind.model_class._from_config, kind.config, dtype=dtype, experts_implementation=SERVED)
    with torch.device("meta"):
        try:
            return make(attn_implementation=REHEARSED)
        except KeyError as error:
            if error.args != (REHEARSED,):
                raise
        model = make(attn_implementation="eager")  # it has a table of its own of classes for attention
    set_attention(model, REHEARSED)
    return model


def _trim_experts(model: PreTrainedModel) -> None:
    """LongCat's experts that give back what they take have rows in transformers' tensor and no weights in
    checkpoints."""
    for module in model.modules():
        if type(module).__name__ == "LongcatFlashExperts":
            count = module.num_routed_experts
            module.gate_up_proj = nn.Parameter(module.gate_up_proj[:count], requires_grad=False)


def set_attention(model: PreTrainedModel, implementation: str) -> None:
    """As transformers' set_attn_implementation(), which does nothing where a model's file does not name the
    interface."""
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            module.config._attn_implementation = implementation


def _check_rotary(model: PreTrainedModel) -> None:
    """Refuses scalings whose frequencies transformers recomputes for the longest sequence of each batch."""
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        for kind in kinds.values() if isinstance(kinds, dict) else [kinds]:
            if kind == "longrope" or "dynamic" in str(kind):
                raise RefusedTypeError(f"its rotary scaling '{kind}' would depend on the batch")


def compute_buffers(model: PreTrainedModel) -> None:
    """Computes the buffers that no checkpoint holds, with the initialization that transformers uses when it loads a
    model. Buffers are filled with poison first, which reveals those that it leaves out."""
    for owner, name, module in _with_owner(model, model, ""):
        fresh = {key: buffer for key, buffer in module.named_buffers(recurse=False) if key in _unsaved(module)}
        for key, buffer in fresh.items():
            setattr(module, key, _poison(buffer))
        if fresh:
            owner._init_weights(module)
        for key in fresh:
            if bool(_poisoned(getattr(module, key)).any()):
                raise RefusedTypeError(f"'{name}.{key}' is in no checkpoint and transformers does not compute it")


def _with_owner(
    owner: PreTrainedModel, module: nn.Module, name: str
) -> Iterator[tuple[PreTrainedModel, str, nn.Module]]:
    """Every module, with the model that initializes it and its name."""
    yield owner, name, module
    for key, child in module.named_children():
        yield from _with_owner(
            child if isinstance(child, PreTrainedModel) else owner, child, f"{name}.{key}" if name else key
        )


def _unsaved(module: nn.Module) -> set[str]:
    return module._non_persistent_buffers_set


def _poison(buffer: Tensor) -> Tensor:
    value = torch.nan if buffer.is_floating_point() else torch.iinfo(buffer.dtype).min if _counts(buffer) else 0
    return torch.full(buffer.shape, value, dtype=buffer.dtype, device="cpu")


def _poisoned(buffer: Tensor) -> Tensor:
    if buffer.is_floating_point():
        return buffer.isnan()
    return buffer == torch.iinfo(buffer.dtype).min if _counts(buffer) else torch.zeros(1, dtype=torch.bool)


def _counts(buffer: Tensor) -> bool:
    return buffer.dtype in (torch.int32, torch.int64)


_TOLERANCE = 1e-4


@dataclass(frozen=True)
class HeadShape:
    """logits = cap * tanh(scale * linear(hidden) / cap); without a cap if it is 0."""

    scale: float = 1.0
    cap: float = 0.0

    @classmethod
    def from_outputs(cls, hidden: Tensor, taken: Tensor, product: Tensor, logits: Tensor, cap: float) -> HeadShape:
        """hidden: output of the base model; taken: input of the head's linear layer; product: its output; logits:
        output of the whole model; cap: from the configuration. Raises RefusedTypeError if they do not fit together."""
        before = _ratio(taken, hidden)
        if before is None:
            raise RefusedTypeError("its head is more than one linear layer")
        plain = _ratio(logits, product)
        if plain is not None:
            return cls(before * plain)
        if cap:
            unsaturated = logits.abs() < cap / 2
            scale = _ratio(cap * torch.atanh(logits[unsaturated] / cap), product[unsaturated])
            capped = cap * torch.tanh((scale or 1.0) * product / cap)
            if scale is not None and torch.allclose(logits, capped, rtol=_TOLERANCE, atol=_TOLERANCE):
                return cls(before * scale, cap)
        raise RefusedTypeError("it transforms its logits in an unknown way")


def _ratio(large: Tensor, small: Tensor) -> float | None:
    """The factor between two tensors; None if there is no single one."""
    if large.shape != small.shape:
        return None
    wide, narrow = large.double().flatten(), small.double().flatten()
    factor = float(wide @ narrow / (narrow @ narrow))
    factor = round(factor) if abs(factor - round(factor)) < 1e-7 and round(factor) else factor
    return factor if torch.allclose(wide, factor * narrow, rtol=_TOLERANCE, atol=_TOLERANCE) else None
