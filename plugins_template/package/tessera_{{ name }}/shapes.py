"""What one step may hold on this device."""

from __future__ import annotations

from tessera.platform import ExactShapes, StepRules


class Shapes(ExactShapes):
    """The runner launches as it likes; of these, core asks the rules alone."""

    def rules(self) -> StepRules:
        """Nothing is forbidden."""
        return StepRules()
