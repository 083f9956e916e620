"""Observers of the model runner: they see what each step launches, and may withhold a step's output."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from tessera.platform.device import Device
from tessera.platform.launch import Launch
from tessera.platform.runner import CachePlan
from tessera.step import SchedulerOutput


class StepObserver(Protocol):
    """Follows one step."""

    def observe(self, launch: Launch) -> None:
        """Called with each launch of the step, in order, before it runs. The next launch overwrites its tensors."""

    def finish(self) -> None:
        """Called when the step's output is about to be handed out; steps finish in their order. Raises EngineStepError
        to withhold it."""


class LaunchObserver(ABC):
    """Follows the steps of a runner."""

    @abstractmethod
    def allocate(self, plan: CachePlan, device: Device) -> None:
        """Called whenever the runner has allocated a KV cache, in which nothing is written yet."""

    @abstractmethod
    def begin(self, step: SchedulerOutput) -> StepObserver:
        """Called before a step launches anything."""
