"""Resources that a platform or a feature brings, asked as one."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.platform.launch import RequestView, Resource


class ResourceList:
    """Rows, tokens and blocks are not here: the scheduler has them in arrays."""

    def __init__(self, resources: Sequence[Resource]) -> None:
        self._of_request = [resource for resource in resources if resource.held == "request"]
        self._of_step = [resource for resource in resources if resource.held == "step"]

    @property
    def every_grant(self) -> bool:
        """Whether each grant has to be asked for, not only the first of a request."""
        return bool(self._of_step)

    def begin_step(self) -> None:
        for resource in self._of_step:
            resource.begin_step()

    def room_to_start(self, request: RequestView, grant: int) -> int:
        """How much of its first grant a request may have; 0 where it cannot start now."""
        return _room([*self._of_request, *self._of_step], request, grant)

    def has_room(self, request: RequestView) -> bool:
        """Whether there is room for what a request holds for its whole time."""
        return _room(self._of_request, request, 1) > 0

    def reason(self, request: RequestView, grant: int) -> str | None:
        """Who refuses a grant, and why, in words."""
        for resource in (*self._of_request, *self._of_step):
            answer = resource.fits(request, grant)
            if isinstance(answer, str) or answer < grant:
                return f"{resource.name}: {answer if isinstance(answer, str) else f'room for {answer} tokens'}"
        return None

    def room(self, request: RequestView, grant: int) -> int:
        """How much of a further grant a request may have, 0 included."""
        return _room(self._of_step, request, grant)

    def start(self, request: RequestView, grant: int) -> None:
        for resource in self._of_request:
            resource.take(request, grant)

    def take(self, request: RequestView, grant: int) -> None:
        for resource in self._of_step:
            resource.take(request, grant)

    def release(self, request: RequestView) -> None:
        for resource in self._of_request:
            resource.release(request)


def _room(resources: Sequence[Resource], request: RequestView, grant: int) -> int:
    for resource in resources:
        answer = resource.fits(request, grant)
        if isinstance(answer, str):
            return 0
        grant = min(grant, answer)
    return grant
