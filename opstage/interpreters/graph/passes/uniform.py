"""Uniform values: which tensors hold one number everywhere, and which number that is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, TypeAlias, final

import numpy as np

from ....ops.catalogue.indexing import GATHER_ROW, GATHER_SCALAR
from ....ops.catalogue.layout import PAD
from ....ops.catalogue.logic import FULL, SELECT
from ....ops.catalogue.reduction import REDUCE_MAX, REDUCE_SUM, SUM
from ....ops.closed import BodyConstant, Equation
from ....ops.dims import DimExpr, DimFloat, prod
from ....ops.kinds import Kind
from ....ops.primitive import Primitive, Static
from ....ops.types import TensorType, as_dtype
from ....options import Options
from ...eager_cpu.interpreter import NumpyOps
from ...host import number

_LARGEST_CONSTANT = 1 << 16
"""Elements of a constant that is looked through."""


@final
class Uniforms:
    """Uniform tensors, found as equations go by in order: the one number that a tensor holds everywhere.

    A number is a NumPy scalar of the tensor's dtype, and so has its bits; a Fraction where the dtype is exact.
    """

    __slots__ = ("_values",)

    def __init__(self, constants: Iterable[BodyConstant] = ()):
        self._values: dict[int, Any] = {}
        for constant in constants:
            self.see_constant(constant)

    def get(self, slot: int) -> Any:
        """The number; None for a tensor that does not hold one alone, or is not known to."""
        return self._values.get(slot)

    def see_constant(self, constant: BodyConstant) -> None:
        """Note a constant."""
        value = constant.value
        if 0 < value.size <= _LARGEST_CONSTANT:
            first = value.flat[0]
            if value.size == 1 or value.tobytes() == first.tobytes() * value.size:
                self._values[constant.slot] = first

    def see(self, equation: Equation, inputs: Sequence[int], types: Sequence[TensorType]) -> Any:
        """Note an equation that reads `inputs`, which were noted before it; the number of its only result, or None."""
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
    """Whether two numbers are the same, 0.0 and -0.0 distinguished; nan is itself."""
    if isinstance(x, np.generic) and isinstance(y, np.generic):
        return x.dtype == y.dtype and x.tobytes() == y.tobytes()
    return type(x) is type(y) and bool(x == y)


_SYMBOLIC = (DimExpr, DimFloat)


def is_symbolic(static: Static) -> bool:
    """Whether a static parameter depends on sizes that are known only when the graph runs."""
    return any(map(_depends_on_sizes, static.values()))


def _depends_on_sizes(value: Any) -> bool:
    return any(map(_depends_on_sizes, value)) if type(value) is tuple else isinstance(value, _SYMBOLIC)


_EXACT_INTEGERS = {4: 2**24, 8: 2**53}
"""By the bytes of a float: up to here it holds every integer."""

_Rule: TypeAlias = Callable[[list[Any], Equation, list[TensorType]], Any]
"""(the numbers of the operands, the equation, the types of the operands) -> the number of the result.

Every number is known, but for those of a `select`.
"""


@cache
def _ops() -> NumpyOps:
    """The interpreter that computes with numbers: the bits of one element are those that it would give to all."""
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
        return None  # another package's op, of which NumPy's interpreter knows nothing
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
    """n · v where that is exact in whatever order the terms are added: v an integer, and every partial sum one."""
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
