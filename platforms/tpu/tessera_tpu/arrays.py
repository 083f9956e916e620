"""Arrays of JAX as core's code sees them, and back.

Core's model is traced as a function of JAX arrays: torchax makes each a torch tensor whose operations JAX records.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import ml_dtypes
import numpy as np
import torch
from torchax import default_env, interop

from tessera.platform import Array, Tensor

_HALF = {torch.bfloat16: np.dtype(ml_dtypes.bfloat16)}


def host_array(tensor: Tensor) -> Array:
    """A torch tensor in host memory as an array that shares it. NumPy has no bfloat16, so its bits are read again."""
    dense = tensor.detach().contiguous()
    if dense.dtype in _HALF:
        return dense.view(torch.int16).numpy().view(_HALF[dense.dtype])
    array: Array = dense.numpy()
    return array


def as_torch(array: Any) -> Tensor:
    """A JAX array, or one that is being traced, as a torch tensor; or a tree of them."""
    return interop.torch_view(array)


def as_jax(tensor: Tensor) -> Any:
    """The JAX array behind a tensor of as_torch()."""
    return interop.jax_view(tensor)


@contextmanager
def traced() -> Iterator[None]:
    """Within it, torch's functions take tensors of as_torch(). The int64 that core's ops index with is int32 there,
    which JAX would warn of each time."""
    with default_env(), torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Explicitly requested dtype int64", UserWarning)
        yield


def nbytes(tree: Any) -> int:
    """Bytes of all arrays of a tree on one device: of a divided array, its share."""
    return sum(_share(leaf) for leaf in jax.tree.leaves(tree))


def _share(array: Any) -> int:
    shape = array.sharding.shard_shape(array.shape) if hasattr(array, "sharding") else array.shape
    return int(np.prod(shape, dtype=np.int64)) * array.dtype.itemsize
