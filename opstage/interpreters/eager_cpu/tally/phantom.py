"""`Phantom`: an array without elements. It has a shape, a dtype, strides and memory, and every element is 0.

It receives a kernel's operations on arrays through NumPy's protocols. NumPy itself determines the layout of results:
views are taken of an array with the same strides, which is never read, and the axes of a new array are ordered as in
NumPy's result on a few elements, two along each axis.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt
from numpy.lib.mixins import NDArrayOperatorsMixin
from typing_extensions import override

from ....compiler.codegen import views

Array: TypeAlias = npt.NDArray[Any]
Sizes: TypeAlias = tuple[int, ...]

_NOWHERE = np.zeros(64, np.uint8)
"""The address of all phantoms."""


class Count:
    """Allocated blocks by number, with the blocks at the peak, and the memory `kept` between calls.

    live       bytes of each live block
    at_peak    the same at the peak, `peak` bytes in total
    kept       the maximum of memory that is kept between calls
    """

    __slots__ = ("at_peak", "kept", "live", "peak", "taken", "total")

    def __init__(self) -> None:
        self.live: dict[int, int] = {}
        self.at_peak: dict[int, int] = {}
        self.taken = self.total = self.peak = self.kept = 0

    def take(self, nbytes: int) -> int:
        """Allocate a block and return its number."""
        number = self.taken = self.taken + 1
        self.live[number] = nbytes
        self.total += nbytes
        if self.total > self.peak:
            self.peak = self.total
            self.at_peak = dict(self.live)
        return number

    def give_back(self, number: int) -> None:
        self.total -= self.live.pop(number)


@final
class CountedMemory:
    """Bytes that are counted until the object is freed."""

    __slots__ = ("_count", "nbytes", "number")

    def __init__(self, nbytes: int, count: Count):
        self.nbytes = nbytes
        self._count = count
        self.number = count.take(nbytes)

    def __del__(self) -> None:
        self._count.give_back(self.number)


class _Current(threading.local):
    count: Count


current = _Current()
"""Has `count`, which records this thread's allocations."""


class _Interface:
    """The array interface of an array without memory."""

    def __init__(self, shape: Sizes, strides: Sizes | None, size: int):
        self.__array_interface__ = {
            "data": (_NOWHERE.ctypes.data, False),
            "shape": shape,
            "strides": strides,
            "typestr": f"|V{size}",
            "version": 3,
        }


@lru_cache(4096)
def _carrier(shape: Sizes, strides: Sizes | None, size: int) -> Array:
    """Return an array that supports only views."""
    return np.asarray(_Interface(shape, strides, size))


@lru_cache(4096)
def _few(shape: Sizes, strides: Sizes, dtype: np.dtype[Any]) -> Array:
    """Return an array of at most two elements along each axis, with the axis order of these strides."""
    ranks = {stride: rank for rank, stride in enumerate(sorted({abs(s) for s in strides if s}))}
    sizes = [min(n, 2) for n in shape]
    steps = [0 if not s or n < 2 else 1 << ranks[abs(s)] for n, s in zip(shape, strides)]
    room = np.zeros(1 + sum(steps), dtype)
    return np.lib.stride_tricks.as_strided(room, sizes, [step * dtype.itemsize for step in steps])


def dense_strides(few: Array, shape: Sizes, itemsize: int) -> Sizes | None:
    """Return dense strides of a new array with the axis order of `few`; None for row-major order."""
    if few.flags.c_contiguous:
        return None
    result, step = [0] * len(shape), itemsize
    for axis in sorted(range(len(shape)), key=lambda axis: (few.strides[axis], -axis)):
        if few.shape[axis] > 1:
            result[axis] = step
            step *= shape[axis]
    return tuple([s or itemsize for s in result])


@final
class Phantom(NDArrayOperatorsMixin):
    """An array without elements, on `memory` that others may share.

    answer      its truth value, if a kernel tests it
    """

    __slots__ = ("answer", "carrier", "dtype", "memory")

    def __init__(self, carrier: Array, dtype: np.dtype[Any], memory: CountedMemory, answer: bool = False):
        self.carrier = carrier
        self.dtype = dtype
        self.memory = memory
        self.answer = answer

    @classmethod
    def new(cls, shape: Iterable[Any], dtype: Any, strides: Sizes | None = None, answer: bool = False) -> Phantom:
        """Return a phantom with memory of its own."""
        sizes, kind = tuple(map(int, shape)), np.dtype(dtype)
        memory = CountedMemory(math.prod(sizes) * kind.itemsize, current.count)
        return cls(_carrier(sizes, strides, kind.itemsize), kind, memory, answer)

    @classmethod
    def on(cls, memory: CountedMemory, shape: Sizes, strides: Sizes | None, dtype: np.dtype[Any]) -> Phantom:
        """Return a phantom on existing memory."""
        return cls(_carrier(shape, strides, dtype.itemsize), dtype, memory)

    # Properties -----------------------------------------------------------------------------------------------------

    shape = property(attrgetter("carrier.shape"))
    strides = property(attrgetter("carrier.strides"))
    ndim = property(attrgetter("carrier.ndim"))
    size = property(attrgetter("carrier.size"))
    nbytes = property(attrgetter("carrier.nbytes"))
    flags = property(attrgetter("carrier.flags"))
    itemsize = property(attrgetter("dtype.itemsize"))

    def few(self) -> Array:
        """Return a small array in its place."""
        return _few(self.shape, self.strides, self.dtype)

    def __len__(self) -> int:
        return len(self.carrier)

    def __bool__(self) -> bool:
        return self.answer

    def __int__(self) -> int:
        return 0

    __index__ = __int__

    def __float__(self) -> float:
        return 0.0

    # Views ----------------------------------------------------------------------------------------------------------

    def seen(self, carrier: Array) -> Phantom:
        """Return a view."""
        return Phantom(carrier, self.dtype, self.memory, self.answer)

    @property
    def T(self) -> Phantom:  # noqa: N802 - NumPy's name
        return self.seen(self.carrier.T)

    def transpose(self, *axes: Any) -> Phantom:
        return self.seen(self.carrier.transpose(*axes))

    def swapaxes(self, first: int, second: int) -> Phantom:
        return self.seen(self.carrier.swapaxes(first, second))

    def view(self, dtype: Any) -> Phantom:
        assert np.dtype(dtype).itemsize == self.itemsize
        return Phantom(self.carrier, np.dtype(dtype), self.memory)

    def reshape(self, *shape: Any) -> Phantom:
        """Return a view, or a copy if strides do not allow a view."""
        wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        rows = _carrier(self.shape, None, self.itemsize).reshape(wanted)
        if self.carrier.flags.c_contiguous:
            return self.seen(rows)
        seen = views.reshape(views.View(0, 0, self.shape, self.strides), rows.shape)
        if seen is None:  # np.reshape reports this since 2.1, and would copy elements before
            return Phantom.new(rows.shape, self.dtype)
        return self.seen(_carrier(seen.shape, seen.strides, self.itemsize))

    def __getitem__(self, key: Any) -> Phantom:
        """Return a view, a number, or for a mask the maximal number of selected elements."""
        if isinstance(key, Phantom):
            many = (key.size,) if key.dtype == np.bool_ else key.shape
            return Phantom.new((*many, *self.shape[key.ndim if key.dtype == np.bool_ else 1 :]), self.dtype)
        parts = key if isinstance(key, tuple) else (key,)
        carrier = self.carrier[parts if Ellipsis in parts else (*parts, ...)]
        return self.seen(carrier) if carrier.ndim or Ellipsis in parts else Phantom.new((), self.dtype)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Do nothing."""

    # Copies ---------------------------------------------------------------------------------------------------------

    def copy(self, order: str = "C") -> Phantom:
        few = computed(np.array, self, order=order)
        return Phantom.new(self.shape, self.dtype, dense_strides(few, self.shape, self.itemsize))

    def astype(self, dtype: Any, copy: bool = True) -> Phantom:
        kind = np.dtype(dtype)
        if kind == self.dtype and not copy:
            return self
        few = self.few().astype(kind)
        return Phantom.new(self.shape, kind, dense_strides(few, self.shape, kind.itemsize))

    def take(self, indices: Any, axis: int | None = None) -> Phantom:
        from .functions import take

        return take(self, indices, axis)

    def max(self, axis: Any = None, **options: Any) -> Any:
        return _reduce(np.maximum, self, axis=axis, **options)

    def sum(self, axis: Any = None, **options: Any) -> Any:
        return _reduce(np.add, self, axis=axis, **options)

    def all(self, axis: Any = None) -> Any:
        return _reduce(np.logical_and, self, axis=axis)

    # NumPy's protocols ----------------------------------------------------------------------------------------------

    @override
    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = (), **options: Any) -> Any:
        if out:
            return out[0]
        if method == "at":
            return None
        few = computed(getattr(ufunc, method), *inputs, **options)
        if method == "reduce":
            shape = reduced(inputs[0].shape, options.get("axis", 0), options.get("keepdims", False))
            answer = inputs[0].answer
        elif method == "outer":
            shape, answer = tuple([n for x in inputs for n in x.shape]), False
        elif ufunc is np.matmul:
            shape, answer = _product_shape(*[x.shape for x in inputs]), False
        else:
            if method != "__call__" or ufunc.signature is not None:
                raise _unknown(f"np.{ufunc.__name__}.{method}")
            shape, answer = together(*inputs), ufunc is np.isfinite  # of 0
        return Phantom.new(shape, few.dtype, dense_strides(few, shape, few.itemsize), answer)

    def __array__(self, *args: Any, **options: Any) -> Array:
        raise TypeError(
            "a kernel read elements while its memory was counted, on arrays without elements; use functions of arrays"
        )

    def __array_function__(self, function: Callable[..., Any], types: Any, args: Any, options: Any) -> Any:
        from .functions import FUNCTIONS

        if function not in FUNCTIONS:
            raise _unknown(f"np.{function.__name__}")
        return FUNCTIONS[function](*args, **options)


def _unknown(name: str) -> Exception:
    return NotImplementedError(f"the memory of {name} cannot be counted; add it to eager_cpu/tally/functions.py")


def _reduce(ufunc: Any, x: Phantom, **options: Any) -> Any:
    return ufunc.reduce(x, **options)


def computed(function: Callable[..., Any], *args: Any, **options: Any) -> Array:
    """Apply a NumPy function to a few elements of each phantom."""
    with np.errstate(all="ignore"):
        return np.asarray(function(*[_some(arg) for arg in args], **options))


def _some(value: Any) -> Any:
    if isinstance(value, Phantom):
        return value.few()
    if isinstance(value, (tuple, list)):
        return type(value)([_some(each) for each in value])
    return value


def together(*operands: Any) -> Sizes:
    """Return the shape to which operands broadcast."""
    return np.broadcast_shapes(*[x.shape if isinstance(x, Phantom) else np.shape(x) for x in operands])


def reduced(shape: Sizes, axis: Any, keepdims: Any) -> Sizes:
    """Return the shape after reducing axes."""
    axes = range(len(shape)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    gone = {a % len(shape) for a in axes}
    return tuple([1 if a in gone else n for a, n in enumerate(shape) if keepdims or a not in gone])


def _product_shape(x: Sizes, y: Sizes) -> Sizes:
    rows, columns = x[-2:-1], y[-1:] if len(y) > 1 else ()
    return (*np.broadcast_shapes(x[:-2], y[:-2]), *rows, *columns)
