"""How a model's code is told the positions of its tokens: by an argument, or, where the code counts tokens by itself
(BART's decoder and its relatives), in the table of positions that it looks them up in."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

NAME = "position_ids"


class Positions:
    """Of one model."""

    def __init__(self, model: PreTrainedModel) -> None:
        # Those of the tokens of the step, [T]; None: as the code counts them.
        self.step: Tensor | None = None
        # Tables that look up what their model counts.
        self.tables: list[Any] = [
            table
            for owner in model.modules()
            for table in owner.children()
            if isinstance(table, nn.Embedding) and _takes_positions(table) and not _takes_positions(owner)
        ]
        for table in self.tables:
            table.forward = partial(self._look_up, table.forward)

    def arguments(self, step: Tensor | None) -> dict[str, Any]:
        """What the code is passed for tokens at these positions, [T]; None: as it counts them itself."""
        self.step = step
        return {} if self.tables else {NAME: None if step is None else step[None]}

    def _look_up(self, table: Callable[..., Tensor], *arguments: Any, **named: Any) -> Tensor:
        return table(*arguments, **named if self.step is None else {**named, NAME: self.step})


def _takes_positions(module: nn.Module) -> bool:
    return NAME in inspect.signature(module.forward).parameters
