"""Requests that wait for a place, in order of arrival."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

from tessera.scheduler.tracked import TrackedRequest


class WaitingQueue:
    """Newcomers go to the end; who was preempted goes back to where it came from, which is before all who never ran."""

    def __init__(self) -> None:
        self._requests: list[TrackedRequest] = []

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def requests(self) -> Sequence[TrackedRequest]:
        return self._requests

    def add(self, request: TrackedRequest) -> None:
        insort(self._requests, request, key=_order)

    def remove(self, request: TrackedRequest) -> None:
        self._requests.remove(request)


def _order(request: TrackedRequest) -> int:
    return request.order
