"""A counting allocator: every byte that NumPy asks for while it is in place, and how many at most at one time.

It knows nothing of plans. NumPy takes memory for arrays from the handler of the context (NEP 49), so this puts its own
there, which counts and passes on to the C library.
"""

from __future__ import annotations

import atexit
import ctypes
from types import FunctionType, TracebackType
from typing import Any

import numpy as np

_SET_HANDLER = 304  # PyDataMem_SetHandler, its place in NumPy's table of C functions

_Malloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_Calloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
_Realloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_Free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class _Handler(ctypes.Structure):
    """PyDataMem_Handler."""

    _fields_ = (
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("context", ctypes.c_void_p),
        ("malloc", _Malloc),
        ("calloc", _Calloc),
        ("realloc", _Realloc),
        ("free", _Free),
    )


_libc = ctypes.CDLL(None)
_libc.malloc.restype = _libc.calloc.restype = _libc.realloc.restype = ctypes.c_void_p
_libc.malloc.argtypes = (ctypes.c_size_t,)
_libc.calloc.argtypes = (ctypes.c_size_t, ctypes.c_size_t)
_libc.realloc.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.free.argtypes = (ctypes.c_void_p,)

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = (ctypes.py_object, ctypes.c_char_p)

_forever: list[Any] = []  # arrays may outlive the count, and are freed by the handler that they came from


def _beneath(function: Any) -> Any:
    """Mark a function as no program's: NumPy calls it wherever memory is taken, also while a program is recorded."""
    assert isinstance(function, FunctionType)
    function.__code__ = function.__code__.replace(co_filename="<frozen allocator>")
    return function


class Counted:
    """`live` bytes now, and the `peak` since it was put in place; of this thread's arrays alone.

    NumPy keeps back small blocks of its own handler, but none of another one.
    """

    def __init__(self) -> None:
        self.live = self.peak = 0
        self._sizes: dict[int, int] = {}
        handler = _Handler(b"counting", 1, None, self._malloc(), self._calloc(), self._realloc(), self._free())
        self._capsule = _new_capsule(ctypes.addressof(handler), b"mem_handler", None)
        _forever.append((handler, self._capsule))
        atexit.register(_leave_all, handler)

    def __enter__(self) -> Counted:
        self._before = _set_handler(self._capsule)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _set_handler(self._before)

    @_beneath
    def _add(self, address: int | None, size: int) -> int | None:
        if address:
            self._sizes[address] = size
            self.live += size
            self.peak = max(self.peak, self.live)
        return address

    @_beneath
    def _remove(self, address: int | None) -> None:
        if address:
            self.live -= self._sizes.pop(address)

    def _malloc(self) -> Any:
        return _Malloc(_beneath(lambda _, size: self._add(_libc.malloc(size), size)))

    def _calloc(self) -> Any:
        def calloc(_: Any, count: int, size: int) -> int | None:
            return self._add(_libc.calloc(count, size), count * size)

        return _Calloc(_beneath(calloc))

    def _realloc(self) -> Any:
        def realloc(_: Any, address: int | None, size: int) -> int | None:
            self._remove(address)
            return self._add(_libc.realloc(address, size), size)

        return _Realloc(_beneath(realloc))

    def _free(self) -> Any:
        def free(_: Any, address: int | None, size: int) -> None:
            self._remove(address)
            _libc.free(address)

        return _Free(_beneath(free))


def _leave_all(handler: _Handler) -> None:
    """Free nothing more: arrays that outlive Python's own code would be freed by a call into it."""
    handler.free = ctypes.cast(_libc.abs, _Free)


def _set_handler(capsule: Any) -> Any:
    """Put a handler in place; the one before."""
    from numpy._core import _multiarray_umath  # type: ignore[attr-defined]

    table = ctypes.cast(_pointer_of(_multiarray_umath._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))
    function = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(table[_SET_HANDLER])
    return function(capsule)


def counts_what_numpy_takes() -> bool:
    """Whether the allocator sees an array made and freed."""
    with Counted() as count:
        array = np.empty(1 << 20, np.uint8)
        held = count.live
        del array
        return held >= 1 << 20 and count.live == held - (1 << 20)
