"""What reading an answer costs a token: `python -m benchmarks.parsing`. Processor time of the parsers alone, fed by
pieces of four characters, as tokens are; the median of several runs. Nothing else of the server is in it."""

from __future__ import annotations

import json
import statistics
import time

from tessera.parsing.calls import Tool
from tessera.parsing.formats import CALLS, response_format
from tessera.parsing.response import ResponseFormat, ResponseParser
from tessera.parsing.response_template.forcing import NAME, template_format

PIECE = 4
TOKENS = 20_000
RUNS = 5
TOOL = Tool("write", {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]})
# One with patterns, which cost more than texts.
TEMPLATE = {
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "thinking": {"open": "<think>", "close": "</think>"},
        "content": {"close": "<|im_end|>"},
        "tool_calls": {
            "open_pattern": r"<tool_call>\s*<function=(?P<name>\w+)>",
            "close": "</tool_call>",
            "repeats": True,
            "content": "xml-inline",
            "content_args": {"tag_pattern": r"<parameter=(?P<key>\w+)>\n?(?P<value>.*?)\n?</parameter>"},
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
    },
}
WORDS = "Some words, a number 42 and a < b. "


def seconds(parser: ResponseParser, text: str) -> float:
    pieces = [text[at : at + PIECE] for at in range(0, len(text), PIECE)]
    begin = time.process_time()
    for piece in pieces:
        parser.feed(piece)
    parser.finish()
    return (time.process_time() - begin) / len(pieces)


def called(name: str, text: str) -> str:
    """A call with a long argument, as the family writes it."""
    tag = CALLS[name].tag(TOOL)
    begin, end = CALLS[name].around
    arguments = json.dumps({"text": text})
    if tag["content"]["type"] != "json_schema":  # not JSON: the argument stands between tags
        part = tag["content"]["elements"][0] if tag["content"]["type"] == "sequence" else tag["content"]
        part = part["elements"][0] if part["type"] == "sequence" else part
        arguments = f"{part['begin']}{text if 'any_text' in str(part) else json.dumps(text)}{part['end']}"
    return f"{begin}{tag['begin']}{arguments}{tag['end']}{end}"


def median(answer_format: ResponseFormat | None, text: str, *, reasons: bool = False) -> float:
    assert answer_format is not None
    prompt = "<think>" if reasons else ""
    return statistics.median(
        seconds(
            ResponseParser(
                answer_format, (TOOL,), reasons=reasons, prompt=prompt if answer_format.prompt_anchor else ""
            ),
            text,
        )
        for _ in range(RUNS)
    )


def main() -> None:
    text = WORDS * (TOKENS * PIECE // len(WORDS))
    print(f"{'':16} text  reasoning  arguments   (microseconds a token)")
    rows: dict[str, ResponseFormat | None] = {name: response_format(name, "qwen3", "") for name in sorted(CALLS)}
    rows[NAME] = template_format(json.dumps(TEMPLATE), None, ())
    for name, found in rows.items():
        plain, thought = median(found, text), median(found, text, reasons=True)
        call = median(found, called("qwen3_coder" if name == NAME else name, text))
        print(f"{name:16} {plain * 1e6:4.2f}  {thought * 1e6:9.2f}  {call * 1e6:9.2f}")


if __name__ == "__main__":
    main()
