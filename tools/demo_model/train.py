"""Trains tessera-demo and writes its folder.

python -m tools.demo_model.train --out core/tessera/demo --work build/demo_model
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
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from tools.demo_model.batches import Ids, Marks, batches
from tools.demo_model.evaluate import answer_by_transformers, report
from tools.demo_model.generate import held_out_questions
from tools.demo_model.model import Decoder, Shape
from tools.demo_model.optimizers import Adam, Muon
from tools.demo_model.tokenizer import END, END_OF_TEXT, write

SEED = 2026
STEPS = 6000
DECAY = 6000  # the number of last steps over which the rate falls to zero
WARMUP = 50
TOKENS = 1024  # per part of a step
PARTS = 2  # per step: of different lengths, each on its own thread
MATRIX_RATE = 0.005
VECTOR_RATE = 5e-3
SAVE_EVERY = 250
WATCHED = 160  # the number of questions asked at each save
WATCHED_SEED = 1  # different questions from those of the final score
STATE = "training-state.safetensors"


class Trainer:
    """The network and its optimizers. Runs one step at a time, and can be resumed."""

    def __init__(self) -> None:
        # Threads that synchronize once per step, rather than in every product, lose little on a shared machine.
        torch.set_num_threads(1)
        self.pool = ThreadPoolExecutor(PARTS, initializer=torch.set_num_threads, initargs=(1,))
        torch.manual_seed(SEED)
        self.model = Decoder(Shape())
        self.copies = replicas(self.model, PARTS)
        inner = list(self.model.layers.parameters())
        self.muon = Muon([parameter for parameter in inner if parameter.ndim == 2])
        vectors = [parameter for parameter in inner if parameter.ndim == 1]
        self.adam = Adam([self.model.embedding.weight, self.model.norm, *vectors])

    def step(self, number: int, parts: list[tuple[Ids, Marks]], rate: float) -> float:
        """Runs step `number` (from 1) at the fraction `rate` of the full rates. Returns the mean loss."""
        answered = sum(int(marks.sum()) for _, marks in parts)
        losses = list(self.pool.map(lambda copy, part: gradients(copy, part[0], part[1], answered), self.copies, parts))
        collect(self.copies)
        self.adam.step(VECTOR_RATE * rate, number)
        self.muon.step(MATRIX_RATE * rate, self.pool)
        self.model.zero_grad()
        return sum(losses)

    def state(self) -> dict[str, torch.Tensor]:
        """All tensors that training changes, by name."""
        tensors = [*self.model.parameters(), *self.muon.state(), *self.adam.state()]
        return {str(index): tensor.data for index, tensor in enumerate(tensors)}

    def resume(self, file: Path) -> int:
        """Restores the state saved in `file` and returns its step; 0 if there is none."""
        if not file.exists():
            return 0
        saved = load_file(file)
        for name, tensor in self.state().items():
            tensor.copy_(saved[name])
        return int(saved["step"])


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the model")
    parser.add_argument("--work", type=Path, required=True, help="folder of the state; a stopped run goes on from it")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--decay", type=int, default=DECAY)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    state = arguments.work / STATE
    if not state.exists():
        write(arguments.out)
    train(arguments.out, state, arguments.steps, arguments.decay)


def train(out: Path, state: Path, steps: int, decay: int) -> None:
    """Runs all steps; saves and tests periodically and at the end."""
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    trainer = Trainer()
    done = trainer.resume(state)
    stream = batches(tokenizer, SEED, TOKENS, trainer.model.shape.context)
    stream = islice(stream, done * PARTS, None)
    started, seen, running = time.perf_counter(), 0, 0.0
    for step in range(done + 1, steps + 1):
        parts = list(islice(stream, PARTS))
        loss = trainer.step(step, parts, min(step / WARMUP, 1.0, (steps - step + 1) / decay))
        seen += sum(ids.size for ids, _ in parts)
        running += (loss - running) * max(0.02, 1 / (step - done))
        if step % 100 == 0:
            seconds = time.perf_counter() - started
            print(f"step {step} loss {running:.4f} tokens {seen} seconds {seconds:.0f}", flush=True)
        if step % SAVE_EVERY == 0 or step == steps:
            save(trainer.model, tokenizer, out)
            save_file({**trainer.state(), "step": torch.tensor(step)}, state)
            questions = held_out_questions(WATCHED, WATCHED_SEED)
            replies = answer_by_transformers(out, [messages for _, messages in questions])
            report([item for item, _ in questions], replies, show_wrong=False)


def gradients(replica: Decoder, ids: Ids, marks: Marks, answered: int) -> float:
    """Adds the gradients of the assistant's cross entropy, divided by `answered` ids, to the replica. Returns the
    loss."""
    inputs, counts = torch.from_numpy(ids), torch.from_numpy(marks)
    with torch.autocast("cpu", torch.bfloat16):
        logits = replica.logits(replica(inputs[:, :-1])[counts])
    loss = F.cross_entropy(logits.float(), inputs[:, 1:][counts], reduction="sum") / answered
    loss.backward()
    return loss.item()


def replicas(model: Decoder, count: int) -> list[Decoder]:
    """The model, and copies that share its parameters but have their own gradients."""
    copies = [model]
    for _ in range(count - 1):
        copy = Decoder(model.shape)
        for own, shared in zip(copy.parameters(), model.parameters(), strict=True):
            own.data = shared.data
        copies.append(copy)
    return copies


def collect(copies: list[Decoder]) -> None:
    """Adds the copies' gradients to those of the first model, and clears them in the copies."""
    for first, *others in zip(*(copy.parameters() for copy in copies), strict=True):
        for other in others:
            first.grad.add_(other.grad)
            other.grad = None


def save(model: Decoder, tokenizer: Tokenizer, out: Path) -> None:
    """Writes config.json, generation_config.json and model.safetensors next to the tokenizer."""
    end, pad = (tokenizer.encode(token).ids[0] for token in (END, END_OF_TEXT))
    config = model.shape.config(bos=None, eos=end, pad=pad)
    generation = {"do_sample": False, "eos_token_id": [end, pad], "pad_token_id": pad}
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")
    save_file(model.llama_state(), str(out / "model.safetensors"), metadata={"format": "pt"})


if __name__ == "__main__":
    main()
