"""What core itself brings, through the hooks that every plugin has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tessera.platform.hooks import hookimpl

if TYPE_CHECKING:
    from tessera.plugins.registry import Registry

_DECODER = "tessera.models.decoder:Decoder"
_MODELS = {
    "LlamaForCausalLM": _DECODER,
    "MistralForCausalLM": _DECODER,
    "Qwen2ForCausalLM": _DECODER,
    "Qwen3ForCausalLM": _DECODER,
    "MixtralForCausalLM": _DECODER,
}


@hookimpl
def extensions(registry: Registry) -> None:
    for architecture, path in _MODELS.items():
        registry.models.add(architecture, path, level=registry.models.level)
    registry.policies.add("fcfs", "tessera.scheduler.policy:FirstComeFirstServed", level=registry.policies.level)
