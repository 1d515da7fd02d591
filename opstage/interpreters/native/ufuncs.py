"""NumPy ufuncs with kernels as loops."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from importlib import import_module
from itertools import product
from typing import Any

import numpy as np

from . import access
from .compiler import compile_kernel

# A ufunc loop has the arguments of a kernel: pointers, the count, the strides, and unused data.
_TEXT = """def kernel(pointers, counts, strides, data):
    a, n, s = int64s(pointers, {count}), int64s(counts, 1)[0], int64s(strides, {count})
    {starts}
{packed}    else:
        for j in range(n):
            store(a[{last}] + j * s[{last}], 0, formula({strided}))
"""

# Operands of stride 0, such as a constant, are read once, so that the loop has vector instructions.
_PACKED = """    {word} {condition}:
        {numbers}
        for j in range(n):
            store(y, j, formula({loads}))
"""

_kept: list[Any] = []  # keeps alive what the ufuncs point to


def ufunc(name: str, content: str, formula: Any, dtypes: Sequence[str], result: str) -> Any:
    """Return the ufunc of a scalar formula, determined by `content`, of operands of some dtypes; it broadcasts and
    accepts any strides. Masks come to the formula as numbers, 0 or 1."""
    operands, every = len(dtypes), (*dtypes, result)
    names = [f"x{i}" for i in range(operands)]
    text = _TEXT.format(
        count=operands + 1,
        starts=", ".join(names) + ", y = " + ", ".join(f"a[{i}]" for i in range(operands + 1)),
        packed="".join(
            _packed(every, alone, "elif" if n else "if")
            for n, alone in enumerate(product((False, True), repeat=operands))
        ),
        strided=", ".join(f"load_{dtype}(a[{i}] + j * s[{i}], 0)" for i, dtype in enumerate(dtypes)),
        last=operands,
    )

    def source() -> Any:
        frontend = import_module(f"{__package__}.frontend")
        int64s = import_module(f"{__package__}.memory").int64s
        loads = {f"load_{dtype}": access.load(dtype) for dtype in dtypes}
        store = access.store(result, access.written(0))
        return frontend.source_of_text(text, {"int64s": int64s, "formula": formula, "store": store, **loads})

    kernel = compile_kernel(name, f"{text}{content}{every}", source)
    loops = (ctypes.c_void_p * 1)(kernel.address)
    data = (ctypes.c_void_p * 1)(None)
    types = (ctypes.c_byte * (operands + 1))(*[int(np.dtype(dtype).num) for dtype in every])
    label = ctypes.c_char_p(name.encode())
    _kept.append((kernel, loops, data, types, label))
    return _from_loops()(loops, data, types, 1, operands, 1, -1, label, None, 0)


def _packed(dtypes: Sequence[str], alone: Sequence[bool], word: str) -> str:
    """Return the text of the loop for packed arrays, of which some operands are one number."""
    flags = [*alone, False]
    strides = [0 if flag else np.dtype(dtype).itemsize for flag, dtype in zip(flags, dtypes)]
    numbers = [f"c{i} = load_{dtypes[i]}(x{i}, 0)" for i, flag in enumerate(flags) if flag]
    loads = [f"c{i}" if flag else f"load_{dtypes[i]}(x{i}, j)" for i, flag in enumerate(flags[:-1])]
    return _PACKED.format(
        word=word,
        condition=" and ".join(f"s[{i}] == {stride}" for i, stride in enumerate(strides)),
        numbers="; ".join(numbers) or "pass",
        loads=", ".join(loads),
    )


def _from_loops() -> Any:
    """Return PyUFunc_FromFuncAndData, the second entry of NumPy's table of C functions for ufuncs (NumPy's C API)."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.argtypes, pointer.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p
    table = (ctypes.c_size_t * 2).from_address(pointer(np._core._multiarray_umath._UFUNC_API, None))  # type: ignore[attr-defined]
    integers = [ctypes.c_int] * 4
    prototype = ctypes.PYFUNCTYPE(
        ctypes.py_object, *[ctypes.c_void_p] * 3, *integers, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int
    )
    return prototype(table[1])
