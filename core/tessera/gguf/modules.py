"""What a GGUF file says of how texts become vectors, as the files that a folder of sentence-transformers has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType

from tessera.errors import ModelError
from tessera.gguf.fields import GgufFields

MODULES = "modules.json"
_POOLING = "1_Pooling"
_MODES: Mapping[int, str] = MappingProxyType({1: "mean", 2: "cls", 3: "lasttoken"})
"""By pooling_type, llama.cpp's numbers of them, the names that sentence-transformers has."""
_CHAIN = (("Transformer", ""), ("Pooling", _POOLING), ("Normalize", "2_Normalize"))
"""llama.cpp normalizes what it pools, so files need not say it."""


def module_file(fields: GgufFields, name: str) -> bytes | None:
    """One of the files; None for another name. Raises ModelError for a way of pooling that is not supported."""
    if name == MODULES:
        modules = [{"idx": place, "path": path, "type": kind} for place, (kind, path) in enumerate(_CHAIN)]
        return json.dumps(modules).encode()
    if name == f"{_POOLING}/config.json":
        return json.dumps({"pooling_mode": _mode(fields)}).encode()
    return None


def _mode(fields: GgufFields) -> str:
    number = fields.get("pooling_type")
    if number not in _MODES:
        raise ModelError(
            f"{fields.key('pooling_type')} of the GGUF file is {str(number)[:20]}; supported are "
            f"{', '.join(f'{one} ({mode})' for one, mode in _MODES.items())}."
        )
    return _MODES[number]
