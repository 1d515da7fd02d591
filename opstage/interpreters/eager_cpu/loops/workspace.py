"""Workspace of kernels: one block of memory per Python thread, kept for reuse."""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np

from ...host import Array, address_of

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


def give_back_workspace() -> None:
    """Free this thread's workspace; the next call allocates it again."""
    _own.__dict__.pop("bytes", None)
