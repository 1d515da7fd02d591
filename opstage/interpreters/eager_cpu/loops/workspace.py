"""Workspace of kernels: one block of memory per Python thread, kept for reuse."""

from __future__ import annotations

import threading

import numpy as np

from ...host import address_of

ALIGNED = 64
_own = threading.local()


def workspace(size: int) -> int:
    """Return the address of `size` bytes, aligned to 64; the same memory as in this thread's last call."""
    kept = getattr(_own, "bytes", None)
    if kept is None or kept[0] < size:
        memory = np.empty(size + ALIGNED, np.uint8)
        kept = _own.bytes = (size, -(-address_of(memory) // ALIGNED) * ALIGNED, memory)
    at: int = kept[1]
    return at


def give_back_workspace() -> None:
    """Free this thread's workspace; the next call allocates it again."""
    _own.__dict__.pop("bytes", None)
