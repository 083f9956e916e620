"""What core itself brings, through the hooks that every plugin has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tessera.platform.hooks import hookimpl

if TYPE_CHECKING:
    from tessera.plugins.registry import Registry

_MODELS = {
    "LlamaForCausalLM": "tessera.models.families:llama",
    "MistralForCausalLM": "tessera.models.families:mistral",
    "Qwen2ForCausalLM": "tessera.models.families:qwen2",
    "Qwen3ForCausalLM": "tessera.models.families:qwen3",
    "MixtralForCausalLM": "tessera.models.families:mixtral",
}


@hookimpl
def extensions(registry: Registry) -> None:
    for architecture, path in _MODELS.items():
        registry.models.add(architecture, path, level=registry.models.level)
    registry.policies.add("fcfs", "tessera.scheduler.policy:FirstComeFirstServed", level=registry.policies.level)
