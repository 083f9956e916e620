"""What runs in each step: schedule() decides, update() takes the answers."""

from __future__ import annotations

from tessera.scheduler.policy import FirstComeFirstServed, SchedulingPolicy, policy_named
from tessera.scheduler.progress import Finished, KeyLogprobs, Progressed, SchedulerCounters, Started
from tessera.scheduler.scheduler import Scheduler

__all__ = [
    "Finished",
    "FirstComeFirstServed",
    "KeyLogprobs",
    "Progressed",
    "Scheduler",
    "SchedulerCounters",
    "SchedulingPolicy",
    "Started",
    "policy_named",
]
