"""How the C library treats the memory of results, which come and go with every op."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

import numpy as np

_LARGEST = (32 << 20) - (64 << 10)  # bytes; glibc learns from no block above 32 MiB, its own words included


@cache
def keep_freed_memory() -> None:
    """Have glibc reuse freed blocks of up to 32 MiB instead of giving each one back to the system.

    It maps a large block anew for each request, so each page of a result is faulted in when it is first written, which
    was a third of the time of a small transformer's step. But it learns: after a mapped block of some size has been
    freed, requests up to that size come from the heap, of which it then keeps up to twice that size (mallopt(3),
    "M_MMAP_THRESHOLD"). So one is freed here. No page of it is touched; other C libraries are not affected.
    """
    np.empty(_LARGEST, np.uint8)


def give_back_freed_memory() -> None:
    """Have glibc give the system what it keeps of freed blocks, before much is asked for at one time.

    A large request is mapped anew and so leaves the heap as it is: what was freed there, such as the arrays from which
    a model was made, would stay resident beside it. Other C libraries are not affected.
    """
    trim = _trim()
    if trim is not None:
        trim(0)


@cache
def _trim() -> Callable[[int], int] | None:
    try:
        return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_size_t)(("malloc_trim", ctypes.CDLL(None)))
    except (AttributeError, OSError, TypeError):  # another C library; there the process itself is not a library
        return None
