"""Copies a model's folder with a tokenizer of its vocabulary's size, for servers and pipelines that require one:
python -m benchmarks.peers.byte_tokenizer FOLDER TARGET FORM

Its tokens are bytes, then fillers named by their number, so that greedy text can be converted back to token ids. The
weights are links, whatever the form. Needs only Python.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ENDS = ("<begin>", "<end>")
_FILLER = re.compile(r"<(\d+)>")


def names(size: int) -> list[str]:
    """The names of the tokens, by id."""
    letters = _letters()
    fillers = [f"<{index}>" for index in range(len(letters), size - len(ENDS))]
    return [*letters, *fillers, *ENDS]


def ids_of(text: str) -> list[int]:
    """The fillers that a text starts with."""
    found, position = [], 0
    while match := _FILLER.match(text, position):
        found.append(int(match[1]))
        position = match.end()
    return found


def write(folder: Path, target: Path) -> None:
    """Writes the tokenizer's files into target, for the model in folder."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    size = config.get("text_config", config)["vocab_size"]
    vocabulary = {name: index for index, name in enumerate(names(size))}
    bytes_alone = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    ends = [
        {"id": vocabulary[name], "content": name, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for name in ENDS
    ]
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": ends,
        "normalizer": None,
        "pre_tokenizer": bytes_alone,
        "post_processor": None,
        "decoder": bytes_alone,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": ENDS[0], "eos_token": ENDS[1]}
    for name, content in (("tokenizer.json", tokenizer), ("tokenizer_config.json", settings)):
        (target / name).write_text(json.dumps(content), encoding="utf-8")


def link(folder: Path, target: Path) -> None:
    """Makes hard links to the model's files, since links that leave the folder are not followed, and adds a tokenizer
    if there is none. Both folders must be on the same disk."""
    target.mkdir()
    for file in folder.iterdir():
        if file.is_file():
            (target / file.name).hardlink_to(file.resolve())
    if not (folder / "tokenizer.json").exists():
        write(folder, target)


def _letters() -> list[str]:
    """The characters that byte-level tokenizers use for bytes: themselves if printable, else characters from 256 up."""
    seen = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    return [chr(byte) for byte in seen] + [chr(256 + index) for index in range(256 - len(seen))]


if __name__ == "__main__":
    link(Path(sys.argv[1]), Path(sys.argv[2]))
