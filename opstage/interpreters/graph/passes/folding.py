"""Constant folding: values that do not depend on inputs are computed once, before the graph runs."""

from __future__ import annotations

from typing import Any, cast, final

import numpy as np

from ....ops.catalogue.layout import BROADCAST_TO
from ....ops.catalogue.logic import FULL, IOTA
from ....ops.closed import Body, Equation
from ....ops.errors import LocatedError
from ....ops.kinds import ONCE_PER_RUN
from ....ops.types import EXACT, Shape, TensorType, dtype_name
from ....options import Options
from ...control import CONTROL
from ...eager_cpu.interpreter import NumpyOps
from ...host import Array
from .rewrite import Rewrite
from .uniform import Uniforms, is_symbolic

LARGEST = 1 << 16
"""The size in bytes of the largest result that is kept in the graph."""


def fold_constants(body: Body, *, largest: int = LARGEST) -> Body:
    """Replace equations that only read constants by constants.

    A tensor with one repeated number becomes a `full` of any size, which makes the number visible in the equation.
    Other results are computed by NumPy's kernels and kept if they have at most `largest` bytes, except `iota` and
    broadcasts, which are smaller unfolded. Loops, random draws and external effects stay, and so do ops that raise, so
    that they raise when the graph runs.
    """
    rewrite = Rewrite(body)
    types = rewrite.types
    uniforms = Uniforms(body.constants)
    known = _KnownArrays(body, uniforms, types)
    for equation in body.equations:
        inputs = rewrite.inputs(equation)
        value = uniforms.see(equation, inputs, types)
        if value is not None and equation.primitive is not FULL:
            _fill(rewrite, uniforms, equation, value)
            continue
        results = known.results(equation, inputs, largest) if value is None else None
        if results is None:
            rewrite.keep(equation, inputs)
            continue
        if equation.primitive in _COMPACT:
            rewrite.keep(equation, inputs)
            known.arrays[equation.outputs[0]] = results[0]
            continue
        for slot, result in zip(equation.outputs, results):
            kept = np.array(result)
            kept.flags.writeable = False
            new = rewrite.constant(kept, types[slot])
            rewrite.replace((slot,), (new,))
            known.arrays[new] = kept
            uniforms.see_constant(rewrite.constants[-1])
    return rewrite.close()


_COMPACT = frozenset((IOTA, BROADCAST_TO))


@final
class _KnownArrays:
    """The arrays that are known before the graph runs."""

    __slots__ = ("arrays", "_uniforms", "_types", "_ops")

    def __init__(self, body: Body, uniforms: Uniforms, types: list[TensorType]):
        self.arrays: dict[int, Array] = {constant.slot: constant.value for constant in body.constants}
        self._uniforms = uniforms
        self._types = types
        self._ops: NumpyOps | None = None

    def get(self, slot: int) -> Array | None:
        """Return the array of a slot, a `full` one as a broadcast view; None if it is unknown."""
        array = self.arrays.get(slot)
        if array is None:
            number, shape = self._uniforms.get(slot), self._types[slot].shape
            if number is not None and _static(shape):
                array = self.arrays[slot] = np.broadcast_to(
                    np.asarray(number, self._types[slot].dtype), cast(Any, shape)
                )
        return array

    def results(self, equation: Equation, inputs: tuple[int, ...], largest: int) -> tuple[Array, ...] | None:
        """Return the results of an equation on known arrays; None if they are unknown or too large."""
        operands = []
        if not ONCE_PER_RUN.isdisjoint(equation.primitive.effects):
            return None
        for slot in inputs:
            array = self.get(slot)
            if array is None:
                return None
            operands.append(array)
        if equation.primitive in CONTROL or is_symbolic(equation.static):
            return None
        limit = largest if equation.primitive not in _COMPACT else None
        if not all(
            _static(type_.shape) and (limit is None or int(type_.nbytes) <= limit)
            for type_ in [self._types[slot] for slot in equation.outputs]
        ):
            return None
        if self._ops is None:
            exact = any(type_.dtype == EXACT for type_ in self._types)
            self._ops = NumpyOps(Options(dtype="exact" if exact else "float64", fast_kernels=False))
        try:
            with np.errstate(all="ignore"):
                return self._ops.bind(equation.primitive, tuple(operands), equation.static)
        except (LocatedError, ArithmeticError, ValueError):
            return None


def _static(shape: Shape) -> bool:
    return all(isinstance(size, int) for size in shape)


def _fill(rewrite: Rewrite, uniforms: Uniforms, equation: Equation, value: object) -> None:
    """Replace an equation whose result is `value` everywhere by a `full`."""
    type_ = rewrite.types[equation.outputs[0]]
    number = value.item() if isinstance(value, np.generic) else value
    static = {"shape": type_.shape, "value": number, "dtype": dtype_name(type_.dtype)}
    (filled,) = rewrite.write(FULL, (), static, (type_,), equation)
    uniforms.see(rewrite.equations[-1], (), rewrite.types)
    rewrite.replace(equation.outputs, (filled,))
