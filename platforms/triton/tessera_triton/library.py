"""The library's kernels by op."""

from __future__ import annotations

from typing import Any

from tessera.platform import Kernel
from tessera_triton.activations import Activation, Add, Gate, SoftCap
from tessera_triton.embedding import Embedding, SegmentEmbedding
from tessera_triton.experts import Experts
from tessera_triton.facts import DeviceFacts, Launcher
from tessera_triton.logits import EditLogits, LogprobsOfTokens, MaskLogits, Penalise, TakeLogits
from tessera_triton.lookup import PackedEmbedding
from tessera_triton.lora import Lora
from tessera_triton.norms import AddLayerNorm, AddNorm, LayerNorm, RMSNorm
from tessera_triton.products import Linear
from tessera_triton.quantize import Quantize
from tessera_triton.rotary import Rotary
from tessera_triton.routing import Route
from tessera_triton.sampling import Sample


def kernels(facts: DeviceFacts, launch: Launcher | None = None) -> dict[str, Kernel[Any]]:
    """The kernels for a device, for `replace(reference, **kernels(facts))`. launch: by default, to the device."""
    common = facts, launch or Launcher()
    return {
        "rms_norm": RMSNorm(*common),
        "layer_norm": LayerNorm(*common),
        "add_norm": AddNorm(*common),
        "add_layer_norm": AddLayerNorm(*common),
        "linear": Linear(*common),
        "packed_embedding": PackedEmbedding(*common),
        "quantize": Quantize(*common),
        "route": Route(*common),
        "experts": Experts(*common),
        "lora": Lora(*common),
        "gate": Gate(*common),
        "activation": Activation(*common),
        "add": Add(*common),
        "soft_cap": SoftCap(*common),
        "rotary": Rotary(*common),
        "embedding": Embedding(*common),
        "segment_embedding": SegmentEmbedding(*common),
        "logprobs": LogprobsOfTokens(*common),
        "take_logits": TakeLogits(*common),
        "mask_logits": MaskLogits(*common),
        "edit_logits": EditLogits(*common),
        "penalise": Penalise(*common),
        "sample": Sample(*common),
    }
