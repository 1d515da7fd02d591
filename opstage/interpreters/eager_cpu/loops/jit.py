"""Functions of arrays, compiled on the first call per dtype, and cached on disk as kernels."""

from __future__ import annotations

import ctypes
import inspect
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, final

import numpy as np

from ....compiler.native import access
from ....compiler.native.access import Function
from ....compiler.native.compiler import compile_kernel, ufunc
from ....ops.host_arrays import Array, address_of, packed


def flat(x: Array) -> Array:
    """Return the elements of x in row-major order as a vector."""
    return packed(x).reshape(-1)


def integers(x: Array) -> Array:
    """Return the elements of an integer array as a vector of int64."""
    return flat(x.astype(np.int64, copy=False))


def rows(x: Array) -> Array:
    """Return x as a matrix with rows along its last axis, which must not be empty."""
    return packed(x).reshape(-1, x.shape[-1])


@final
class JitLoop:
    """A function of packed arrays and numbers; the last `results` arguments are the arrays that it writes.

    The arrays must not overlap. Every operation is rounded as written and in order, except `functions.add`.
    """

    __slots__ = ("function", "__wrapped__", "_results", "_compiled")

    def __init__(self, function: Function, results: int):
        self.function = self.__wrapped__ = function
        self._results = results
        self._compiled: dict[Any, Callable[[int], None]] = {}

    def __call__(self, *args: Any) -> None:
        words, types = array("q"), []
        for each in args:
            if isinstance(each, np.ndarray):
                if not each.flags.c_contiguous:
                    raise ValueError(f"{self.function.__name__} is for packed arrays; strides {each.strides}")
                types.append((each.dtype.char, each.ndim))
                words.append(address_of(each))
                words.extend(each.shape)
            else:
                words.append(_bits(each))
        if not all(each.flags.writeable for each in args[-self._results :]):
            raise ValueError(f"{self.function.__name__} writes to an array that may only be read")
        key = tuple(types)
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = self._compiled[key] = self._compile(args)
        compiled(words.buffer_info()[0])

    def _compile(self, args: Sequence[Any]) -> Callable[[int], None]:
        written = len(args) - self._results
        parameters = [
            (each.dtype.name, each.ndim, access.written(i - written) if i >= written else access.READ)
            if isinstance(each, np.ndarray)
            else (np.asarray(each).dtype.name, -1, "")
            for i, each in enumerate(args)
        ]
        content = f"{inspect.getsource(self.function)}{parameters}"
        kernel = compile_kernel(self.function.__name__, content, lambda: _kernel(self.function, parameters))
        integer = ctypes.c_int64
        function = ctypes.CFUNCTYPE(None, integer, integer, integer, integer)(kernel.address)
        return partial(function, 0, 1, 0)


def _bits(number: Any) -> int:
    """Return the bits of a number as a word."""
    if isinstance(number, int):
        return number
    found = np.asarray(number)
    wide = found.astype(np.float64 if found.dtype.kind == "f" else np.uint64 if found.dtype.kind == "u" else np.int64)
    return int(wide.view(np.int64))


def _kernel(function: Function, parameters: Sequence[tuple[str, int, str]]) -> Any:
    """Return a kernel that calls the function with its argument words."""
    frontend = import_module("opstage.compiler.native.frontend")
    space: dict[str, Any] = {
        "int64s": import_module("opstage.compiler.native.intrinsics").int64s,
        "function": function,
        "uint64": np.uint64,
        "float64": np.float64,
    }
    given, at = [], 0
    for i, (dtype, rank, scope) in enumerate(parameters):
        if rank >= 0:
            space[f"packed{i}"] = frontend.Packed(dtype, scope)
            given.append(f"({', '.join([f'packed{i}', *(f'w[{at + k}]' for k in range(rank + 1))])})")
            at += rank + 1
            continue
        space[dtype] = getattr(np, dtype)
        word = {"f": f"w[{at}].view(float64)", "u": f"uint64(w[{at}])"}.get(np.dtype(dtype).kind, f"w[{at}]")
        given.append(f"{dtype}({word})")
        at += 1
    text = f"""def kernel(lo, hi, worker, arguments):
    w = int64s(arguments, {at})
    function({", ".join(given)})
"""
    return frontend.source_of_text(text, space)


def loop(*, results: int = 1) -> Callable[[Function], JitLoop]:
    """Decorate a function to become a `JitLoop`."""
    return lambda function: JitLoop(function, results)


@final
class Elementwise:
    """A NumPy ufunc of a formula: it broadcasts, and accepts arrays with any strides."""

    __slots__ = ("_factory", "_functions", "_operands", "_masked", "_compiled")

    def __init__(self, factory: Function, *functions: Function, operands: int = 1, masked: bool = False):
        """`factory(real, *functions)` returns the formula of `operands` numbers of type `real`, with `masked` behind a
        mask."""
        self._factory = factory
        self._functions = functions
        self._operands = operands
        self._masked = masked
        self._compiled: dict[Any, Function] = {}

    def __call__(self, *operands: Array) -> Any:
        compiled = self._compiled.get(operands[-1].dtype)
        if compiled is None:
            compiled = self._compiled[operands[-1].dtype] = self._compile(operands[-1].dtype)
        return compiled(*operands)

    def _compile(self, dtype: np.dtype[Any]) -> Any:
        content = inspect.getsource(self._factory) + "".join(f.__name__ for f in self._functions)
        formula = self._factory(dtype.type, *self._functions)
        operands = ("bool",) * self._masked + (dtype.name,) * self._operands
        return ufunc(self._factory.__name__, content, formula, operands, dtype.name)
