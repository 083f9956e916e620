"""The items that responses are made of, as they are written."""

from __future__ import annotations

import msgspec

from tessera.server.generation.items import Item

Logprobs = msgspec.Raw | tuple[()]
"""Those of a text as JSON, or none."""


def reasoning_item(item_id: str, text: str | None, status: str = "completed") -> Item:
    """text: None: none yet."""
    content = [] if text is None else [{"type": "reasoning_text", "text": text}]
    return {"id": item_id, "type": "reasoning", "summary": [], "content": content, "encrypted_content": None,
            "status": status}  # fmt: skip


def message_item(item_id: str, text: str | None, status: str = "completed", logprobs: Logprobs = ()) -> Item:
    """text: None: none yet."""
    content = [] if text is None else [text_part(text, logprobs)]
    return {"id": item_id, "type": "message", "role": "assistant", "content": content, "status": status}


def text_part(text: str, logprobs: Logprobs = ()) -> Item:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def call_item(item_id: str, call_id: str, name: str, arguments: str, status: str = "completed") -> Item:
    return {"id": item_id, "type": "function_call", "call_id": call_id, "name": name, "arguments": arguments,
            "status": status}  # fmt: skip


def custom_item(item_id: str, call_id: str, name: str, text: str, status: str = "completed") -> Item:
    return {"id": item_id, "type": "custom_tool_call", "call_id": call_id, "name": name, "input": text,
            "status": status}  # fmt: skip
