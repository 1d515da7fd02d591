"""Counts in kernels: division and loops in 32 bits, where numba would use 64.

A GPU has no instruction for integer division. Division by a number known only at run time takes about 20 instructions
in 32 bits, several times as many in 64, and more to round down instead of towards 0. Numba divides int32 by int32 in 64
bits, rounding down, and uses such a division in every thread to count the iterations of a `range` with a variable step.
Elements are counted in 32 bits (LARGEST in buffer.py) and counts are nonnegative, so kernels use the functions here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .language import SIMULATED, cuda, device_function


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

__all__ = ["quotient", "remainder", "steps", "unrolled_steps"]
