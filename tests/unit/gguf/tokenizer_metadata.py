"""The metadata that a converter writes for a tokenizer of the tokenizers library, and random texts to compare two."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import tokenizers

# Letters, digits, marks, symbols and spaces of many scripts, composed and decomposed; ends of lines; parts of code.
WORDS = """
the The THE don't we'll I'VE naïve cafe\u0301 Ko\u0308ln Größe gęślą façade ﬁle İstanbul straße Ǆ ǅ
今日は世界 你好世界 我们 한국어 \u1112\u1161\u11ab カタカナ ﾊﾝｶｸ привет Мир عالم مرحبا दुनिया नमस्ते
ไทย ქართული Ἑλλάς 0 7 12 345 6789 1234567 3.14 1,000,000 ½ ² Ⅻ ٣٤٥ 〇 ０１２
😀 👍🏽 👩\u200d👩\u200d👧 🇫🇷 … “quotes” ‘a’ — - -- --- === ''' ``` ``` !!! ??? @user #tag $5 %d ^ & *
( ) [ ] { } < > | ~ \\ / \"\"\" def
f(x): return x**2 # code <div class='a'> {"k": [1, null]} camelCaseWord HTMLParser snake_case a/b//c 'RE
""".split()  # noqa: SIM905  (a list of them is not read)
SPACES = [" "] * 12 + [
    "",
    "",
    "\n",
    "\n\n",
    "\r\n",
    "\t",
    "  ",
    "   ",
    "        ",
    " \n ",
    "\u00a0",
    "\u3000",
    "\u2028",
    "▁",
    "▁▁",
]


def random_texts(count: int, seed: int, extra: tuple[str, ...] = ()) -> Iterator[str]:
    """Words in random order with random spaces between them, cut anywhere. extra: words that this vocabulary has of its
    own, such as special tokens."""
    chance = random.Random(seed)
    words = [*WORDS, *extra * 4]
    yield from ("", " ", "\n", "a", " a", "  a  ", "\u0301", *extra)
    for _ in range(count):
        length = chance.choice((1, 2, 3, 8, 20))
        text = "".join(chance.choice(words) + chance.choice(SPACES) for _ in range(length))
        if chance.random() < 0.3:
            text = chance.choice(SPACES) + text
        if chance.random() < 0.3:
            at = chance.randrange(len(text) + 1)
            text = (
                text[:at]
                + chr(chance.choice((chance.randrange(0x20, 0x3000), chance.randrange(0xE000, 0x11000))))
                + text[at:]
            )
        yield text


def differences(ours: tokenizers.Tokenizer, theirs: tokenizers.Tokenizer, texts: Iterator[str]) -> list[str]:
    """The texts that two tokenizers encode to other ids, or whose ids they decode to other texts."""
    all_texts = [*texts]
    found = []
    for text, one, other in zip(
        all_texts, ours.encode_batch_fast(all_texts), theirs.encode_batch_fast(all_texts), strict=True
    ):
        plain = [tokenizer.decode(other.ids, skip_special_tokens=False) for tokenizer in (ours, theirs)]
        short = [tokenizer.decode(other.ids, skip_special_tokens=True) for tokenizer in (ours, theirs)]
        if one.ids != other.ids or plain[0] != plain[1] or short[0] != short[1]:
            found.append(text)
    return found


def converted(tokenizer: tokenizers.Tokenizer, model: str, **keys: Any) -> dict[str, Any]:
    """A GGUF file's metadata for a tokenizer: tokens and their types by id, and its merges or scores.

    model: tokenizer.ggml.model. keys: further keys after tokenizer.ggml.
    """
    state = json.loads(tokenizer.to_str())
    added = {token["id"]: token for token in state["added_tokens"]}
    texts = {token_id: text for text, token_id in tokenizer.get_vocab(with_added_tokens=True).items()}
    tokens, types = [], []
    for token_id in range(max(texts) + 1):
        token = added.get(token_id)
        if token is None:
            tokens.append(texts.get(token_id, f"[PAD{token_id}]"))
            types.append(1 if token_id in texts else 5)
        else:
            tokens.append(token["content"] if token["special"] else token["content"].replace("▁", " "))
            types.append(3 if token["special"] else 4)
    metadata: dict[str, Any] = {"general.architecture": "llama", "tokenizer.ggml.model": model}
    metadata |= {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    if "merges" in state["model"]:
        metadata["tokenizer.ggml.merges"] = [" ".join(pair) for pair in state["model"]["merges"]]
    return metadata | {f"tokenizer.ggml.{name}": value for name, value in keys.items()}
