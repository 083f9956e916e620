"""Where in a module of transformers the parts are that are exchanged, and those that stay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from tessera.models.refused import RefusedTypeError


@dataclass(frozen=True)
class Anatomy:
    """bases: what may be the model below the head, the outermost first. linears: products that are exchanged, by name,
    without the head. experts: modules that transformers runs through its experts interface. embedding: of token ids."""

    model: PreTrainedModel
    bases: dict[str, PreTrainedModel]
    embedding: nn.Embedding
    head: nn.Linear
    linears: dict[str, nn.Module]
    experts: dict[str, nn.Module]

    @classmethod
    def of(cls, model: PreTrainedModel) -> Anatomy:
        """Raises RefusedTypeError for a model without the parts that every causal model has here."""
        head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
        if not isinstance(head, nn.Linear) or not isinstance(embedding, nn.Embedding):
            raise RefusedTypeError("it has no embedding and head of the usual form")
        named = dict(model.named_modules())
        return cls(
            model,
            {name: module for name, module in named.items() if name and isinstance(module, PreTrainedModel)},
            embedding,
            head,
            {name: module for name, module in named.items() if is_product(module) and module is not head},
            {name: module for name, module in named.items() if hasattr(module, "_is_expert_parallel")},
        )

    def exchanged(self) -> set[nn.Module]:
        """The modules that transformers' code calls and whose weights it does not touch."""
        modules = {*self.linears.values(), self.head}
        return modules | ({self.embedding} if type(self.embedding) is nn.Embedding else set())


def is_product(module: nn.Module) -> bool:
    """Exactly a linear layer: a subclass may compute something else."""
    return type(module) in (nn.Linear, Conv1D)


def sizes(module: Any) -> tuple[int, int]:
    """Outputs and inputs of a product."""
    n, k = module.weight.shape
    return (k, n) if isinstance(module, Conv1D) else (n, k)
