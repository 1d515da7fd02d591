"""The BLAS of NumPy: the addresses of its functions, and its number of threads.

Kernels call it by address. NumPy's wheels bring OpenBLAS under names of their own, with 64-bit integers; other builds
have the plain names with 32-bit ones.
"""

from __future__ import annotations

import ctypes
import glob
import os
import threading
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple, final

import numpy as np

from ...threads import holding_soon, tell_in_child


class Blas(NamedTuple):
    """Addresses of C functions.

    sgemm, dgemm   cblas_?gemm
    set_threads    sets the number of threads that a call may use; 0 if unknown
    get_threads    returns it
    wide           whether sizes are 64-bit integers
    core           the processor that its kernels were written for, by OpenBLAS's name; "" if unknown
    """

    sgemm: int
    dgemm: int
    set_threads: int
    get_threads: int
    wide: bool
    core: str


_PATIENCE = 1.0  # seconds; who has the lock makes two short calls

_NAMES = (
    # gemm, set, get, wide
    ("scipy_cblas_{}gemm64_", "scipy_openblas_set_num_threads64_", "scipy_openblas_get_num_threads64_", True),
    ("cblas_{}gemm64_", "openblas_set_num_threads64_", "openblas_get_num_threads64_", True),
    ("scipy_cblas_{}gemm", "scipy_openblas_set_num_threads", "scipy_openblas_get_num_threads", False),
    ("cblas_{}gemm", "openblas_set_num_threads", "openblas_get_num_threads", False),
)


@cache
def find_blas() -> Blas | None:
    """Return NumPy's BLAS, or None if it has no OpenBLAS that can be called from outside."""
    for library in _libraries():
        for gemm, setter, getter, wide in _NAMES:
            try:
                functions = [library[name] for name in (gemm.format("s"), gemm.format("d"), setter, getter)]
            except AttributeError:
                continue
            sgemm, dgemm, set_threads, get_threads = (
                ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions
            )
            core = getattr(library, setter.replace("set_num_threads", "get_corename"), None)
            return Blas(sgemm, dgemm, set_threads, get_threads, wide, _text(core))
    return None


def _text(function: Any) -> str:
    """Return the string that a C function without arguments returns; "" without a function."""
    if function is None:
        return ""
    function.restype = ctypes.c_char_p
    return (function() or b"").decode("ascii", "replace")


@final
class OneThread:
    """A context in which OpenBLAS uses only the calling thread, since its threads and the pool's would block each
    other.

    The setting is per process: of overlapping contexts, the first sets it and the last restores it. Nobody waits for
    another thread for longer than `_PATIENCE`: a lock that is not free by then is replaced.
    """

    __slots__ = ("_lock", "_inside", "_before", "__weakref__")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._inside: list[None] = []  # appended and popped in one step each, so the count is right without the lock
        self._before = 1

    def in_child(self) -> None:
        """Free the lock in a forked child, and restore the number if threads of the parent were inside."""
        self._lock = threading.RLock()
        switches = _switches()
        if self._inside and switches is not None:
            self._inside.clear()
            switches[1](self._before)

    def __enter__(self) -> None:
        self._change(self._begin)

    def __exit__(self, *exception: object) -> None:
        self._change(self._end)

    def _change(self, change: Callable[..., None]) -> None:
        switches = _switches()
        if switches is not None:
            holding_soon(self._lock, _PATIENCE, partial(change, *switches))

    def _begin(self, get: Callable[[], int], set_: Callable[[int], None], locked: bool) -> None:
        if not locked:
            self._lock = threading.RLock()
        if not self._inside:
            self._before = get()
        self._inside.append(None)
        set_(1)

    def _end(self, get: Callable[[], int], set_: Callable[[int], None], locked: bool) -> None:
        if len(self._inside) == 1:
            set_(self._before)
        if self._inside:  # empty in a child that was forked inside
            self._inside.pop()


one_thread = OneThread()
tell_in_child(one_thread, OneThread.in_child)


@cache
def _switches() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """Return functions that get and set the number of threads."""
    blas = find_blas()
    if blas is None:
        return None
    return (ctypes.CFUNCTYPE(ctypes.c_int)(blas.get_threads), ctypes.CFUNCTYPE(None, ctypes.c_int)(blas.set_threads))


def _libraries() -> list[ctypes.CDLL]:
    """Return libraries that NumPy has already loaded, its own first."""
    package = os.path.dirname(np.__file__)
    bundled = glob.glob(os.path.join(package, os.pardir, "numpy.libs", "*openblas*"))
    bundled += glob.glob(os.path.join(package, ".dylibs", "*openblas*"))
    libraries = []
    for path in [*bundled, *_mapped()]:
        try:
            libraries.append(ctypes.CDLL(path))
        except OSError:
            continue
    return libraries


def _mapped() -> list[str]:
    """Return the OpenBLAS files mapped by this process, on systems that report them."""
    try:
        with open("/proc/self/maps", encoding="utf-8") as maps:
            paths = {line.split(maxsplit=5)[-1].strip() for line in maps if "openblas" in line}
    except OSError:
        return []
    return sorted(path for path in paths if path.startswith("/"))
