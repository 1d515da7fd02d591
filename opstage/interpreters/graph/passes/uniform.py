"""Uniform values: tensors that hold one number everywhere, and that number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, TypeAlias, final

import numpy as np

from ....ops.catalogue.indexing import GATHER_ROW, GATHER_SCALAR
from ....ops.catalogue.logic import FULL, SELECT
from ....ops.catalogue.reduction import REDUCE_MAX, REDUCE_SUM, SUM
from ....ops.catalogue.slicing import PAD
from ....ops.closed import BodyConstant, Equation
from ....ops.dims import DimExpr, DimFloat, prod
from ....ops.kinds import Kind
from ....ops.primitive import Primitive, Static
from ....ops.types import TensorType, as_dtype
from ....options import Options
from ...eager_cpu.interpreter import NumpyOps
from ...host import number

_LARGEST_CONSTANT = 1 << 16
"""The largest constant that is searched, in elements."""


@final
class Uniforms:
    """Uniform tensors and their numbers, found by passing over equations in order.

    A number is a NumPy scalar of the tensor's dtype, with its bits; a Fraction if the dtype is exact.
    """

    __slots__ = ("_values",)

    def __init__(self, constants: Iterable[BodyConstant] = ()):
        self._values: dict[int, Any] = {}
        for constant in constants:
            self.see_constant(constant)

    def get(self, slot: int) -> Any:
        """Return the number of a uniform tensor; None if the tensor is not known to be uniform."""
        return self._values.get(slot)

    def see_constant(self, constant: BodyConstant) -> None:
        """Note a constant."""
        value = constant.value
        if 0 < value.size <= _LARGEST_CONSTANT:
            first = value.flat[0]
            if value.size == 1 or value.tobytes() == first.tobytes() * value.size:
                self._values[constant.slot] = first

    def see(self, equation: Equation, inputs: Sequence[int], types: Sequence[TensorType]) -> Any:
        """Note an equation, after those that compute its `inputs`; return the number of its only result, or None."""
        primitive = equation.primitive
        rule = _RULES.get(primitive) or _by_kind(equation)
        if rule is None:
            return None
        known = []
        for slot in inputs:
            number = self._values.get(slot)
            if number is None and primitive is not SELECT:
                return None
            known.append(number)
        value = rule(known, equation, [types[slot] for slot in inputs])
        if value is not None:
            self._values[equation.outputs[0]] = value
        return value


def same_bits(x: Any, y: Any) -> bool:
    """Return whether two numbers are the same; 0.0 and -0.0 differ, and a nan equals itself."""
    if isinstance(x, np.generic) and isinstance(y, np.generic):
        return x.dtype == y.dtype and x.tobytes() == y.tobytes()
    return type(x) is type(y) and bool(x == y)


_SYMBOLIC = (DimExpr, DimFloat)


def is_symbolic(static: Static) -> bool:
    """Return whether a static parameter depends on sizes that are only known when the graph runs."""
    return any(map(_depends_on_sizes, static.values()))


def _depends_on_sizes(value: Any) -> bool:
    return any(map(_depends_on_sizes, value)) if type(value) is tuple else isinstance(value, _SYMBOLIC)


_EXACT_INTEGERS = {4: 2**24, 8: 2**53}
"""The largest n, by float size in bytes, such that floats represent all integers up to n."""

_Rule: TypeAlias = Callable[[list[Any], Equation, list[TensorType]], Any]
"""(numbers of the operands, equation, types of the operands) -> the number of the result.

All numbers are known, except for a `select`.
"""


@cache
def _ops() -> NumpyOps:
    """The interpreter that computes with numbers: one element gets the same bits as all elements of a tensor."""
    return NumpyOps(Options(dtype="float64", fast_kernels=False))


def _filled(known: list[Any], equation: Equation, types: list[TensorType]) -> Any:
    value, dtype = equation.static["value"], as_dtype(equation.static["dtype"])
    if isinstance(value, _SYMBOLIC):
        return None
    with np.errstate(all="ignore"):
        return np.full((), number(value, dtype), dtype=dtype)[()]


def _computed(known: list[Any], equation: Equation, types: list[TensorType]) -> Any:
    primitive, ops = equation.primitive, _ops()
    if not all(isinstance(value, np.generic) for value in known) or is_symbolic(equation.static):
        return None
    if primitive.core and not ops.has_kernel(primitive):
        return None  # an op of another package, unknown to NumPy's interpreter
    with np.errstate(all="ignore"):
        return ops.bind(primitive, tuple([np.asarray(value) for value in known]), equation.static)[0][()]


def _moved(known: list[Any], equation: Equation, types: list[TensorType]) -> Any:
    first = known[0]
    return first if all(same_bits(first, value) for value in known[1:]) else None


def _selected(known: list[Any], equation: Equation, types: list[TensorType]) -> Any:
    mask, x, y = known
    if mask is not None:
        return x if mask else y
    return x if x is not None and y is not None and same_bits(x, y) else None


def _padded(known: list[Any], equation: Equation, types: list[TensorType]) -> Any:
    (value,) = known
    if isinstance(equation.static["value"], _SYMBOLIC):
        return None
    dtype = types[0].dtype
    filling = np.full((), number(equation.static["value"], dtype), dtype=dtype)[()]
    return value if same_bits(value, filling) else None


def _gathered(known: list[Any], equation: Equation, types: list[TensorType]) -> Any:
    return known[0] if equation.static["mode"] == "raise" else None


def _summed(known: list[Any], equation: Equation, types: list[TensorType]) -> Any:
    """Return n · v if that is exact in any order of summation: v and all partial sums are representable integers."""
    (value,) = known
    if not isinstance(value, np.generic) or not np.isfinite(value) or value != np.trunc(value):
        return None
    shape = types[0].shape
    count = prod(shape[axis] for axis in equation.static.get("axes", range(len(shape))))
    floats = value.dtype.kind == "f"
    largest = _EXACT_INTEGERS[value.dtype.itemsize] if floats else 2**62
    if not isinstance(count, int) or abs(int(value)) * count > largest or (floats and value == 0 and np.signbit(value)):
        return None
    return (value.dtype if floats else np.dtype(np.int64)).type(int(value) * count)


def _by_kind(equation: Equation) -> _Rule | None:
    primitive = equation.primitive
    if primitive.effects or not equation.inputs or len(equation.outputs) != 1:
        return None
    return _BY_KIND.get(primitive.kind)


_BY_KIND: dict[Kind, _Rule] = {Kind.POINTWISE: _computed, Kind.LAYOUT: _moved}
_RULES: dict[Primitive, _Rule] = {
    REDUCE_MAX: _moved,
    FULL: _filled,
    SELECT: _selected,
    PAD: _padded,
    REDUCE_SUM: _summed,
    SUM: _summed,
    GATHER_ROW: _gathered,
    GATHER_SCALAR: _gathered,
}
