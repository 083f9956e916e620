"""A GGUF file, or the files that one was split into: its metadata, its tensors, and their bytes."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from mmap import ACCESS_READ, mmap
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tessera.errors import ModelError, printable
from tessera.gguf.header import GgufHeader, GgufTensor, read_header

_SPLIT = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<total>\d{5})\.gguf", re.IGNORECASE)


class GgufFile:
    """What a model's file holds; nothing of its tensors is read before rows() is called."""

    def __init__(self, paths: list[Path], headers: list[GgufHeader], sizes: list[int]) -> None:
        """Of each file of a split, in their order."""
        # The first file; others of a split lie beside it.
        self.path = paths[0]
        # Of the first file: str, int, float, bool, or a list of one of these.
        self.metadata: Mapping[str, Any] = MappingProxyType(headers[0].metadata)
        # By name, those of all files in their order.
        self.tensors: Mapping[str, GgufTensor] = MappingProxyType(_joined(paths, headers))
        self._paths = paths
        self._sizes = sizes
        # By number of the file, while they are mapped.
        self._mappings: dict[int, mmap] = {}

    @classmethod
    def open(cls, path: Path) -> GgufFile:
        """Reads the headers of a file and, if it is one of a split, of the others beside it. Raises ModelError."""
        header, size = _read(path, 0)
        total = header.metadata.get("split.count", 1)
        if type(total) is not int or total < 2:
            return cls([path], [header], [size])
        paths = _paths_of_split(path, total)
        headers, sizes = zip(*(_read(one, number) for number, one in enumerate(paths)), strict=True)
        for number, (one, other) in enumerate(zip(paths, headers, strict=True)):
            if other.metadata.get("split.no") != number or other.metadata.get("split.count") != total:
                raise ModelError(
                    f"'{printable(one)}' does not say that it is file {number + 1} of {total}; download it again."
                )
        opened = cls(paths, list(headers), list(sizes))
        expected = opened.metadata.get("split.tensors.count", len(opened.tensors))
        if expected != len(opened.tensors):
            raise ModelError(
                f"'{printable(paths[0])}' and the files beside it have {len(opened.tensors):,} tensors where "
                f"{printable(str(expected), 40)} are expected; download all of them again."
            )
        return opened

    def rows(self, tensor: GgufTensor, start: int, stop: int) -> NDArray[np.uint8]:
        """Rows of a tensor seen as a matrix whose rows are its last dimension, as they are stored: uint8 [stop - start,
        bytes of a row]. They are a view of the file, which stays mapped as long as one of its views is used. Raises
        ModelError if the file has changed."""
        assert 0 <= start <= stop <= tensor.num_rows
        size = tensor.row_bytes
        data = np.frombuffer(self._mapping(tensor.file), np.uint8)
        return data[tensor.offset + start * size : tensor.offset + stop * size].reshape(stop - start, size)

    def release(self) -> None:
        """Drops the mappings, so that pages that were read take no memory; rows() maps the file again."""
        self._mappings.clear()

    def _mapping(self, number: int) -> mmap:
        data = self._mappings.get(number)  # another thread may release them
        if data is None:
            path = self._paths[number]
            data = _mapped(path)
            if len(data) != self._sizes[number]:
                raise ModelError(f"'{printable(path)}' has changed since it was opened; start again.")
            self._mappings[number] = data
        return data


def _read(path: Path, number: int) -> tuple[GgufHeader, int]:
    """A file's header, and its size in bytes. number: which of a split, from 0."""
    with _mapped(path) as data:
        return read_header(data, printable(path), number), len(data)


def _mapped(path: Path) -> mmap:
    try:
        # Do not wait for a pipe. Links are followed: the files are large, and often stored elsewhere.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ModelError(f"'{printable(path)}' is not a file that can be read; name the model's *.gguf.")
            if not status.st_size:
                raise ModelError(f"'{printable(path)}' is empty; download it again.")
            return mmap(descriptor, 0, access=ACCESS_READ)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ModelError(f"'{printable(path)}' cannot be read: {error.strerror}.") from error


def _paths_of_split(path: Path, total: int) -> list[Path]:
    """The files of a split, by the name of one of them. total: how many it says there are."""
    name = _SPLIT.fullmatch(path.name)
    if name is None or int(name["total"]) != total:
        raise ModelError(
            f"'{printable(path)}' is one of {total} files, which are found by their names; name it as it was, like "
            f"NAME-00001-of-{total:05}.gguf, and put the others beside it."
        )
    numbers = range(1, total + 1)
    paths = [path.with_name(f"{name['stem']}-{number:05}-of-{total:05}{path.suffix}") for number in numbers]
    for other in paths:
        if not other.exists():
            raise ModelError(f"'{printable(other)}' is missing, one of the model's {total} files; download it as well.")
    return paths


def _joined(paths: list[Path], headers: list[GgufHeader]) -> dict[str, GgufTensor]:
    tensors: dict[str, GgufTensor] = {}
    for path, header in zip(paths, headers, strict=True):
        for name, tensor in header.tensors.items():
            if name in tensors:
                other = paths[tensors[name].file].name
                raise ModelError(
                    f"tensor '{printable(name, 80)}' is in both '{printable(other)}' and '{printable(path)}'; "
                    "download both again."
                )
            tensors[name] = tensor
    return tensors
