"""Chats with pictures, in the shape of Qwen2.5-VL-3B with random weights: python -m benchmarks.images

Measured are seconds to the first token of an answer about one picture, beside transformers, both with their image
processor; the time between tokens of chats that run, alone and while pictures arrive in other chats; and whether a
second request with the same picture runs the tower. Both engines are loaded first; in each round one answers after the
other, while the other one is stopped, and who is first takes turns. A ratio is that of one round; medians are taken
over the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import string
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from PIL import Image
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from benchmarks import machine
from benchmarks.embeddings import BUSY, ratio
from benchmarks.http_load import percentile
from benchmarks.image_task import ImageTask
from benchmarks.peers.tessera import tuning
from benchmarks.report import OURS
from benchmarks.running import EngineError, results

PEER = "transformers"
MODULES = {OURS: "tessera_images", PEER: "transformers_images"}
FIRST_SPECIAL = 151643
"""Of the vocabulary: what comes before are texts."""
SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>"),
    *("<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>"),
    *("<|image_pad|>", "<|video_pad|>"),
)
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
DETAIL = 32
"""Pixels of a picture's spots."""


@dataclass(frozen=True)
class Shape:
    """Of a model, and of what it is asked."""

    # Of the text model.
    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    # Of the tower.
    depth: int
    width: int
    wide: int
    tower_heads: int
    # Of a picture.
    pixels: int
    rounds: int
    arrivals: int
    interval: float


WHOLE = Shape(36, 2048, 11008, 16, 2, 32, 1280, 3420, 16, 1024, rounds=5, arrivals=20, interval=5.0)
SMALL = Shape(4, 256, 640, 4, 2, 8, 160, 448, 2, 448, rounds=3, arrivals=20, interval=0.5)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.images", description=__doc__.partition("\n\n")[0])
    parser.add_argument(
        "--small", action="store_true", help="a shape that a minute is enough for, whose figures say little"
    )
    parser.add_argument("--layers", type=int, help="of the text model, where memory is short (36)")
    parser.add_argument("--engines", nargs="+", choices=list(MODULES), default=list(MODULES), help="(both)")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="(bfloat16)")
    parser.add_argument("--rounds", type=int, help="(5)")
    parser.add_argument("--chats", type=int, default=4, help="that run when pictures arrive (4)")
    parser.add_argument("--arrivals", type=int, help="pictures that arrive (20)")
    parser.add_argument("--interval", type=float, help="seconds between two of them (5)")
    parser.add_argument("--step-tokens", type=int, default=2048, help="--max-num-batched-tokens (2048)")
    parser.add_argument("--threads", type=int, default=len(machine.cores()), help="of each engine (all cores)")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args(arguments)
    try:
        _compare(options)
    except EngineError as error:
        sys.exit(str(error))


def report(record: Mapping[str, Any]) -> list[str]:
    """The lines of what was measured."""
    lines = [
        f"{record['machine']}; {record['threads']} threads each; {record['date']}",
        "; ".join(f"{name} {version}" for name, version in record["versions"].items()),
        f"{record['layers']} layers of text, a picture of {record['pixels']} pixels, {record['dtype']}",
        f"{record['step_tokens']} tokens a step; {record['chats']} chats, a picture each {record['interval_s']} s",
    ]
    for name, seconds in record["first_token_s"].items():
        middle, least, most = percentile(seconds, 50), min(seconds), max(seconds)
        lines.append(f"{name:14} {middle:8.2f} s to the first token, {least:.2f}-{most:.2f}")
    if len(record["first_token_s"]) > 1:
        middle, least, most = ratio(record["first_token_s"][PEER], record["first_token_s"][OURS])
        lines.append(f"{OURS} is {middle:.2f} times as fast as {PEER} ({least:.2f}-{most:.2f})")
    if "beside" in record:
        lines += _beside(record["beside"])
    if record["busy"] is None or record["busy"] > BUSY:
        lines.append("Other programs use the machine: the figures are preliminary.")
    return lines


def _beside(figures: Mapping[str, Any]) -> list[str]:
    """Of chats, alone and while pictures arrive."""
    lines, tails = [], {name: percentile(figures[name], 95) for name in ("alone", "beside")}
    for name, tail in tails.items():
        gaps = figures[name]
        middle, most = percentile(gaps, 50), max(gaps)
        lines.append(
            f"{name:14} {1e3 * middle:8.1f} ms between tokens, 95th percentile {1e3 * tail:.1f}, "
            f"longest {1e3 * most:.0f}, of {len(gaps)}"
        )
    answers = figures["answers"]
    return [
        *lines,
        f"95th percentile while {len(answers)} pictures arrive, over alone: {tails['beside'] / tails['alone']:.2f}",
        f"their answers begin after {percentile(answers, 50):.1f} s, at most {max(answers):.1f}",
        f"encodings of a picture and of the same again: {figures['encodings']}",
    ]


def _compare(options: argparse.Namespace) -> None:
    shape = SMALL if options.small else WHOLE
    layers, rounds = options.layers or shape.layers, options.rounds or shape.rounds
    arrivals, interval = (
        options.arrivals or shape.arrivals,
        shape.interval if options.interval is None else options.interval,
    )
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as ends:
        folder = Path(name)
        write_model(folder / "model", shape, layers)
        # One to warm up, one for each round, one that is asked twice, and those that arrive.
        images = [
            str(picture(folder / f"{number}.png", shape.pixels, number)) for number in range(2 + rounds + arrivals)
        ]
        task = ImageTask(
            str(folder / "model"), options.dtype, options.threads, images, rounds, options.step_tokens, options.chats,
            arrivals, interval,
        )  # fmt: skip
        task.write(folder / "task.json")
        lines = {
            engine: ends.enter_context(contextlib.closing(_results(engine, task, folder / "task.json")))
            for engine in options.engines
        }
        versions = {engine: next(line)["version"] for engine, line in lines.items()}
        record: dict[str, Any] = {
            "machine": machine.describe(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "threads": task.threads,
            "versions": versions,
            "layers": layers,
            "pixels": shape.pixels,
            "dtype": task.dtype,
            "step_tokens": task.step_tokens,
            "chats": task.chats,
            "interval_s": interval,
            "busy": machine.busy(2.0),
            "first_token_s": {engine: [] for engine in lines},
        }
        for number in range(rounds):
            for engine in list(lines)[:: 1 if number % 2 else -1]:
                record["first_token_s"][engine].append(next(lines[engine])["seconds"])
            _write(options.json, record)
        if OURS in lines:
            record["beside"] = next(lines[OURS])
            _write(options.json, record)
    print("\n".join(report(record)))


def _write(path: Path | None, record: Mapping[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _results(engine: str, task: ImageTask, path: Path) -> Iterator[dict[str, Any]]:
    """The lines of an engine's process. path: of its task."""
    variables = {**os.environ, "OMP_NUM_THREADS": str(task.threads), "HF_HUB_OFFLINE": "1"}
    if engine == OURS:
        variables |= tuning(Path(sys.prefix), machine.cores()).variables
    yield from results(engine, [sys.executable, "-m", f"benchmarks.peers.{MODULES[engine]}", str(path)], variables)


# ---- a model and pictures


def picture(path: Path, pixels: int, number: int) -> Path:
    """A square of random spots."""
    spots = np.random.default_rng(number).integers(0, 256, (-(-pixels // DETAIL), -(-pixels // DETAIL), 3), np.uint8)
    Image.fromarray(spots).resize((pixels, pixels), Image.Resampling.BICUBIC).save(path)
    return path


def write_model(folder: Path, shape: Shape, layers: int) -> None:
    """What a folder of Qwen2.5-VL has beside weights. Its tokenizer has as many tokens, which are made up."""
    folder.mkdir()
    ids = {text: FIRST_SPECIAL + number for number, text in enumerate(SPECIAL)}
    files: dict[str, Mapping[str, Any]] = {
        "config.json": _config(shape, layers, ids),
        "preprocessor_config.json": {
            "image_processor_type": "Qwen2VLImageProcessor",
            "min_pixels": 3136,
            "max_pixels": 12845056,
            "patch_size": 14,
            "temporal_patch_size": 2,
            "merge_size": 2,
            "image_mean": [0.48145466, 0.4578275, 0.40821073],
            "image_std": [0.26862954, 0.26130258, 0.27577711],
        },
        "processor_config.json": {"processor_class": "Qwen2_5_VLProcessor"},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "chat_template": TEMPLATE,
            "extra_special_tokens": {
                "image_token": "<|image_pad|>",
                "video_token": "<|video_pad|>",
                "vision_bos_token": "<|vision_start|>",
                "vision_eos_token": "<|vision_end|>",
            },
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    bytes_first = sorted(ByteLevel.alphabet())
    words = ("".join(letters) for size in (3, 4) for letters in product(string.ascii_lowercase, repeat=size))
    texts = [*bytes_first, *islice(words, FIRST_SPECIAL - len(bytes_first))]
    tokenizer = tokenizers.Tokenizer(BPE({text: number for number, text in enumerate(texts)}, []))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.save(str(folder / "tokenizer.json"))


def _config(shape: Shape, layers: int, ids: Mapping[str, int]) -> dict[str, Any]:
    size = shape.hidden // shape.heads
    sections = [size // 8, size * 3 // 16, size // 2 - size // 8 - size * 3 // 16]
    text = {
        "model_type": "qwen2_5_vl_text",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_hidden_layers": layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "vocab_size": 151936,
        "max_position_embeddings": 128000,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": sections},
        "tie_word_embeddings": True,
        "use_sliding_window": False,
    }
    return {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl",
        "torch_dtype": "bfloat16",
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "eos_token_id": ids["<|im_end|>"],
        "tie_word_embeddings": True,
        "text_config": text,
        "vision_config": {
            "model_type": "qwen2_5_vl_vision",
            "depth": shape.depth,
            "hidden_size": shape.width,
            "intermediate_size": shape.wide,
            "num_heads": shape.tower_heads,
            "out_hidden_size": shape.hidden,
            "patch_size": 14,
            "spatial_patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "window_size": 112,
            "fullatt_block_indexes": list(range(shape.depth // 4 - 1, shape.depth, shape.depth // 4)),
            "tokens_per_second": 2,
        },
    }


if __name__ == "__main__":
    main(sys.argv[1:])
