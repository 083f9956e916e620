"""Trains the tokenizer: byte-level BPE over the generator's own dialogues, with every digit as its own token.

python -m tools.demo_model.tokenizer --out core/tessera/demo
"""

from __future__ import annotations

import argparse
import json
from itertools import islice
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from tools.demo_model.generate import render, training_dialogues

ENTRIES = 1024
DIALOGUES = 30_000
SEED = 11
CONTEXT = 1024
END_OF_TEXT, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL = [END_OF_TEXT, START, END]
# One token each, but not special, so that clients that skip special tokens still see them.
TAGS = ["<tools>", "</tools>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
TEMPLATE = Path(__file__).parent / "chat_template.jinja"


def train() -> Tokenizer:
    """Trains a tokenizer with ENTRIES entries. Deterministic."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=ENTRIES - len(TAGS),
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(), trainer)
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    return tokenizer


def _texts() -> list[str]:
    """The dialogues' text between special tokens and tags."""
    texts = []
    for dialogue in islice(training_dialogues(SEED), DIALOGUES):
        text = render(dialogue)
        for token in SPECIAL + TAGS:
            text = text.replace(token, "\0")
        texts += [part for part in text.split("\0") if part]
    return texts


def tokenizer_config(tokenizer: Tokenizer) -> dict[str, object]:
    """tokenizer_config.json, including the chat template."""
    added = {
        str(token_id): {
            "content": token.content,
            "lstrip": token.lstrip,
            "normalized": token.normalized,
            "rstrip": token.rstrip,
            "single_word": token.single_word,
            "special": token.special,
        }
        for token_id, token in sorted(tokenizer.get_added_tokens_decoder().items())
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": added,
        "bos_token": None,
        "eos_token": END,
        "pad_token": END_OF_TEXT,
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
        "chat_template": TEMPLATE.read_text(encoding="utf-8"),
    }


def write(out: Path) -> None:
    """Writes tokenizer.json and tokenizer_config.json."""
    tokenizer = train()
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    config = json.dumps(tokenizer_config(tokenizer), indent=2, ensure_ascii=False)
    (out / "tokenizer_config.json").write_text(config + "\n", encoding="utf-8")


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    write(parser.parse_args().out)


if __name__ == "__main__":
    main()
