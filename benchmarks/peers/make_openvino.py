"""Exports a model's folder for OpenVINO: python -m benchmarks.peers.make_openvino FOLDER TARGET DTYPE

Its pipeline insists on a tokenizer, so a model that comes without one is given bytes and fillers up to its vocabulary.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

FORMATS = {"bfloat16": "fp16", "float16": "fp16", "float32": "fp32"}


def export(folder: Path, target: Path, dtype: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name)
        for file in folder.iterdir():
            (copy / file.name).symlink_to(file)
        if not (folder / "tokenizer.json").exists():
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            _add_tokenizer(copy, config["vocab_size"])
        # The command line of optimum lies beside the interpreter of its environment.
        command = [str(Path(sys.executable).parent / "optimum-cli"), "export", "openvino", "--model", str(copy)]
        command += ["--task", "text-generation-with-past", "--weight-format", FORMATS[dtype], str(target)]
        subprocess.run(command, check=True)


def _add_tokenizer(folder: Path, size: int) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    ends = ["<begin>", "<end>"]
    names = [*letters, *(f"<filler {index}>" for index in range(size - len(letters) - len(ends))), *ends]
    tokenizer = Tokenizer(models.BPE(vocab={name: index for index, name in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    saved = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=ends[0], eos_token=ends[1])
    saved.save_pretrained(folder)


if __name__ == "__main__":
    export(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
