"""Exports the encoder of a model's folder in float32: python -m benchmarks.peers.make_onnx FOLDER TARGET ""

Needs torch, transformers and onnx. Texts and tokens are of any number.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benchmarks.peers.onnx_embeddings import INPUTS


def export(folder: Path, target: Path) -> None:
    import torch
    from transformers import AutoModel

    class States(torch.nn.Module):
        def __init__(self, encoder: Any) -> None:
            super().__init__()
            self.encoder = encoder

        def forward(self, ids: Any, mask: Any, types: Any) -> Any:
            # As BERT has always added it, which is the pattern that the runtimes know.
            added = (1.0 - mask[:, None, None, :].to(torch.float32)) * torch.finfo(torch.float32).min
            return self.encoder(input_ids=ids, attention_mask=added, token_type_ids=types).last_hidden_state

    # Written out, attention becomes products and a softmax, which the runtimes fuse again.
    encoder = AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    ones = torch.ones(2, 8, dtype=torch.int64)
    names = [*INPUTS, "states"]
    torch.onnx.export(
        States(encoder),
        (ones, ones, torch.zeros_like(ones)),
        str(target),
        input_names=list(INPUTS),
        output_names=["states"],
        dynamic_axes={name: {0: "texts", 1: "tokens"} for name in names},
        opset_version=17,
        dynamo=False,
    )


if __name__ == "__main__":
    export(Path(sys.argv[1]), Path(sys.argv[2]))
