"""Trains tessera-demo and writes its folder.

PYTHONPATH=tools python -m demo_model.train --out core/tessera/demo
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer

from .batches import Ids, Marks, batches
from .evaluate import answer_by_transformers, report
from .generate import held_out_questions
from .model import Decoder, Shape
from .muon import Muon
from .tokenizer import END, END_OF_TEXT, write

SEED = 2026
TEST_SEED = 1  # progress is watched on other questions than those of the score
STEPS = 5000
TOKENS = 1024  # a part of a step
PARTS = 2  # of a step: of different lengths, each on a thread of its own
WARMUP = 100
MATRIX_RATE = 0.01
VECTOR_RATE = 3e-3


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--matrix-rate", type=float, default=MATRIX_RATE)
    parser.add_argument("--vector-rate", type=float, default=VECTOR_RATE)
    parser.add_argument("--save-every", type=int, default=500)
    arguments = parser.parse_args()
    write(arguments.out)
    train(arguments)


def train(arguments: argparse.Namespace) -> None:
    """Run all steps; save and test every `save_every` and at the end."""
    # Threads that meet once a step, rather than in every product, lose little where the machine is shared.
    torch.set_num_threads(1)
    pool = ThreadPoolExecutor(PARTS, initializer=torch.set_num_threads, initargs=(1,))
    torch.manual_seed(SEED)
    tokenizer = Tokenizer.from_file(str(arguments.out / "tokenizer.json"))
    model = Decoder(Shape())
    matrices = [parameter for parameter in model.layers.parameters() if parameter.ndim == 2]
    vectors = [parameter for parameter in model.layers.parameters() if parameter.ndim == 1] + [model.norm]
    copies = replicas(model, PARTS)
    muon = Muon(matrices)
    adam = torch.optim.AdamW([model.embedding.weight, *vectors], betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    stream = batches(tokenizer, SEED, arguments.tokens, model.shape.context)
    started, seen, running = time.perf_counter(), 0, 0.0
    for step in range(1, arguments.steps + 1):
        parts = list(islice(stream, PARTS))
        answered = sum(int(marks.sum()) for _, marks in parts)
        loss = sum(pool.map(lambda copy, part: gradients(copy, *part, answered), copies, parts))
        collect(copies)
        fraction = min(step / WARMUP, 1.0) * (1 - (step - 1) / arguments.steps)
        for group in adam.param_groups:
            group["lr"] = arguments.vector_rate * fraction
        adam.step()
        muon.step(arguments.matrix_rate * fraction, pool)
        model.zero_grad()
        seen += sum(ids.size for ids, _ in parts)
        running += (loss - running) * max(0.02, 1 / step)
        if step % 100 == 0:
            seconds = time.perf_counter() - started
            print(f"step {step} loss {running:.4f} tokens {seen} seconds {seconds:.0f}", flush=True)
        if step % arguments.save_every == 0 or step == arguments.steps:
            save(model, tokenizer, arguments.out)
            questions = held_out_questions(400, TEST_SEED)
            replies = answer_by_transformers(arguments.out, [messages for _, messages in questions])
            report([item for item, _ in questions], replies, show_wrong=False)


def gradients(replica: Decoder, ids: Ids, marks: Marks, answered: int) -> float:
    """Gradients, in the replica, of the cross entropy of what the assistant writes here, over `answered` ids."""
    inputs, counts = torch.from_numpy(ids), torch.from_numpy(marks)
    with torch.autocast("cpu", torch.bfloat16):
        logits = replica.logits(replica(inputs[:, :-1])[counts])
    loss = F.cross_entropy(logits.float(), inputs[:, 1:][counts], reduction="sum") / answered
    loss.backward()
    return loss.item()


def replicas(model: Decoder, count: int) -> list[Decoder]:
    """The model and copies of it that hold the same parameters but gradients of their own."""
    copies = [model]
    for _ in range(count - 1):
        copy = Decoder(model.shape)
        for own, shared in zip(copy.parameters(), model.parameters(), strict=True):
            own.data = shared.data
        copies.append(copy)
    return copies


def collect(copies: list[Decoder]) -> None:
    """Add the copies' gradients to those of the first, and drop them there."""
    for first, *others in zip(*(copy.parameters() for copy in copies), strict=True):
        for other in others:
            first.grad.add_(other.grad)
            other.grad = None


def save(model: Decoder, tokenizer: Tokenizer, out: Path) -> None:
    """Write config.json, generation_config.json and model.safetensors beside the tokenizer."""
    end, pad = (tokenizer.encode(token).ids[0] for token in (END, END_OF_TEXT))
    config = model.shape.config(bos=None, eos=end, pad=pad)
    generation = {"do_sample": False, "eos_token_id": [end, pad], "pad_token_id": pad}
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")
    save_file(model.llama_state(), str(out / "model.safetensors"), metadata={"format": "pt"})


if __name__ == "__main__":
    main()
