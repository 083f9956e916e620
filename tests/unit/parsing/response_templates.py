"""Templates of answers (`response_template`), one for each way to mark their parts."""

from __future__ import annotations

from typing import Any

CALL = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
THINK = {"open": "<think>", "close": "</think>"}
CHATML: dict[str, Any] = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "thinking": THINK,
        "tool_calls": {
            "open": "<tool_call>", "close": "</tool_call>", "repeats": True, "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close": "<|im_end|>"},
    },
}  # fmt: skip
MARKED: dict[str, Any] = {
    "start_anchor": ["<turn>model\n", "<reply>"],
    "fields": {
        "reasoning": {"open": "<plan>", "close": "</plan>"},
        "content": {"open": ["<say>", "<say more>"], "close": "</say>", "repeats": True, "join": "\n"},
        "tool_calls": {
            "open": "<act>", "close": "</act>", "content": "json", "transform_each": True,
            "transform": {"function": {"name": "{tool}", "arguments": "{with}"}},
        },
    },
}  # fmt: skip
CHANNELS: dict[str, Any] = {
    "start_anchor": "<|start|>assistant",
    "fields": {
        "thinking": {"open": "<|channel|>analysis<|message|>", "close": "<|end|>"},
        "content": {"open": "<|channel|>final<|message|>", "close": "<|end|>"},
        "tool_calls": {
            "open_pattern": (
                r"<\|channel\|>commentary to=functions\.(?P<name>\w+)[^<]*(?:<\|constrain\|>\w+)?<\|message\|>"
            ),
            "close": "<|call|>", "repeats": True, "content": "json", "transform": CALL,
        },
    },
}  # fmt: skip
TAGS: dict[str, Any] = {
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "reasoning_content": THINK,
        "content": {"content_args": {"strip": False}},
        "tool_calls": {
            "open_pattern": r"<tool_call>\s*<function=(?P<name>\w+)>", "close": "</tool_call>", "repeats": True,
            "content": "xml-inline",
            "content_args": {
                "tag_pattern": r"<parameter=(?P<key>\w+)>\n?(?P<value>.*?)\n?</parameter>", "merge_duplicates": True,
            },
            "transform": CALL,
        },
    },
}  # fmt: skip
QUOTED: dict[str, Any] = {
    "start_anchor_pattern": r"<turn>model\n",
    "fields": {
        "tool_calls": {
            "open_pattern": r"<call>call:(?P<name>\w+)", "close": "</call>", "repeats": True, "content": "json",
            "content_args": {"unquoted_keys": True, "string_delims": [["<q>", "<q>"]]}, "transform": CALL,
        },
        "content": {"close": ["<end>", "<end of turn>"]},
    },
}  # fmt: skip
LINES: dict[str, Any] = {
    "start_anchor": "A:",
    "fields": {
        "thinking": {"open_pattern": r"(?:^|<think>\s*)", "close": "</think>"},
        "content": {"open": "<response>\n", "close_pattern": r"\n?</response>"},
        "tool_calls": {
            "open_pattern": r"@(?P<name>\w+)\(", "close_pattern": r"\)", "repeats": True, "content": "kv-lines",
            "content_args": {"line_sep": ";", "kv_sep": "="}, "transform": CALL,
        },
    },
}  # fmt: skip
TEMPLATES = {
    "chatml": CHATML, "marked": MARKED, "channels": CHANNELS, "tags": TAGS, "quoted": QUOTED, "lines": LINES,
}  # fmt: skip
