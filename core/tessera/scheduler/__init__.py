"""Decides what runs in each step: schedule() builds a step, update() processes its output."""

from __future__ import annotations

from tessera.scheduler.outputs import (
    EngineCoreOutputs,
    FinishedRequest,
    RequestLogprobs,
    SchedulerCounters,
    StartedRequest,
)
from tessera.scheduler.policy import FairShare, FirstComeFirstServed, Priority, SchedulingPolicy
from tessera.scheduler.scheduler import Scheduler

__all__ = [
    "EngineCoreOutputs",
    "FairShare",
    "FinishedRequest",
    "FirstComeFirstServed",
    "Priority",
    "RequestLogprobs",
    "Scheduler",
    "SchedulerCounters",
    "SchedulingPolicy",
    "StartedRequest",
]
