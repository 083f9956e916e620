"""Fills the parameters of a model, one at a time: read, shard, convert, fuse, prepare, drop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import prod
from types import TracebackType

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from tessera.errors import ModelError
from tessera.layers.weights import Join, Parameter
from tessera.loader.checkpoint import APART, WeightSource
from tessera.ops.tensors import torch_dtype
from tessera.platform.device import Arena, Device
from tessera.platform.quantization import Part
from tessera.platform.runner import Progress

Place = Callable[[str, str, Tensor], Tensor]
"""A parameter's name (first_name), the name of one of its tensors, and the tensor -> what the parameter holds."""

DECODED = 4 << 20
"""Numbers that a thread decodes at a time."""
LEAST = 4 << 20
"""Bytes of a copy that are worth a thread."""


def load_weights(
    parameters: Sequence[Parameter],
    source: WeightSource,
    dtype: str,
    device: Device,
    arena: Arena,
    report: Callable[[Progress], None],
    place: Place | None = None,
    unplaced: Sequence[Parameter] = (),
) -> None:
    """Puts every parameter on the device in `dtype`. A tensor that two parameters use unchanged (tied embeddings) is
    read once and shared. The arena counts the bytes. place: what each parameter but the unplaced ones then holds
    instead of its tensors."""
    kept = {id(parameter) for parameter in unplaced}
    counted: set[object] = set()
    placed: dict[object, Tensor] = {}
    with CopyThreads() as copies:
        loader = _Loader(source, torch_dtype(dtype), device, _taken_twice(parameters), copies)
        for number, parameter in enumerate(parameters):
            parameter.fill({name: loader.joined(parameter, name) for name in parameter.parts})
            for tensor in parameter.packed.values():
                memory = _memory_of(tensor)
                if memory not in counted:
                    counted.add(memory)
                    arena.hold(tensor)
            if place is not None and id(parameter) not in kept:
                _exchange(parameter, place, placed)
            report(Progress("weights", number + 1, len(parameters)))
    source.release()


def _exchange(parameter: Parameter, place: Place, placed: dict[object, Tensor]) -> None:
    """placed: what place() returned, by the tensor that it was called with. Two parameters may share one."""
    named, held = first_name(parameter), {}
    for part, tensor in parameter.packed.items():
        same = _memory_of(tensor), tensor.storage_offset(), tensor.shape, tensor.dtype
        if same not in placed:
            placed[same] = place(named, part, tensor)
        held[part] = placed[same]
    parameter.exchange(held)


def first_name(parameter: Parameter) -> str:
    """The checkpoint's name of the first tensor that the parameter is made of, without its last part."""
    join = next(iter(parameter.joins(next(iter(parameter.parts)))))
    return join[0].name.rpartition(".")[0]


def _memory_of(tensor: Tensor) -> object:
    """Equal for tensors that share memory. Not the address: it is 0 for every tensor on the meta device, and a packed
    weight has none."""
    return StorageWeakRef(tensor.untyped_storage()) if tensor.layout == torch.strided else id(tensor)


class _Loader:
    def __init__(
        self, source: WeightSource, dtype: torch.dtype, device: Device, shared: frozenset[Part], copies: CopyThreads
    ) -> None:
        self.source, self.dtype, self.device, self.shared, self.copies = source, dtype, device, shared, copies
        self.shared_tensors: dict[Part, Tensor] = {}

    def joined(self, parameter: Parameter, name: str) -> Tensor:
        joins = parameter.joins(name)
        if not parameter.stacked and len(joins[0]) == 1:
            return self._part(joins[0][0])
        return self._stack(joins) if parameter.stacked else self._join(joins[0])

    def _stack(self, joins: Sequence[Join]) -> Tensor:
        return self._filled((self._join(join)[None] for join in joins), len(joins))

    def _join(self, join: Join) -> Tensor:
        if len(join) == 1:
            return self._part(join[0])
        return self._filled(map(self._part, join), sum(part.length for part in join))

    def _filled(self, parts: Iterable[Tensor], rows: int) -> Tensor:
        """Concatenates tensors, holding only one of them besides the result."""
        whole, at = None, 0
        for part in parts:
            if whole is None:
                whole = part.new_empty(rows, *part.shape[1:])
            self.copies.put(whole[at : at + len(part)], part)
            at += len(part)
        assert whole is not None
        return whole

    def _part(self, part: Part) -> Tensor:
        if part in self.shared_tensors:
            return self.shared_tensors[part]
        dtype = self.dtype if part.dtype is None else torch_dtype(part.dtype)
        if part.decoding is None:
            tensor = self._read(part, dtype)
        else:
            tensor = part.decoding.call(*map(self._part, part.decoding.parts)).to(dtype)
        if tensor.shape != part.shape and part.whole != (-1,):
            tensor = torch.cat((tensor, tensor.new_zeros(part.shape[0] - tensor.shape[0], *tensor.shape[1:])))
        if part.unpacking is not None:
            tensor = part.unpacking.call(tensor.contiguous())
        tensor = tensor.to(self.device.target).contiguous()
        if part in self.shared:
            self.shared_tensors[part] = tensor
        return tensor

    def _read(self, part: Part, dtype: torch.dtype) -> Tensor:
        if not self.source.decodes or part.unpacking is not None or len(part.whole) < 2:
            return _converted(self.source.read(part), dtype, part)
        start, stop = (0, part.whole[0]) if part.rows is None else part.rows
        stop = max(start, min(stop, part.whole[0]))
        result = torch.empty(stop - start, *part.shape[1:], dtype=dtype)
        step = max(1, DECODED // max(1, prod(part.shape[1:])))

        def decode(first: int) -> None:
            rows = first, min(stop, first + step)
            result[first - start : rows[1] - start] = _converted(
                self.source.read(replace(part, rows=rows)), dtype, part
            )

        self.copies.each(decode, range(start, stop, step))
        return result


_FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
"""Dtypes that are converted into each other."""


def _converted(stored: Tensor, dtype: torch.dtype, part: Part) -> Tensor:
    """Raises ModelError if that would change what the numbers mean, as for a quantized tensor that config.json does not
    mention."""
    if stored.dtype != dtype and not (stored.dtype in _FLOATS and dtype in _FLOATS):
        found, implied = (str(one).removeprefix("torch.") for one in (stored.dtype, dtype))
        implied = "bfloat16, float16 or float32" if dtype in _FLOATS else implied
        raise ModelError(f"'{part.name}' is stored as {found} where config.json implies {implied}; {APART}.")
    return stored.to(dtype)


def _taken_twice(parameters: Sequence[Parameter]) -> frozenset[Part]:
    alone: Counter[Part] = Counter()
    for parameter in parameters:
        if not parameter.stacked:
            alone.update(
                parts[0] for parts in parameter.parts.values() if len(parts) == 1 and isinstance(parts[0], Part)
            )
    return frozenset(part for part, times in alone.items() if times > 1)


class CopyThreads:
    """Copies tensors with its own threads. After a copy, torch's threads spin for milliseconds and slow down the
    kernels that prepare the copied weights. A context manager: leaving it ends the threads."""

    def __init__(self) -> None:
        self._number = torch.get_num_threads()
        self._threads = ThreadPoolExecutor(self._number, thread_name_prefix="copies")

    def __enter__(self) -> CopyThreads:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown()

    def put(self, to: Tensor, source: Tensor) -> None:
        """Copies source into `to`, which has the same shape. torch copies if the dtypes or devices differ."""
        if not (_plain(to) and _plain(source) and to.dtype == source.dtype):
            to.copy_(source)
            return
        target, values = (one.view(-1).view(torch.uint8).numpy() for one in (to, source))

        def copy(begin: int) -> None:
            target[begin : begin + step] = values[begin : begin + step]

        step = max(LEAST, -(-len(target) // self._number))
        self.each(copy, range(0, len(target), step))

    def each(self, work: Callable[[int], None], places: Sequence[int]) -> None:
        """Does some work at all places, on the threads if there are several."""
        if len(places) > 1:
            list(self._threads.map(work, places))
        else:
            for place in places:
                work(place)


def _plain(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.is_contiguous()
