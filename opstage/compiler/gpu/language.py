"""The language of kernels: numba.cuda, or `scheduler.py` instead of it if kernels are simulated; counts, rows, tensors.

A GPU has no instruction for integer division. Division by a number known only at run time takes about 20 instructions
in 32 bits, several times as many in 64, and more to round down instead of towards 0. Numba divides int32 by int32 in 64
bits, rounding down, and uses such a division in every thread to count the iterations of a `range` with a variable step.
Elements are counted in 32 bits (LARGEST in buffer.py) and counts are nonnegative, so kernels use the functions here.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, TypeVar

import numba.cuda
import numpy as np

from ...ops.errors import UsageError
from .device import WARP

# The language ---------------------------------------------------------------------------------------------------------

# A kernel is a Python function of pointers and numbers that many threads run at once; pointers are indexed. Kernel
# files import `cuda` from here.

if find_spec("numba_cuda") is None:  # numba has an older cuda of its own
    raise UsageError("device 'cuda' needs the package numba-cuda; install it with: pip install 'opstage[cuda]'")

F = TypeVar("F", bound=Callable[..., Any])

SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM", "0") == "1"
"""Whether kernels run in Python, which numba decides at its first import."""

cuda: Any
if SIMULATED:
    if find_spec("greenlet") is None:
        raise UsageError("simulating CUDA needs the package greenlet; install it with: pip install greenlet")
    from . import scheduler

    cuda = scheduler.cuda
else:
    cuda = numba.cuda

ALIGNED = None if SIMULATED else 16
"""The alignment of shared memory in bytes for vector loads of four numbers; unused in simulation."""


def device_function(function: F) -> F:
    """Decorate a function that kernels call: inlined by the compiler, or called directly in simulation."""
    return function if SIMULATED else cuda.jit(device=True, inline="always")(function)


def _barrier() -> None:
    cuda.syncthreads()


def _shuffle(value: Any, distance: Any) -> Any:
    return cuda.shfl_xor_sync(0xFFFFFFFF, value, distance)


barrier: Any = device_function(_barrier)
"""Wait for all threads of the block."""
shuffle: Any = device_function(_shuffle)
"""Return the value of the thread of the same warp whose number differs exactly in the bits of `distance`."""


def _simulated_power(x: Any, y: Any) -> Any:
    """C's pow. Uses arrays, because NumPy computes a scalar 0.5 power as a square root, which differs at -inf."""
    return np.power(np.atleast_1d(x), np.atleast_1d(y))[0]


# Scalar functions, float32 to float32. Python's own raise errors where IEEE arithmetic has a result.
_library: Any = np if SIMULATED else math
exp: Any = _library.exp
log: Any = _library.log
sqrt: Any = _library.sqrt
sin: Any = _library.sin
cos: Any = _library.cos
tanh: Any = _library.tanh
log1p: Any = _library.log1p
fmod: Any = _library.fmod
floor: Any = np.floor if SIMULATED else numba.cuda.libdevice.floorf
rint: Any = np.rint if SIMULATED else numba.cuda.libdevice.rintf
log2: Any = _library.log2
log10: Any = _library.log10
exp2: Any = np.exp2 if SIMULATED else numba.cuda.libdevice.exp2f
atan: Any = np.arctan if SIMULATED else math.atan
power: Any = _simulated_power if SIMULATED else math.pow
erf: Any = math.erf


def _cos_pi(x: Any) -> Any:
    return np.cos(np.float32(math.pi) * x)


cos_pi: Any = _cos_pi if SIMULATED else numba.cuda.libdevice.cospif
"""cos(π·x), with exact argument reduction, where cos needs a table of the digits of 2/π for large arguments."""


def _times(x: Any, y: Any) -> Any:
    return x * y


times: Any = _times if SIMULATED else numba.cuda.libdevice.fmul_rn
"""x·y rounded to float32. In `x * y + z` the compiler joins both to one instruction that does not round the product,
which so differs from the same product elsewhere."""


# Many tensors ---------------------------------------------------------------------------------------------------------

FIRST = np.int32(0)


@device_function
def going(rows: Any, stop: Any) -> Any:
    """Return the rows to process: none after an index was out of range, so that nothing changes before the error."""
    return rows if stop[0] == 0 else FIRST


@device_function
def part_of(row: Any, part: Any, table: Any) -> Any:
    """Return the tensor of a row, with the range of its elements.

    The number of tensors is read for each row, so that the compiler cannot specialise the loop for one tensor with
    different rounding.
    """
    count = table[0]
    tensor, above = FIRST, count
    while above - tensor > 1:
        middle = (tensor + above) >> 1
        if table[1 + middle] <= row:
            tensor = middle
        else:
            above = middle
    begin = (row - table[1 + tensor]) * part
    end, size = begin + part, table[1 + count + tensor]
    return tensor, begin, end if end < size else size


# Rows -----------------------------------------------------------------------------------------------------------------

# `lanes` is 1, a warp's 32, or all threads of a block; `device.each_row` chooses. A kernel begins
#
# lane = remainder(cuda.threadIdx.x, lanes) for row in steps(quotient(cuda.grid(1), lanes), rows,
# quotient(cuda.gridsize(1), lanes)):
#
# and strides over a row from `lane` in steps of `lanes`. The order of every sum depends only on the row's length.

MOST_WARPS = 32
"""The warps of a block, and the length of the shared memory `parts`, with one number for each."""

ZERO, ONE = np.float32(0), np.float32(1)
LOWEST = np.float32(-np.inf)
HALF_WARP = np.int32(WARP // 2)


@device_function
def sum_lanes(value: Any, parts: Any, thread: Any, lanes: Any) -> Any:
    """Return Σ of the lanes' values, in each lane; `thread` is this thread's number in its block."""
    if lanes >= WARP:
        distance = HALF_WARP
        while distance > 0:
            value += shuffle(value, distance)
            distance = distance >> 1
    if lanes > WARP:
        if thread % WARP == 0:
            parts[thread // WARP] = value
        barrier()
        value = parts[0]
        for k in range(1, lanes // WARP):
            value += parts[k]
        barrier()
    return value


@device_function
def max_lanes(value: Any, parts: Any, thread: Any, lanes: Any) -> Any:
    """Return the greatest of the lanes' values, nan if there is one, in each lane."""
    if lanes >= WARP:
        distance = HALF_WARP
        while distance > 0:
            other = shuffle(value, distance)
            value = other if other > value or other != other else value
            distance = distance >> 1
    if lanes > WARP:
        if thread % WARP == 0:
            parts[thread // WARP] = value
        barrier()
        value = parts[0]
        for k in range(1, lanes // WARP):
            other = parts[k]
            value = other if other > value or other != other else value
        barrier()
    return value


@device_function
def argmax_lanes(value: Any, at: Any, parts: Any, places: Any, thread: Any, lanes: Any) -> Any:
    """Return the position of the greatest of the lanes' values, the first of equal ones, with nan above all numbers."""
    if lanes >= WARP:
        distance = HALF_WARP
        while distance > 0:
            other, place = shuffle(value, distance), shuffle(at, distance)
            if is_first_maximum(other, place, value, at):
                value, at = other, place
            distance = distance >> 1
    if lanes > WARP:
        if thread % WARP == 0:
            parts[thread // WARP] = value
            places[thread // WARP] = at
        barrier()
        value, at = parts[0], places[0]
        for k in range(1, lanes // WARP):
            other, place = parts[k], places[k]
            if is_first_maximum(other, place, value, at):
                value, at = other, place
        barrier()
    return at


@device_function
def is_first_maximum(x: Any, i: Any, y: Any, j: Any) -> Any:
    """Return whether x at i is the maximum, rather than y at j."""
    if x != x or y != y:
        return x != x and (y == y or i < j)
    return x > y or (x == y and i < j)


@device_function
def online(peak: Any, total: Any, x: Any) -> Any:
    """Update the maximum and Σ exp(xₖ - maximum) with x (Milakov & Gimelshein 2018): one exp per element.

    They start as -inf and 0; an x of -inf adds 1 until a greater x scales that to 0.
    """
    if x > peak:
        return x, total * exp(peak - x) + ONE
    if x == peak:
        return peak, total + ONE
    return peak, total + exp(x - peak)


# Counts in 32 bits ----------------------------------------------------------------------------------------------------


@device_function
def quotient(x: Any, y: Any) -> Any:
    """Return x // y, for numbers from 0 to 2^32 - 1."""
    return np.int64(np.uint32(x) // np.uint32(y))


@device_function
def remainder(x: Any, y: Any) -> Any:
    """Return x % y, for numbers from 0 to 2^32 - 1."""
    return np.int64(np.uint32(x) % np.uint32(y))


def _stepping(counted: bool) -> Any:
    """Return `range(start, stop, step)` as an iterator of compiled code, in 32 bits. It compares with the stop or, if
    `counted`, divides once to get the number of steps, which lets the compiler unroll the loop."""
    types, extending, imputils = cuda.types, cuda.extending, cuda.core.imputils
    structure, variable = cuda.cgutils.create_struct_proxy, cuda.cgutils.alloca_once_value
    number = types.uint32

    class Steps(types.SimpleIteratorType):  # type: ignore[misc, name-defined]
        pass

    kind = Steps("counted steps" if counted else "steps", types.int64)
    at, left = types.EphemeralPointer(number), types.EphemeralPointer(number)

    @extending.register_model(Steps)
    class StepsModel(extending.models.StructModel):  # type: ignore[misc, name-defined]
        def __init__(self, manager: Any, type: Any):
            super().__init__(manager, type, [("at", at), ("left", left), ("stop", number), ("step", number)])

    def begin(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        given = zip(args, signature.args)
        start, stop, step = (context.cast(builder, value, type, number) for value, type in given)
        one, none = context.get_constant(number, 1), context.get_constant(number, 0)
        state = structure(kind)(context, builder)
        state.at, state.stop, state.step = variable(builder, start), stop, step
        if counted:
            last = builder.sub(builder.sub(stop, start), one)
            count = builder.add(builder.udiv(last, step), one)
            state.left = variable(builder, builder.select(builder.icmp_unsigned("<", start, stop), count, none))
        return state._getvalue()

    @extending.lower_builtin("iternext", Steps)  # type: ignore[untyped-decorator]
    @imputils.iternext_impl(imputils.RefType.BORROWED)  # type: ignore[untyped-decorator]
    def following(context: Any, builder: Any, signature: Any, args: Any, result: Any) -> None:
        state = structure(kind)(context, builder, args[0])
        at = builder.load(state.at)
        builder.store(builder.add(at, state.step), state.at)
        if counted:
            left = builder.load(state.left)
            builder.store(builder.sub(left, context.get_constant(number, 1)), state.left)
            result.set_valid(builder.icmp_unsigned("!=", left, context.get_constant(number, 0)))
        else:
            result.set_valid(builder.icmp_unsigned("<", at, state.stop))
        result.yield_(builder.zext(at, context.get_value_type(types.int64)))

    @extending.intrinsic  # type: ignore[untyped-decorator]
    def steps(typing: Any, start: Any, stop: Any, step: Any) -> Any:
        return kind(start, stop, step), begin

    return steps


steps: Any = range if SIMULATED else _stepping(counted=False)
"""range(start, stop, step), for numbers from 0 to 2^31 - 1: for loops that write or have a large body."""
unrolled_steps: Any = range if SIMULATED else _stepping(counted=True)
"""The same, unrolled: for short loops that only read, so that several loads are in flight at once."""


__all__ = [
    "ALIGNED",
    "SIMULATED",
    "atan",
    "barrier",
    "cos",
    "cos_pi",
    "cuda",
    "device_function",
    "erf",
    "exp",
    "exp2",
    "floor",
    "fmod",
    "log",
    "log1p",
    "log2",
    "log10",
    "power",
    "quotient",
    "remainder",
    "rint",
    "shuffle",
    "sin",
    "sqrt",
    "steps",
    "tanh",
    "times",
    "unrolled_steps",
]
