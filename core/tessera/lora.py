"""What a request says of LoRA: the adapter that a call of LLM uses, and the feature's value in Request.feature_args."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tessera.errors import RequestError

NAME = "lora"
"""Of the feature."""


def lora_args(folder: str) -> dict[str, str]:
    """Request.feature_args of requests that use the adapter in a folder."""
    return {NAME: folder}


@dataclass(frozen=True)
class LoRARequest:
    """`LoRARequest("french", 1, "path/to/adapter")`, with vLLM's fields. lora_name: for the caller. lora_int_id: at
    least 1, for the caller. lora_path: the adapter's folder, which identifies it. Raises RequestError."""

    lora_name: str
    lora_int_id: int
    lora_path: str

    def __post_init__(self) -> None:
        if not self.lora_name or not self.lora_path:
            raise RequestError("lora_request needs a lora_name and a lora_path.", param="lora_request")
        number: Any = self.lora_int_id
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise RequestError("lora_request: lora_int_id must be a whole number of at least 1.", param="lora_request")
