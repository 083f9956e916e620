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

_POLICIES = {"fcfs": "FirstComeFirstServed", "priority": "Priority", "fair": "FairShare"}


@hookimpl
def extensions(registry: Registry) -> None:
    for architecture, path in _MODELS.items():
        registry.models.add(architecture, path, level=registry.models.level)
    for name, policy in _POLICIES.items():
        registry.policies.add(name, f"tessera.scheduler.policy:{policy}", level=registry.policies.level)
