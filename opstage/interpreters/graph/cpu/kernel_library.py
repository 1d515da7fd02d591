"""Ops with hand-written loops: convolutions, pooling, gather, scatter-add, argmax, random draws.

Convolutions and pooling use eager_cpu's loops, which take addresses. Here the addresses are placeholder marks, replaced
by kernel arguments that are resolved when memory is planned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache

import numpy as np

from ....compiler.codegen.cpu.arguments import Address, ErrorFlag, LoopSource, LoweredLoop, Scratch, Word, view_address
from ....compiler.codegen.cpu.kernels import LOOPS
from ....compiler.codegen.lowering import Lowered
from ....compiler.native import KernelCall, access
from ....compiler.native.compiler import Kernel
from ....ops.body import Equation
from ....ops.convolution import CONV, CONV_KERNEL_GRAD, CONV_TRANSPOSE
from ....ops.indexing import GATHER_ROWS, SCATTER_ADD_ROWS
from ....ops.pooling import AVG_POOL, AVG_POOL_GRAD, MAX_POOL, MAX_POOL_GATHER, MAX_POOL_SCATTER
from ....ops.primitive import Primitive
from ....ops.random import RAND_UNIFORM
from ....ops.reduction import ARGMAX
from ....ops.splitmix import splitmix64
from ....ops.types import dtype_name
from ....transforms.control_flow import CONTROL
from ...eager_cpu.loops import pooling as pooling
from ...eager_cpu.loops.convolution_choice import Pass, is_supported
from ...eager_cpu.loops.convolution_steps import convolution_steps, plan_convolution
from ...eager_cpu.loops.geometry import conv_geometry

_MARK = 0xFFFF << 48
"""The leading bits of marks; no address, size or number begins with them."""


def library_loops(lowered: Lowered, e: Equation) -> list[tuple[LoweredLoop, bool]] | None:
    """Return the loops of an op, each with whether the workers divide it; None if there are no loops for it."""
    lower = LIBRARY.get(e.primitive)
    if lower is None or any(lowered.views[slot].size == 0 for slot in (*e.inputs, *e.outputs)):
        return None
    return lower(lowered, e)


class _Marks:
    """Placeholder marks for kernel arguments, and the loops of steps with the arguments substituted back."""

    def __init__(self) -> None:
        self._words: list[Word] = []

    def __call__(self, word: Word) -> int:
        self._words.append(word)
        return _MARK | len(self._words)

    def loops(self, steps: tuple[KernelCall, ...]) -> list[tuple[LoweredLoop, bool]]:
        return [
            (LoweredLoop(s.kernel, s.tasks, tuple([self._word(int(w)) for w in s.arguments]), ()), s.parallel)
            for s in steps
        ]

    def _word(self, value: int) -> Word:
        if value >> 48 == 0xFFFF and 0 < value - _MARK <= len(self._words):
            return self._words[value - _MARK - 1]
        assert not _MARK <= value < _MARK + (1 << 47), "a step calculates with an address, which is not known yet"
        return value if value < 1 << 63 else value - (1 << 64)


def _at(lowered: Lowered, slot: int) -> Address:
    return view_address(lowered, lowered.views[slot])


def _conv(lowered: Lowered, e: Equation) -> list[tuple[LoweredLoop, bool]] | None:
    """Lower conv, its adjoint or the gradient of its kernel."""
    which, static, out = Pass(e.primitive.name), e.static, e.outputs[0]
    if which is Pass.KERNEL_GRAD:
        (x, other), bias, kernel = e.inputs, [], static["kernel"]
        inside, outside = lowered.views[x].shape, lowered.views[other].shape
    else:
        other, *bias, x = e.inputs
        kernel = lowered.views[other].shape[2:]
        inside, outside = (lowered.views[slot].shape for slot in ((x, out) if which is Pass.FORWARD else (out, x)))
    if len(inside) < len(kernel) + 2:
        inside, outside = (1, *inside), (1, *outside)
    window = [static[name] for name in ("stride", "padding", "dilation", "groups")]
    geometry = conv_geometry(lowered.types[x].dtype, inside, kernel, outside, *window)
    if not is_supported(geometry):
        return None
    mark, plan = _Marks(), plan_convolution(which, geometry)
    at = mark(_at(lowered, x)), mark(_at(lowered, other)), mark(_at(lowered, bias[0])) if bias else 0
    own = Scratch("workspace", max(64, plan.workspace)), Scratch("partial", max(64, plan.partial), 1)
    return mark.loops(convolution_steps(which, geometry, *at, mark(Address(out, 0)), *map(mark, own)))


def _pool(lowered: Lowered, e: Equation) -> list[tuple[LoweredLoop, bool]] | None:
    primitive, static, kernel = e.primitive, e.static, e.static["kernel"]
    x, *index = e.inputs
    if primitive is MAX_POOL:
        index = list(e.outputs[1:])
    out, rank = e.outputs[0], len(kernel)
    dtype = dtype_name(lowered.types[x].dtype)
    if not pooling.supported(dtype, rank) or any(lowered.types[slot].dtype.itemsize != 8 for slot in index):
        return None
    before, after = lowered.views[x].shape, lowered.views[out].shape
    cells, counts = (after, before) if primitive in (MAX_POOL_SCATTER, AVG_POOL_GRAD) else (before, after)
    mark = _Marks()
    geometry = pooling.PoolGeometry(
        cells[-rank:], kernel, counts[-rank:], static["stride"], static["padding"],
        static.get("count_include_pad", True),
    )  # fmt: skip
    at = mark(_at(lowered, x)), mark(Address(out, 0)), mark(_at(lowered, index[0])) if index else 0, mark(ErrorFlag())
    step = pooling.pool_step(primitive, dtype, math.prod(before[:-rank]), *at, geometry)
    return mark.loops((step,))


# Rows ----------------------------------------------------------------------------------------------------------------


def _gather(lowered: Lowered, e: Equation) -> list[tuple[LoweredLoop, bool]] | None:
    (x, index), (out,) = e.inputs, e.outputs
    if lowered.types[x].dtype.kind == "b":
        return None
    shape, count = lowered.views[x].shape, lowered.views[index].size
    kernel = _rows_kernel("gather", dtype_name(lowered.types[x].dtype), dtype_name(lowered.types[index].dtype))
    words: tuple[Word, ...] = (
        _at(lowered, x), _at(lowered, index), Address(out, 0), shape[0], math.prod(shape[1:]),
        int(e.static["mode"] == "raise"), ErrorFlag(),
    )  # fmt: skip
    return [(LoweredLoop(kernel, count, words, ()), lowered.views[out].size > 1 << 13)]


def _scatter(lowered: Lowered, e: Equation) -> list[tuple[LoweredLoop, bool]] | None:
    (x, v, index), (out,) = e.inputs, e.outputs
    shape, count = lowered.views[x].shape, lowered.views[index].size
    kernel = _rows_kernel("scatter", dtype_name(lowered.types[x].dtype), dtype_name(lowered.types[index].dtype))
    columns = math.prod(shape[1:])
    words: tuple[Word, ...] = (
        _at(lowered, x), _at(lowered, v), _at(lowered, index), Address(out, 0), shape[0], columns, count,
        int(e.static["mode"] == "raise"), ErrorFlag(),
    )  # fmt: skip
    return [(LoweredLoop(kernel, columns, words, ()), lowered.views[v].size > 1 << 13 and columns > 32)]


@cache
def _rows_kernel(name: str, dtype: str, index_dtype: str) -> Kernel:
    accesses = (
        ("load", "load", dtype, access.READ),
        ("load_out", "load", dtype, access.written(0)),
        ("load_index", "load", index_dtype, access.READ),
        ("store", "store", dtype, access.written(0)),
        ("store_index", "store", "int64", access.written(0)),
        ("flag", "store", "int64", access.written(1)),
    )
    preamble = f"zero = {dtype}(0)\nsize = {np.dtype(dtype).itemsize}"
    return LoopSource(f"{name}_rows", preamble, _TEXTS[name], accesses).compiled()


_TEXTS = {
    # The first of equal maxima, and nan counts as larger than numbers, as in NumPy.
    "first_maximum": """def kernel(lo, hi, worker, arguments):
    x, out, n, inner = int64s(arguments, 4)
    for task in range(lo, hi):
        first = x + (task // inner * n * inner + task % inner) * size
        where = 0
        best = load(first, 0)
        for j in range(1, n):
            value = load(first, j * inner)
            if value > best or (value != value and best == best):
                best = value
                where = j
        store_index(out, task, where)
""",
    "gather": """def kernel(lo, hi, worker, arguments):
    x, indices, out, rows, n, checked, failed = int64s(arguments, 7)
    for task in range(lo, hi):
        row = load_index(indices, task)
        to = out + task * n * size
        if 0 <= row < rows:
            source = x + row * n * size
            for j in range(n):
                store(to, j, load(source, j))
        else:
            if checked:
                flag(failed, 0, 1)
            for j in range(n):
                store(to, j, zero)
""",
    # Workers divide the columns, so each adds its columns in the order of the indices.
    "scatter": """def kernel(lo, hi, worker, arguments):
    x, updates, indices, out, rows, n, count, checked, failed = int64s(arguments, 9)
    for row in range(rows):
        for j in range(lo, hi):
            store(out + row * n * size, j, load(x + row * n * size, j))
    for k in range(count):
        row = load_index(indices, k)
        if 0 <= row < rows:
            to = out + row * n * size
            source = updates + k * n * size
            for j in range(lo, hi):
                store(to, j, load_out(to, j) + load(source, j))
        elif checked:
            flag(failed, 0, 1)
""",
}


def _argmax(lowered: Lowered, e: Equation) -> list[tuple[LoweredLoop, bool]] | None:
    (x,), (out,) = e.inputs, e.outputs
    if lowered.types[x].dtype.kind not in "fi" or lowered.types[out].dtype.itemsize != 8:
        return None
    shape, axis = lowered.views[x].shape, e.static["axis"]
    kernel = _rows_kernel("first_maximum", dtype_name(lowered.types[x].dtype), "int64")
    inner, count = math.prod(shape[axis + 1 :]), lowered.views[out].size
    words: tuple[Word, ...] = (_at(lowered, x), Address(out, 0), shape[axis], inner)
    return [(LoweredLoop(kernel, count, words, ()), lowered.views[x].size > 1 << 13)]


# Draws ---------------------------------------------------------------------------------------------------------------


def _draw(lowered: Lowered, e: Equation) -> list[tuple[LoweredLoop, bool]] | None:
    (out,), counters = e.outputs, e.inputs
    if any(lowered.types[slot].dtype.itemsize != 8 for slot in counters):
        return None
    dtype = dtype_name(lowered.types[out].dtype)
    kernel = _draw_kernel(_DRAW.format(words=3 + len(counters), counters=len(counters), real=dtype), dtype)
    site: int = e.static["site"]
    first, *rest = (_at(lowered, slot) for slot in counters)
    words: tuple[Word, ...] = (_signed(splitmix64(e.static["seed"])), Address(out, 0), _signed(site), first, *rest)
    count = lowered.views[out].size
    return [(LoweredLoop(kernel, count, words, ()), count > 1 << 13)]


def _signed(word: int) -> int:
    return word - (1 << 64) if word >= 1 << 63 else word


@cache
def _draw_kernel(text: str, dtype: str) -> Kernel:
    accesses = ("counter", "load", "int64", access.READ), ("store", "store", dtype, access.written(0))
    return LoopSource("rand_uniform", f"unit = {dtype}({2.0**-24!r})", text, accesses).compiled()


# splitmix64(splitmix64(seed) + step), then the site, then the iteration of each loop around: see `ops.random`
_DRAW = """def kernel(lo, hi, worker, arguments):
    w = int64s(arguments, {words})
    seed, out, site, step = w
    key = mix(uint64(seed) + uint64(counter(step, 0)))
    key = mix(key + uint64(site))
    for loop in range(1, {counters}):
        key = mix(key + uint64(counter(w[3 + loop], 0)))
    for j in range(lo, hi):
        store(out, j, {real}(int64(uniform_integer(key, uint64(j)))) * unit)
"""

_Lower = Callable[[Lowered, Equation], "list[tuple[LoweredLoop, bool]] | None"]
LIBRARY: Mapping[Primitive, _Lower] = {
    ARGMAX: _argmax,
    CONV: _conv,
    CONV_TRANSPOSE: _conv,
    CONV_KERNEL_GRAD: _conv,
    MAX_POOL: _pool,
    MAX_POOL_SCATTER: _pool,
    MAX_POOL_GATHER: _pool,
    AVG_POOL: _pool,
    AVG_POOL_GRAD: _pool,
    GATHER_ROWS: _gather,
    SCATTER_ADD_ROWS: _scatter,
    RAND_UNIFORM: _draw,
}


# The target -----------------------------------------------------------------------------------------------------------


# Ops that have neither a formula nor their own loops are computed by eager_cpu, which accepts any strides.
CPU = LOOPS._replace(by_hand=frozenset({*LIBRARY, *CONTROL}))
