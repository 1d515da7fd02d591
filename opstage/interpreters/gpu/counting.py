"""Counts in kernels: divisions and loops in 32 bits, where numba would take 64.

A GPU has no instruction that divides integers. By a number known only when a kernel runs, it takes some 20 instructions
in 32 bits, several times as many in 64, and more where the quotient is rounded down, not towards 0. Numba divides int32
by int32 in 64 bits, rounding down, and every thread finds by such a division how often a `range` with such a step
repeats. Elements are counted in 32 bits (LARGEST in buffer.py) and no count is negative, so kernels divide and step by
what is here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .language import SIMULATED, cuda, device_function


@device_function
def quotient(x: Any, y: Any) -> Any:
    """x // y, of numbers from 0 to 2^32 - 1."""
    return np.int64(np.uint32(x) // np.uint32(y))


@device_function
def remainder(x: Any, y: Any) -> Any:
    """x % y, of numbers from 0 to 2^32 - 1."""
    return np.int64(np.uint32(x) % np.uint32(y))


def _stepping(counted: bool) -> Any:
    """`range(start, stop, step)` as an iterator of compiled code, in 32 bits: it compares with the stop, or, `counted`,
    divides once for the number of steps. Then the compiler knows that number, and unrolls the loop."""
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
"""range(start, stop, step), of numbers from 0 to 2^31 - 1: of loops that write, or do much."""
unrolled_steps: Any = range if SIMULATED else _stepping(counted=True)
"""The same, several at a time: of short loops that only read, which then wait for several elements at once."""

__all__ = ["quotient", "remainder", "steps", "unrolled_steps"]
