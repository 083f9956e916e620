"""Copies between tensors on the host, by threads that rest when they have nothing to do."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

import torch
from torch import Tensor

LEAST = 4 << 20
"""Bytes that are worth a thread."""


class Copies:
    """torch's own threads look out for more work for milliseconds after each copy, in the way of the kernels that
    prepare what was copied. A context: leaving it ends the threads."""

    def __init__(self) -> None:
        self._number = torch.get_num_threads()
        self._threads = ThreadPoolExecutor(self._number, thread_name_prefix="copies")

    def __enter__(self) -> Copies:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown()

    def put(self, to: Tensor, source: Tensor) -> None:
        """Copies source into `to`, of its shape; dtypes and devices may differ, and are left to torch then."""
        if not (_plain(to) and _plain(source) and to.dtype == source.dtype):
            to.copy_(source)
            return
        target, given = (one.view(-1).view(torch.uint8).numpy() for one in (to, source))

        def copy(begin: int) -> None:
            target[begin : begin + step] = given[begin : begin + step]

        step = max(LEAST, -(-len(target) // self._number))
        if len(target) <= step:
            copy(0)
        else:
            list(self._threads.map(copy, range(0, len(target), step)))


def _plain(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.is_contiguous()
