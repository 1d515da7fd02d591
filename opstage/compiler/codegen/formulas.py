"""Elementwise ops as source for generated kernels, written once and compiled for every target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from ...ops.activation import GELU, GELU_GRAD, RELU, RELU_GRAD, SIGMOID_GRAD, SILU, SILU_GRAD, TANH_GRAD
from ...ops.dims import Dim
from ...ops.elementwise import (
    ABS,
    ADD,
    CLAMP,
    COS,
    DIV,
    ERF,
    EXP,
    INV,
    LOG,
    MAXIMUM,
    MINIMUM,
    MUL,
    NEG,
    POW,
    POWER,
    SAFE_LOG,
    SCALE,
    SIGMOID,
    SIN,
    SOFTPLUS,
    SQRT,
    SUB,
    TANH,
)
from ...ops.host_arrays import number
from ...ops.logic import CAST, DETACH, EQUAL, LESS, LESS_EQUAL, LOGICAL_AND, LOGICAL_NOT, SELECT
from ...ops.matmul import BMM, MATMUL
from ...ops.primitive import Effect, Kind, Primitive, Static, no_flops
from ...ops.rounding import (
    BITWISE_AND,
    BITWISE_OR,
    BITWISE_XOR,
    FLOOR,
    FLOOR_DIVIDE,
    LEFT_SHIFT,
    MOD,
    RIGHT_SHIFT,
    ROUND,
)
from ...ops.transcendental import ATAN, EXP2, LOG2, LOG10
from ...ops.types import DType, TensorType, dtype_name
from .. import scalar

# Ops that lowering creates --------------------------------------------------------------------------------------------


def _internal(name: str, kind: Kind, flops: Callable[..., Dim] | None = None, *effects: Effect) -> Primitive:
    def shape(*operands: TensorType, **static: Any) -> tuple[TensorType, ...]:
        raise AssertionError(f"{name} is made by the planner, which knows its type")

    return Primitive(
        name, operands=("*xs",), shape=shape, differentiable=False, kind=kind, flops=flops, effects=effects
    )


def _one_per_term(inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...], /, **static: Any) -> Dim:
    return inputs[0].size


CONTIGUOUS = _internal("contiguous", Kind.LAYOUT)
"""A copy in row-major order."""
ROW_SUM = _internal("row_sum", Kind.REDUCTION, _one_per_term)
"""Sums over the last `extent` elements (the trailing axes)."""
ROW_MAX = _internal("row_max", Kind.REDUCTION, _one_per_term)
"""Maxima over the last `extent` elements (the trailing axes); nan if there is one."""
COLUMN_SUM = _internal("column_sum", Kind.REDUCTION, _one_per_term)
"""Sums over the leading axes; `extent` elements remain."""
ASSEMBLE = _internal("assemble", Kind.LAYOUT)
"""Memory whose parts are written by other equations."""
INDEX_CHECK = _internal("index_check", Kind.POINTWISE, no_flops, Effect.RAISES)
"""x where 0 <= index < `size`; otherwise an index is out of range."""

REDUCTIONS = frozenset({ROW_SUM, ROW_MAX, COLUMN_SUM})
PRODUCTS = frozenset({MATMUL, BMM})
"""Ops computed by a BLAS, or by a matrix product kernel."""


# Formulas -------------------------------------------------------------------------------------------------------------

Emit = Callable[["Constants", TensorType, tuple[TensorType, ...], tuple[str, ...], Static], str]


class Constants:
    """Names for a kernel's numeric constants; `definitions` assigns their values."""

    __slots__ = ("_names",)

    def __init__(self) -> None:
        self._names: dict[tuple[str, str], str] = {}

    def __call__(self, value: Any, dtype: DType) -> str:
        """Return the name of `value`, rounded once to `dtype`."""
        if dtype.kind == "b":
            return "True" if value else "False"
        exact = number(value if not isinstance(value, np.generic) else value.item(), dtype)
        return self.named(np.dtype(dtype).type(exact))

    def named(self, value: Any) -> str:
        """Return the name of a NumPy number."""
        text = float(value).hex() if value.dtype.kind == "f" else str(int(value))
        return self._names.setdefault((dtype_name(value.dtype), text), f"k{len(self._names)}")

    @property
    def definitions(self) -> list[str]:
        """`k0 = float32(float.fromhex('0x1p+0'))` and so on."""
        return [
            f"{name} = {kind}({f'float.fromhex({text!r})' if kind.startswith('float') else text})"
            for (kind, text), name in self._names.items()
        ]


def _plain(template: str) -> Emit:
    """Return an emitter for a template: `{0}`, `{1}` are operands, `{zero}` and `{one}` constants of the first
    operand's dtype. Integers are truncated to their own width."""
    numbers = [(name, value) for name, value in (("zero", 0), ("one", 1)) if f"{{{name}}}" in template]

    def emit(
        constants: Constants, out: TensorType, ins: tuple[TensorType, ...], args: tuple[str, ...], static: Static
    ) -> str:
        named = {name: constants(value, ins[0].dtype) for name, value in numbers}
        text = f"({template.format(*args, **named)})"
        return f"{dtype_name(out.dtype)}{text}" if out.dtype.kind == "i" else text

    return emit


def _scale(constants: Constants, out: TensorType, ins: Any, args: tuple[str, ...], static: Static) -> str:
    text = f"({args[0]} * {constants(static['c'], out.dtype)})"
    return f"{dtype_name(out.dtype)}{text}" if out.dtype.kind == "i" else text


def _pow(constants: Constants, out: TensorType, ins: Any, args: tuple[str, ...], static: Static) -> str:
    (x,) = args
    exponent = Fraction(number(static["exponent"], out.dtype))
    simple = {
        Fraction(2): f"({x} * {x})",
        Fraction(3): f"(({x} * {x}) * {x})",
        Fraction(4): f"(({x} * {x}) * ({x} * {x}))",
        Fraction(1, 2): f"sqrt({x})",
    }
    if exponent in simple:
        return simple[exponent]
    if exponent == -1:
        return f"({constants(1, out.dtype)} / {x})"
    if exponent == Fraction(-1, 2):
        return f"({constants(1, out.dtype)} / sqrt({x}))"
    return f"power({x}, {constants(static['exponent'], out.dtype)})"


def _clamp(constants: Constants, out: TensorType, ins: Any, args: tuple[str, ...], static: Static) -> str:
    (x,) = args
    lo, hi = constants(static["lo"], out.dtype), constants(static["hi"], out.dtype)
    raised = f"({lo} if {x} < {lo} else {x})"
    return f"({hi} if {raised} > {hi} else {raised})"  # hi wins if lo > hi


def _safe_log(constants: Constants, out: TensorType, ins: Any, args: tuple[str, ...], static: Static) -> str:
    (x,) = args
    eps = constants(static["eps"], out.dtype)
    return f"log({eps} if {x} < {eps} else {x})"


def _cast(constants: Constants, out: TensorType, ins: Any, args: tuple[str, ...], static: Static) -> str:
    (x,), before, after = args, ins[0].dtype, out.dtype
    if before == after:
        return x
    if after.kind == "b":
        return f"({x} != {constants(0, before)})"
    if before.kind == "b":
        return f"({constants(1, after)} if {x} else {constants(0, after)})"
    return f"{dtype_name(after)}({x})"


def scalar_formulas(real: Any, exp: Any, erf: Any, fmod: Any, floor: Any) -> dict[str, Any]:
    """Return the Python functions that `_call` refers to, for a float type and a target's math functions.

    A target provides them as the name and the type: `sigmoid_float32`.
    """
    return {
        "sigmoid": scalar.sigmoid(real, exp),
        "sigmoid_grad": scalar.sigmoid_grad(real),
        "tanh_grad": scalar.tanh_grad(real),
        "silu": scalar.silu(real, exp),
        "silu_grad": scalar.silu_grad(real, exp),
        "gelu_tanh": scalar.gelu_tanh(real, exp),
        "gelu_tanh_grad": scalar.gelu_tanh_grad(real, exp),
        "gelu_erf": scalar.gelu_erf(real, erf),
        "mod": scalar.mod(real, fmod),
        "floor_divide": scalar.floor_divide(real, fmod, floor),
        "gelu_erf_grad": scalar.gelu_erf_grad(real, exp, erf),
    }


def _call(name: str) -> Emit:
    """Return an emitter for a formula of `opstage.compiler`; `*` stands for the form of the GELU."""

    def emit(constants: Constants, out: TensorType, ins: Any, args: tuple[str, ...], static: Static) -> str:
        function = name.replace("*", "tanh" if static.get("approximate") == "tanh" else "erf")
        return f"{function}_{dtype_name(out.dtype)}({', '.join(args)})"

    return emit


def _divided(name: str, sign: str) -> Emit:
    """Return an emitter for division: a formula for floats, Python's operator for integers, with 0 for a divisor of 0
    as in NumPy."""
    of_floats = _call(name)

    def emit(
        constants: Constants, out: TensorType, ins: tuple[TensorType, ...], args: tuple[str, ...], static: Static
    ) -> str:
        if out.dtype.kind == "f":
            return of_floats(constants, out, ins, args, static)
        x, y = args
        zero = constants(0, out.dtype)
        return f"{dtype_name(out.dtype)}({x} {sign} {y} if {y} != {zero} else {zero})"

    return emit


def _shift(sign: str) -> Emit:
    """Return an emitter for a shift. Negative or too large counts shift out all bits, as in NumPy; processors leave
    them undefined."""

    def emit(
        constants: Constants, out: TensorType, ins: tuple[TensorType, ...], args: tuple[str, ...], static: Static
    ) -> str:
        x, y = args
        kind, width = dtype_name(out.dtype), constants(8 * out.dtype.itemsize - 1, out.dtype)
        zero = constants(0, out.dtype)
        there = f"({y} >= {zero} and {y} <= {width})"
        if sign == "<<":
            return f"{kind}({kind}({x} << {y}) if {there} else {zero})"
        return f"{kind}({x} >> ({y} if {there} else {width}))"

    return emit


FORMULAS: Mapping[Primitive, Emit] = {
    ADD: _plain("{0} + {1}"),
    SUB: _plain("{0} - {1}"),
    MUL: _plain("{0} * {1}"),
    DIV: _plain("{0} / {1}"),
    # nan is returned from either side
    MAXIMUM: _plain("{0} if ({0} > {1} or {0} != {0}) else {1}"),
    MINIMUM: _plain("{0} if ({0} < {1} or {0} != {0}) else {1}"),
    NEG: _plain("-{0}"),
    ABS: _plain("abs({0})"),
    SCALE: _scale,
    SQRT: _plain("sqrt({0})"),
    EXP: _plain("exp({0})"),
    LOG: _plain("log({0})"),
    INV: _plain("{one} / {0}"),
    SIN: _plain("sin({0})"),
    COS: _plain("cos({0})"),
    TANH: _plain("tanh({0})"),
    EXP2: _plain("exp2({0})"),
    LOG2: _plain("log2({0})"),
    LOG10: _plain("log10({0})"),
    ATAN: _plain("atan({0})"),
    ERF: _plain("erf({0})"),
    POWER: _plain("power({0}, {1})"),
    FLOOR: _plain("floor({0})"),
    ROUND: _plain("rint({0})"),
    FLOOR_DIVIDE: _divided("floor_divide", "//"),
    MOD: _divided("mod", "%"),
    BITWISE_AND: _plain("{0} & {1}"),
    BITWISE_OR: _plain("{0} | {1}"),
    BITWISE_XOR: _plain("{0} ^ {1}"),
    LEFT_SHIFT: _shift("<<"),
    RIGHT_SHIFT: _shift(">>"),
    SIGMOID: _call("sigmoid"),
    SOFTPLUS: _plain("({0} if {0} > {zero} else {zero}) + log1p(exp(-abs({0})))"),
    POW: _pow,
    CLAMP: _clamp,
    SAFE_LOG: _safe_log,
    RELU: _plain("{zero} if {0} <= {zero} else {0}"),
    RELU_GRAD: _plain("{zero} if {0} <= {zero} else {1}"),
    TANH_GRAD: _call("tanh_grad"),
    SIGMOID_GRAD: _call("sigmoid_grad"),
    SILU: _call("silu"),
    SILU_GRAD: _call("silu_grad"),
    GELU: _call("gelu_*"),
    GELU_GRAD: _call("gelu_*_grad"),
    LESS: _plain("{0} < {1}"),
    LESS_EQUAL: _plain("{0} <= {1}"),
    EQUAL: _plain("{0} == {1}"),
    LOGICAL_AND: _plain("{0} and {1}"),
    LOGICAL_NOT: _plain("not {0}"),
    SELECT: lambda constants, out, ins, args, static: f"({args[1]} if {args[0]} else {args[2]})",
    CAST: _cast,
    DETACH: lambda constants, out, ins, args, static: args[0],
    CONTIGUOUS: lambda constants, out, ins, args, static: args[0],
}
"""Emitters by op. Targets define the functions that the source calls."""


def elementwise(primitive: Primitive, ins: tuple[TensorType, ...], out: TensorType) -> bool:
    """Return whether generated kernels have a formula for this op on these dtypes."""
    return primitive in FORMULAS and _KINDS.issuperset([type_.dtype.kind for type_ in (*ins, out)])


_KINDS = frozenset("fib")
"""The kinds of dtypes that formulas support: floats, integers and masks."""


def has_formula(primitive: Primitive, types: tuple[TensorType, ...], static: Static) -> bool:
    """Return whether an op is kept where kernels are generated from ops."""
    return bool(types) and elementwise(primitive, types, types[0])
