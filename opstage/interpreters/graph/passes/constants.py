"""Constant folding: values that do not depend on inputs are computed before the graph runs; tensors of one number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, TypeAlias, cast, final

import numpy as np

from ....ops.body import Body, BodyConstant, Equation
from ....ops.dims import DimExpr, DimFloat, prod
from ....ops.errors import LocatedError
from ....ops.host_arrays import Array, number
from ....ops.indexing import GATHER_ROW, GATHER_SCALAR
from ....ops.layout import BROADCAST_TO
from ....ops.logic import FULL, IOTA, SELECT
from ....ops.primitive import ONCE_PER_RUN, Kind, Primitive, Static
from ....ops.reduction import REDUCE_MAX, REDUCE_SUM, SUM
from ....ops.slicing import PAD
from ....ops.types import EXACT, Shape, TensorType, as_dtype, dtype_name
from ....options import Options
from ....transforms.control_flow import CONTROL
from ...eager_cpu.interpreter import NumpyOps
from .rewrite import Rewrite

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


# Constant folding -----------------------------------------------------------------------------------------------------


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
