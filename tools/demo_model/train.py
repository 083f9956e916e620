"""Trains tessera-demo and writes its folder.

    PYTHONPATH=tools python -m demo_model.train --out core/tessera/demo
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer

from .batches import batches
from .evaluate import answer_by_transformers, report
from .generate import test_questions
from .model import Decoder, Shape
from .muon import Muon
from .tokenizer import END, END_OF_TEXT, write

SEED = 2026
TEST_SEED = 1  # progress is watched on other questions than those of the score
STEPS = 6000
TOKENS = 4096  # a step
WARMUP = 100
MATRIX_RATE = 0.01
VECTOR_RATE = 3e-3


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--matrix-rate", type=float, default=MATRIX_RATE)
    parser.add_argument("--vector-rate", type=float, default=VECTOR_RATE)
    parser.add_argument("--save-every", type=int, default=1000)
    arguments = parser.parse_args()
    write(arguments.out)
    train(arguments)


def train(arguments: argparse.Namespace) -> None:
    """Run all steps; save and test every `save_every` and at the end."""
    torch.manual_seed(SEED)
    tokenizer = Tokenizer.from_file(str(arguments.out / "tokenizer.json"))
    model = Decoder(Shape())
    matrices = [parameter for parameter in model.blocks.parameters() if parameter.ndim == 2]
    vectors = [parameter for parameter in model.blocks.parameters() if parameter.ndim == 1] + [model.norm]
    muon = Muon(matrices)
    adam = torch.optim.AdamW([model.embedding.weight, *vectors], betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    stream = batches(tokenizer, SEED, arguments.tokens, model.shape.context)
    started, seen, running = time.perf_counter(), 0, 0.0
    for step in range(1, arguments.steps + 1):
        ids, counts = map(torch.from_numpy, next(stream))
        loss = answer_loss(model, ids, counts)
        loss.backward()
        fraction = min(step / WARMUP, 1.0) * (1 - (step - 1) / arguments.steps)
        for group in adam.param_groups:
            group["lr"] = arguments.vector_rate * fraction
        adam.step()
        muon.step(arguments.matrix_rate * fraction)
        model.zero_grad()
        seen += ids.numel()
        running += (loss.item() - running) * max(0.02, 1 / step)
        if step % 100 == 0:
            seconds = time.perf_counter() - started
            print(f"step {step} loss {running:.4f} tokens {seen} seconds {seconds:.0f}", flush=True)
        if step % arguments.save_every == 0 or step == arguments.steps:
            save(model, tokenizer, arguments.out)
            questions = test_questions(400, TEST_SEED)
            replies = answer_by_transformers(arguments.out, [messages for _, messages in questions])
            report([item for item, _ in questions], replies, show_wrong=False)


def answer_loss(model: Decoder, ids: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy of what the assistant writes; ids [rows, length], counts [rows, length - 1]."""
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model(ids[:, :-1])
        logits = model.logits(hidden[counts])
    return F.cross_entropy(logits.float(), ids[:, 1:][counts])


def save(model: Decoder, tokenizer: Tokenizer, out: Path) -> None:
    """Write config.json, generation_config.json and model.safetensors beside the tokenizer."""
    end, pad = tokenizer.token_to_id(END), tokenizer.token_to_id(END_OF_TEXT)
    config = model.shape.config(bos=None, eos=end, pad=pad)
    generation = {"do_sample": False, "eos_token_id": [end, pad], "pad_token_id": pad}
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")
    save_file(model.llama_state(), str(out / "model.safetensors"), metadata={"format": "pt"})


if __name__ == "__main__":
    main()
