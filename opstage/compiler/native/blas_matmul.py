"""Matrix products, divided among the workers: C[i, j] = op(A[i, j]) · op(B[i, j]) for i, j in a stack of matrices.

Workers compute rows of C, or columns if it has more of those; the tasks of a step are all parts of all matrices of the
stack.

Sizes alone decide what the BLAS is asked for, or else bits would depend on the number of workers: OpenBLAS has a method
of its own for small products, and other loops at the edges of a matrix. See `cut_product`.
"""

from __future__ import annotations

import inspect
from functools import cache
from struct import Struct
from typing import Any, NamedTuple, TypeVar, final

import numpy as np

from ...ops.host_arrays import Array, address_of, find_owner
from .blas import find_blas
from .compiler import Kernel, compile_kernel
from .thread_pool import KernelCall, KernelSequence, workers

# Steps ----------------------------------------------------------------------------------------------------------------

WORDS = 18

W = TypeVar("W")


class ProductCut(NamedTuple):
    """The parts of a product along its longer side. Their borders are multiples of `unit`, and adjacent ones may be one
    call of the BLAS; a `unit` of 0 means that each is a call of its own."""

    parts: int
    unit: int


_LITTLE = 1 << 16
"""Multiplications of a part; starting the workers takes as long as fewer."""

_LARGE = 1 << 20
"""Multiplications; OpenBLAS computes more than 100³ by the method for large products on every processor."""

_UNITS = {"float32": 16, "float64": 192}
"""Rows of C: if a large product is cut after a multiple of them, its elements keep their bits (a test tries it)."""

_CORES = ("SkylakeX", "Cooperlake", "SapphireRapids")
"""OpenBLAS's kernels of which that holds. Others, Haswell's and Zen's among them, compute a row by another loop where
it stands near the end of a call or of a block, and blocks depend on the number of rows."""

_MOST_PARTS, _OWN_CALLS, _ROWS_OF_A_CALL, _MANY = 64, 4, 128, 8
"""Parts of a product at most; parts of a smaller one that are calls of their own; rows of such a call in a larger one,
with which packing the other operand again costs a twentieth; matrices of a stack, which then are not cut."""


def cut_product(dtype: str, m: int, n: int, k: int, batch: int = 1) -> ProductCut:
    """Return how each product (m, k)·(k, n) of a stack of `batch` is cut.

    A large one has many parts, which workers do together: so on one thread it is one call, which packs its operands
    once. Parts are calls of their own in a smaller product, where another method might be taken for the whole, and with
    kernels whose bits depend on where a product is cut.
    """
    short, long = sorted((m, n))
    multiplications = m * n * k
    if batch >= _MANY or multiplications < 2 * _LITTLE:
        return ProductCut(1, 0)
    unit = _UNITS[dtype]
    least = _LARGE // (short * k) + 1 + unit  # rows: a border is moved by less than a unit
    if short >= 4 and long >= 2 * least:
        blas = find_blas()
        if blas is None or blas.core not in _CORES:
            return ProductCut(_power_of_two(max(2, min(_MOST_PARTS, long // _ROWS_OF_A_CALL))), 0)
        return ProductCut(_power_of_two(min(_MOST_PARTS, long // least)), unit)
    packs = short >= 4 and multiplications > 4 * _LARGE
    return ProductCut(_power_of_two(min(2 if packs else _OWN_CALLS, long, multiplications // _LITTLE)), 0)


def _power_of_two(number: int) -> int:
    """Return the greatest that is no more: so 2 and 4 workers have equal shares."""
    return 1 << (number.bit_length() - 1)


@cache
def gemm_kernel(dtype: str) -> Kernel | None:
    """Return the kernel for float32 or float64; None without a BLAS that can be called."""
    blas = find_blas()
    if blas is None:
        return None
    content = f"{inspect.getsource(_function)}{dtype}{blas.wide}"
    return compile_kernel(f"product_{dtype}", content, lambda: _function(dtype, blas.wide))


def gemm_words(
    dtype: str,
    at: tuple[W, W, W],
    sizes: tuple[int, int, int],
    transposed: tuple[bool, bool],
    leading: tuple[int, int],
    cut: ProductCut,
    *,
    inner: int = 1,
    steps: tuple[int, int, int, int] = (0, 0, 0, 0),
) -> tuple[W | int, ...]:
    """Return the kernel's arguments.

    at          the addresses of A, B and C; C (m, n) is packed, and so is the stack of them
    sizes       m, n and k
    transposed  whether A and B are stored transposed; `leading` are their leading dimensions, in elements
    cut         the parts of a matrix
    inner       the size of the inner axis of the stack
    steps       bytes from one matrix to the next, along the outer and the inner axis of A, then of B
    """
    blas = find_blas()
    assert blas is not None
    gemm = blas.sgemm if dtype == "float32" else blas.dgemm
    return (gemm, *at, *sizes, *map(int, transposed), *leading, inner, *steps, *cut)


def _function(dtype: str, wide: bool) -> Any:
    from .intrinsics import gemm_by_address, int64s

    gemm, count = gemm_by_address(dtype, wide), WORDS
    size = 4 if dtype == "float32" else 8
    number = getattr(np, dtype)

    def kernel(lo, hi, worker, arguments):  # type: ignore[no-untyped-def]
        (
            f, a, b, c, m, n, k, ta, tb, lda, ldb, inner, a_outer, a_inner, b_outer, b_inner, parts, unit
        ) = int64s(arguments, count)  # fmt: skip
        task = lo
        while task < hi:
            matrix, first = task // parts, task % parts
            last = min(parts, first + hi - task) if unit != 0 else first + 1
            i, j = matrix // inner, matrix % inner
            at, bt, ct = a + i * a_outer + j * a_inner, b + i * b_outer + j * b_inner, c + matrix * m * n * size
            long = max(m, n)
            start, stop = long * first // parts, long * last // parts
            if unit != 0:
                start = start // unit * unit
                stop = stop // unit * unit if last < parts else stop
            if m >= n:
                at += start * (1 if ta else lda) * size
                ct += start * n * size
                rows, columns = stop - start, n
            else:
                bt += start * (ldb if tb else 1) * size
                ct += start * size
                rows, columns = m, stop - start
            if stop > start:
                gemm(f, ta, tb, rows, columns, k, number(1), at, lda, bt, ldb, number(0), ct, n)
            task += last - first

    return kernel


# Products of arrays ---------------------------------------------------------------------------------------------------

LEAST = 1 << 21  # multiplications; below, the overhead exceeds the gain of a second thread

_MOST_IDLE = 8  # idle calls kept for reuse, one per concurrent Python thread


def multiply(x: Array, y: Array) -> Array:
    """Return x·y for matrices of one float dtype: divided among the workers if large enough, else by NumPy."""
    if x.shape[0] * y.size >= LEAST:
        product = _product(x.dtype.char)
        if product is not None:
            left, right = _stored(x), _stored(y)
            if left is not None and right is not None:
                return product(x, y, left, right)
    return np.matmul(x, y)  # type: ignore[no-any-return]


def _stored(x: Array) -> tuple[bool, int] | None:
    """Return whether a matrix is stored transposed, and its leading dimension; None if it is not packed."""
    (rows, columns), size = x.shape, x.itemsize
    if x.strides == (columns * size, size):
        return False, columns
    return (True, rows) if x.strides == (size, rows * size) else None


@cache
def _product(character: str) -> _Product | None:
    dtype = {"f": "float32", "d": "float64"}.get(character, "")
    return _Product(dtype) if dtype and find_blas() is not None else None


@final
class _Product:
    """Products of one dtype; argument words are reused by later calls."""

    __slots__ = ("_dtype", "_idle")

    def __init__(self, dtype: str):
        self._dtype = dtype
        self._idle: dict[int, list[_Call]] = {}  # by their number of parts

    def __call__(self, x: Array, y: Array, left: tuple[bool, int], right: tuple[bool, int]) -> Array:
        sizes = x.shape[0], y.shape[1], x.shape[1]
        cut = cut_product(self._dtype, *sizes)
        if cut.unit and workers() == 1 and find_owner(x) is not find_owner(y):  # one call, as it is for NumPy
            return np.matmul(x, y)  # type: ignore[no-any-return]
        out = np.empty((x.shape[0], y.shape[1]), x.dtype)
        at = address_of(x), address_of(y), address_of(out)
        idle = self._idle.setdefault(cut.parts, [])
        try:
            call = idle.pop()
        except IndexError:  # the first one, or other threads are using all
            call = _Call(self._dtype, cut.parts)
        call.write(*gemm_words(self._dtype, at, sizes, (left[0], right[0]), (left[1], right[1]), cut))
        call.action()
        if len(idle) < _MOST_IDLE:
            idle.append(call)
        return out


@final
class _Call:
    """A schedule of one product: `write` sets its arguments, `action` runs it."""

    __slots__ = ("write", "action", "_kept")

    def __init__(self, dtype: str, parts: int):
        kernel, words = gemm_kernel(dtype), np.zeros(WORDS, np.int64)
        assert kernel is not None
        schedule = KernelSequence([KernelCall(kernel, parts, words.view(np.uint64))])
        self.write: Any = lambda *values: _FORMAT.pack_into(memoryview(words), 0, *values)  # type: ignore[arg-type]
        self.action = schedule.action
        self._kept = schedule, words


_FORMAT = Struct(f"{WORDS}q")
