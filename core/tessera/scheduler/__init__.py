"""What runs in each step: schedule() decides, update() takes the answers."""

from __future__ import annotations

from tessera.scheduler.policy import FairShare, FirstComeFirstServed, Priority, SchedulingPolicy, policy_named
from tessera.scheduler.progress import Finished, KeyLogprobs, Progressed, SchedulerCounters, Started
from tessera.scheduler.scheduler import Scheduler

__all__ = [
    "FairShare",
    "Finished",
    "FirstComeFirstServed",
    "KeyLogprobs",
    "Priority",
    "Progressed",
    "Scheduler",
    "SchedulerCounters",
    "SchedulingPolicy",
    "Started",
    "policy_named",
]
