"""Layers whose queries attend to the blocks of keys that an indexer chooses for them (MiniMax M3). A text of no more
blocks than are chosen is seen whole, so that such a layer is one of full attention, and its indexer has no effect."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

LAYER_TYPE = "minimax_m3_sparse"
_ATTENTION = "MiniMaxM3VLAttention"


def seen_whole(config: Any) -> int | None:
    """The longest text that is seen whole, in tokens; None without such layers. config: of the text model."""
    if LAYER_TYPE not in (getattr(config, "layer_types", None) or ()):
        return None
    return int(config.index_topk_blocks * config.index_block_size)


def drop_indexers(model: PreTrainedModel) -> None:
    """Leaves full attention."""
    for module in model.modules():
        if type(module).__name__ == _ATTENTION:
            module.indexer = None
