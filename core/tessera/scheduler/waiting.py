"""Requests that wait for a place, in the policy's order."""

from __future__ import annotations

from bisect import insort

from tessera.scheduler.tracked import TrackedRequest


class WaitingQueue:
    """Queues by name, each in order of rank and arrival; who was preempted goes back to where it came from. num_tokens:
    of all prompts that wait, one for each answer that shares another's."""

    def __init__(self) -> None:
        self.num_tokens = 0
        self._count = 0
        self._queues: dict[str, list[TrackedRequest]] = {}

    def __len__(self) -> int:
        return self._count

    @property
    def heads(self) -> list[TrackedRequest]:
        """The first of each queue, in order."""
        heads = [queue[0] for queue in self._queues.values()]
        heads.sort(key=_order)
        return heads

    def add(self, request: TrackedRequest) -> None:
        insort(self._queues.setdefault(request.queue, []), request, key=_order)
        self._count += 1
        self.num_tokens += request.prompt_tokens

    def remove(self, request: TrackedRequest) -> None:
        queue = self._queues[request.queue]
        queue.remove(request)
        if not queue:
            del self._queues[request.queue]
        self._count -= 1
        self.num_tokens -= request.prompt_tokens


def _order(request: TrackedRequest) -> tuple[float, int]:
    return request.rank, request.order
