"""Compiled loops over arrays: elementwise functions, random numbers, rows, recurrences and attention.

A loop is compiled on the first call per dtype, and cached on disk as a kernel."""

from __future__ import annotations

import ctypes
import inspect
import math
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, final

import numpy as np

from ....compiler import scalar
from ....compiler.codegen.cpu.math_functions import add, exp, peak
from ....compiler.codegen.cpu.math_functions import erf as erf_of_one
from ....compiler.native import access
from ....compiler.native.access import Function, inlined
from ....compiler.native.compiler import compile_kernel, ufunc
from ....ops.host_arrays import Array, address_of, packed

# Compiled functions of arrays -----------------------------------------------------------------------------------------


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
        content = f"{self.function.__name__} {inspect.getsource(self.function)}{parameters}"
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
    from ....compiler.native import frontend
    from ....compiler.native.intrinsics import int64s

    space: dict[str, Any] = {"int64s": int64s, "function": function, "uint64": np.uint64, "float64": np.float64}
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


# Elementwise functions ------------------------------------------------------------------------------------------------

sigmoid = Elementwise(scalar.sigmoid, exp)
sigmoid_grad = Elementwise(scalar.sigmoid_grad, operands=2)
tanh_grad = Elementwise(scalar.tanh_grad, operands=2)
relu = Elementwise(scalar.relu)
relu_grad = Elementwise(scalar.relu_grad, operands=2)
silu = Elementwise(scalar.silu, exp)
select = Elementwise(scalar.select, operands=2, masked=True)


def _alone(real: Any, function: Function) -> Function:
    def formula(x: Any) -> Any:
        return function(x)

    return formula


def _square_root(real: Any) -> Function:
    def formula(x: Any) -> Any:
        return math.sqrt(x)

    return formula


def _inverse(real: Any) -> Function:
    one = real(1)

    def formula(x: Any) -> Any:
        return one / x

    return formula


erf = Elementwise(_alone, erf_of_one)
sqrt = Elementwise(_square_root)
inv = Elementwise(_inverse)


# Draws ----------------------------------------------------------------------------------------------------------------


@inlined()
def splitmix64(word: Any) -> Function:
    """Return the finalizer of one word."""
    return scalar.splitmix64(np.uint64)


@inlined()
def uniform_integer(word: Any) -> Function:
    """Return the function of element i in the stream of a key, as an integer in [0, 2^24)."""
    return scalar.uniform_integer(np.uint64, splitmix64)


@loop()
def uniform(key: Any, out: Array) -> None:
    unit = out.dtype.type(2.0**-24)
    for i in range(out.size):
        # converting signed integers is a vector instruction
        out[i] = out.dtype.type(np.int64(uniform_integer(key, np.uint64(i)))) * unit


@loop()
def bernoulli(key: Any, keep_prob: Any, out: Array) -> None:
    """Write 1 where the draw is less than keep_prob, else 0."""
    real = out.dtype.type
    unit = real(2.0**-24)
    for i in range(out.size):
        drawn = real(np.int64(uniform_integer(key, np.uint64(i)))) * unit
        out[i] = real(1) if drawn < keep_prob else real(0)


# Rows -----------------------------------------------------------------------------------------------------------------


@loop()
def scatter_add_rows(v: Array, idx: Array, out: Array) -> None:
    """Compute out[idx[i]] += v[i] in order; indices out of range are skipped."""
    for i in range(idx.size):
        row = idx[i]
        if 0 <= row < out.shape[0]:
            for j in range(out.shape[1]):
                out[row, j] += v[i, j]


@loop()
def scatter_add_axis(v: Array, idx: Array, out: Array) -> None:
    """Compute out[i, idx[j]] += v[i, j] in the order of j; indices out of range are skipped."""
    for i in range(out.shape[0]):
        for j in range(idx.size):
            row = idx[j]
            if 0 <= row < out.shape[1]:
                for k in range(out.shape[2]):
                    out[i, row, k] += v[i, j, k]


@loop()
def gather_axis(x: Array, idx: Array, out: Array) -> None:
    """Compute out[i, j] = x[i, idx[j]]."""
    for i in range(out.shape[0]):
        for j in range(idx.size):
            row = idx[j]
            for k in range(out.shape[2]):
                out[i, j, k] = x[i, row, k]


@loop()
def gather_numbers(x: Array, idx: Array, out: Array) -> None:
    """Compute the same for entries of one number, many at a time."""
    for i in range(out.shape[0]):
        for j in range(idx.size):
            out[i, j] = x[i, idx[j]]


# Recurrences ----------------------------------------------------------------------------------------------------------

# What is accumulated depends on the step before it, so a row by itself waits for every sum: several are done at once.


@loop()
def linear_recurrence(reverse: int, together: int, a: Array, b: Array, out: Array) -> None:
    """Compute out[:, k] = a[:, k] · out[:, k - 1] + b[:, k] from 0 on, or from the last k down if `reverse`."""
    length = a.shape[1]
    for first in range(0, a.shape[0], together):
        for step in range(length):
            k = length - 1 - step if reverse else step
            before = k + 1 if reverse else k - 1
            for i in range(first, min(first + together, a.shape[0])):
                if step == 0:
                    for j in range(a.shape[2]):
                        out[i, k, j] = a[i, k, j] * 0 + b[i, k, j]
                elif a.shape[2] == 1:
                    out[i, k, 0] = a[i, k, 0] * out[i, before, 0] + b[i, k, 0]
                else:
                    for j in range(a.shape[2]):
                        out[i, k, j] = a[i, k, j] * out[i, before, j] + b[i, k, j]


def _accumulation(name: str, start: int, combined: Function) -> JitLoop:
    """Return the loop that computes out[:, k] = combined(out[:, k - 1], x[:, k]), from the last k down if `reverse`; if
    `exclusive`, with x[:, k - 1], from `start` on."""

    def accumulate(exclusive: int, reverse: int, together: int, x: Array, out: Array) -> None:
        length = x.shape[1]
        for first in range(0, x.shape[0], together):
            for step in range(length):
                k = length - 1 - step if reverse else step
                before = k + 1 if reverse else k - 1
                term = before if exclusive else k
                for i in range(first, min(first + together, x.shape[0])):
                    if step > 0:
                        for j in range(x.shape[2]):
                            out[i, k, j] = combined(out[i, before, j], x[i, term, j])
                    elif exclusive:
                        for j in range(x.shape[2]):
                            out[i, k, j] = start
                    else:
                        for j in range(x.shape[2]):
                            out[i, k, j] = x[i, k, j]

    accumulate.__name__ = name
    return JitLoop(accumulate, 1)


cumsum = _accumulation("cumsum", 0, lambda total, x: total + x)
cumprod = _accumulation("cumprod", 1, lambda total, x: total * x)


# Attention ------------------------------------------------------------------------------------------------------------

# Row i belongs to query `first + i % queries` of its matrix, which with `causal` attends to keys up to its own index.
# A weight of 0 is multiplied like any other, so that nan and infinity propagate.

_WIDTH = 64  # keys processed together; a shorter rest is processed one by one, which is slower than a few wasted ones


def _exponentials(name: str, masked: bool) -> JitLoop:
    """Return the loop that computes exp(score - top) for each row, with its maximal score `top` and the total; 0 for
    keys that are masked, or that `mask` does not allow. A blank row has only -inf: its top is 0 and its total 1."""

    def exponentials(
        mask: Array, first: int, queries: int, causal: bool, may_be_blank: bool, tops: Array, totals: Array, e: Array
    ) -> None:
        real, keys = e.dtype.type, e.shape[1]
        for i in range(e.shape[0]):
            allowed = min(first + i % queries + 1, keys) if causal else keys
            stop = keys if masked else min((allowed + _WIDTH - 1) // _WIDTH * _WIDTH, keys)
            if masked:
                for j in range(keys):
                    e[i, j] = e[i, j] if mask[i, j] else real(-math.inf)
            for j in range(allowed, stop):
                e[i, j] = real(-math.inf)
            top = peak(e, i, stop)
            if may_be_blank and top == real(-math.inf):  # or there is a nan, which the total then is
                top = real(0)
            total = real(0)
            for j in range(stop):
                x = exp(e[i, j] - top)
                e[i, j] = x
                total = add(total, x)
            for j in range(stop, keys):
                e[i, j] = real(0)
            tops[i] = top
            totals[i] = real(1) if may_be_blank and total == real(0) else total

    exponentials.__name__ = name
    return JitLoop(exponentials, 3)


exponentials = _exponentials("exponentials", False)
masked_exponentials = _exponentials("masked_exponentials", True)


def _weights(name: str, masked: bool) -> JitLoop:
    """Return the loop that recomputes the weights in p, and converts their cotangents in s to those of the scores."""

    def weights(
        mask: Array, tops: Array, totals: Array, first: int, queries: int, causal: bool, p: Array, s: Array
    ) -> None:
        real, keys = s.dtype.type, s.shape[1]
        for i in range(p.shape[0]):
            allowed = min(first + i % queries + 1, keys) if causal else keys
            top, share, mean = tops[i], real(1) / totals[i], real(0)
            for j in range(allowed):
                x = (exp(p[i, j] - top) if not masked or mask[i, j] else real(0)) * share
                p[i, j] = x
                mean = add(mean, x * s[i, j])
            for j in range(allowed, keys):
                x = real(0) * share
                p[i, j] = x
                mean = add(mean, x * s[i, j])
            for j in range(keys):
                s[i, j] = p[i, j] * (s[i, j] - mean)

    weights.__name__ = name
    return JitLoop(weights, 2)


weights = _weights("weights", False)
masked_weights = _weights("masked_weights", True)
