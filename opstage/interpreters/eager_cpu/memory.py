"""The C library's handling of memory for results, and one workspace per thread for kernels."""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from ...ops.errors import OutOfMemoryError
from ...ops.host_arrays import Array, address_of
from ...ops.primitive import Primitive
from ...ops.readable_amounts import show_bytes
from ...ops.types import TensorType, dtype_name, show_shape

# The C library --------------------------------------------------------------------------------------------------------

_ADVICE = (
    "use smaller batches or tensors. opstage.training.memory and opstage check --memory predict the memory of a "
    "training step"
)

_LARGEST = (32 << 20) - (64 << 10)  # bytes; glibc adapts only to blocks up to 32 MiB, including its own header


@cache
def reuse_freed_memory() -> None:
    """Have glibc reuse freed blocks of up to 32 MiB instead of giving each one back to the system.

    It maps a large block for each request, so each page of a result faults on its first write, which took a third of
    the time of a small transformer's step. But its threshold adapts: after a mapped block of some size is freed,
    requests up to that size come from the heap, of which it then keeps up to twice that size (mallopt(3),
    "M_MMAP_THRESHOLD"). So one is freed here. No page of it is touched; other C libraries are not affected.
    """
    np.empty(_LARGEST, np.uint8)


def release_freed_memory() -> None:
    """Have glibc return retained free memory to the system, before a large allocation.

    A large request is mapped and does not use the heap, so free memory there, such as the arrays from which a model was
    created, would stay resident. Other C libraries are not affected.
    """
    trim = _trim()
    if trim is not None:
        trim(0)


@cache
def _trim() -> Callable[[int], int] | None:
    try:
        return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_size_t)(("malloc_trim", ctypes.CDLL(None)))
    except (AttributeError, OSError, TypeError):  # another C library, or a process that cannot be opened as a library
        return None


def out_of_memory(
    primitive: Primitive, operands: tuple[TensorType, ...], results: tuple[TensorType, ...], region: str
) -> OutOfMemoryError:
    """Return the error of an op that the system has no memory for, placed at the user's line."""
    made = ", ".join(f"{show_shape(t.shape)} {dtype_name(t.dtype)}" for t in results)
    of = ", ".join(show_shape(t.shape) for t in operands)
    size = sum(math.prod(map(int, t.shape)) * t.dtype.itemsize for t in results)
    return OutOfMemoryError(
        f"out of memory for {made}, which {'takes' if len(results) == 1 else 'take'} {show_bytes(size)}"
        f"{f', from operands {of}' if of else ''}; {_ADVICE}",
        op=primitive.name,
        region=region,
    )


def as_out_of_memory(error: MemoryError) -> OutOfMemoryError:
    """Return the error of Opstage for one of the system at no op in particular; its own as they are."""
    if isinstance(error, OutOfMemoryError):
        return error
    reason = str(error).rstrip(".")
    return OutOfMemoryError(f"out of memory{f': {reason}' if reason else ''}; {_ADVICE}")


# Workspace ------------------------------------------------------------------------------------------------------------

ALIGNED = 64
_own = threading.local()


class Workspace(NamedTuple):
    """Memory and the address in it that is aligned. Who computes there keeps it: a signal handler that computes, too,
    may take a larger one or give it back."""

    address: int
    memory: Array


def workspace(size: int) -> Workspace:
    """Return `size` bytes, aligned to 64; the same memory as in this thread's last call."""
    kept: tuple[int, Workspace] | None = getattr(_own, "bytes", None)
    if kept is None or kept[0] < size:
        memory = np.empty(size + ALIGNED, np.uint8)
        kept = _own.bytes = (size, Workspace(-(-address_of(memory) // ALIGNED) * ALIGNED, memory))
    return kept[1]


def release_workspace() -> None:
    """Free this thread's workspace; the next call allocates it again."""
    _own.__dict__.pop("bytes", None)
