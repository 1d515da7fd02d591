"""Memory that kernels work in between reading and writing: one run of bytes for each thread of Python, kept."""

from __future__ import annotations

import threading

import numpy as np

from ...host import address_of

ALIGNED = 64
_own = threading.local()


def workspace(size: int) -> int:
    """The address of `size` bytes, at a multiple of 64; the same memory as of this thread's call before."""
    kept = getattr(_own, "bytes", None)
    if kept is None or kept[0] < size:
        memory = np.empty(size + ALIGNED, np.uint8)
        kept = _own.bytes = (size, -(-address_of(memory) // ALIGNED) * ALIGNED, memory)
    at: int = kept[1]
    return at


def give_back_workspace() -> None:
    """Let go of this thread's memory; the next call takes it anew."""
    _own.__dict__.pop("bytes", None)
