"""What one step may hold on this device."""

from __future__ import annotations

from tessera.platform import ModelFacts, StepRules


def rules(model: ModelFacts) -> StepRules:
    """Nothing is forbidden."""
    return StepRules()
