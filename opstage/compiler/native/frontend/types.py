"""The types of values in kernels, the parsed source of functions, and arithmetic on numbers and packed arrays.

Integers are computed in 64 bits; an integer and a float are combined in float64, as in numba. So 32-bit results need a
cast: `int32(a + b)`, and constants of a float32 formula are float32."""

from __future__ import annotations

import ast
import builtins
import linecache
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
from llvmlite import ir

from .. import access

# Types ----------------------------------------------------------------------------------------------------------------


@final
class ScalarKind:
    """A type. `type` is LLVM's; `family` is "int", "uint", "bool", "float", or "other", for intrinsics only."""

    __slots__ = ("name", "type", "family", "bits")

    def __init__(self, name: str, type_: Any, family: str = "other", bits: int = 0):
        self.name, self.type, self.family, self.bits = name, type_, family, bits

    def __repr__(self) -> str:
        return self.name

    @property
    def whole(self) -> bool:
        return self.family in ("int", "uint", "bool")


BOOL = ScalarKind("bool", ir.IntType(1), "bool", 1)
UINT8 = ScalarKind("uint8", ir.IntType(8), "uint", 8)
INT32 = ScalarKind("int32", ir.IntType(32), "int", 32)
INT64 = ScalarKind("int64", ir.IntType(64), "int", 64)
UINT64 = ScalarKind("uint64", ir.IntType(64), "uint", 64)
FLOAT32 = ScalarKind("float32", ir.FloatType(), "float", 32)
FLOAT64 = ScalarKind("float64", ir.DoubleType(), "float", 64)
VOID = ScalarKind("void", ir.VoidType())
WORDS = ScalarKind("words", ir.IntType(64).as_pointer())
"""64-bit signed integers in consecutive memory: `w[i]`, by address."""

OF_NUMPY = {getattr(np, kind.name): kind for kind in (UINT8, INT32, INT64, UINT64, FLOAT32, FLOAT64)} | {np.bool_: BOOL}


@final
class Value:
    """A run-time value of a kernel. Everything else in a kernel's text is known at compile time."""

    __slots__ = ("kind", "ir")

    def __init__(self, kind: ScalarKind, at: Any):
        self.kind, self.ir = kind, at

    def __repr__(self) -> str:
        return f"a number {self.kind}"

    @property
    def constant(self) -> Any:
        """The number, if it is constant; else None."""
        return self.ir.constant if isinstance(self.ir, ir.Constant) else None


@final
class Known:
    """The kind of an object known at compile time: a function, a type, a namespace."""

    __slots__ = ("object",)

    def __init__(self, known: Any):
        self.object = known

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Known) and other.object is self.object

    def __hash__(self) -> int:
        return id(self.object)


def constant(number: Any) -> Value | None:
    """Convert a number to a value: an int to int64, a float to float64, NumPy scalars to their type; None for the
    rest."""
    if isinstance(number, (bool, np.bool_)):
        return Value(BOOL, ir.Constant(BOOL.type, int(number)))
    if isinstance(number, np.generic):
        kind = OF_NUMPY.get(type(number))
        if kind is None:
            return None
        plain = number.item()
        if kind.family == "uint":
            plain = plain - (1 << kind.bits) if plain >> (kind.bits - 1) else plain
        return Value(kind, ir.Constant(kind.type, plain))
    if isinstance(number, int):
        return Value(INT64, ir.Constant(INT64.type, number))
    if isinstance(number, float):
        return Value(FLOAT64, ir.Constant(FLOAT64.type, number))
    return None


Kinds: TypeAlias = "ScalarKind | Known | tuple[Kinds, ...]"
"""The kind of a variable: of a value, of an object known at compile time, or of a tuple of these."""


# Intrinsics -----------------------------------------------------------------------------------------------------------


class Intrinsic(NamedTuple):
    """A function `build(builder, *operands)` that emits instructions with llvmlite's IRBuilder and returns the result
    or None."""

    name: str
    result: ScalarKind
    operands: tuple[ScalarKind, ...]
    build: Callable[..., Any]


def intrinsic(result: ScalarKind, *operands: ScalarKind) -> Callable[[Callable[..., Any]], Any]:
    """Decorate `build(builder, *operands)` to become an `Intrinsic`, a function that kernels can call."""
    return lambda build: Intrinsic(build.__name__, result, operands, build)


def declared(builder: Any, kind: Any, name: str) -> Any:
    """Declare an external function: LLVM's own, or the C library's."""
    module = builder.module
    return module.globals.get(name) or ir.Function(module, kind, name)


def allocated(builder: Any, kind: Any) -> Any:
    """Allocate memory on the stack once per call, and return its address."""
    with builder.goto_entry_block():
        return builder.alloca(kind)


# Source ---------------------------------------------------------------------------------------------------------------


class CannotCompile(Exception):
    """A kernel uses something that the front end does not support; the message has the place."""


class FunctionSource(NamedTuple):
    """A function: its parameters, its body, and the objects that its free names refer to.

    meaning    returns the object of a free name; AttributeError if there is none
    """

    name: str
    file: str
    parameters: tuple[str, ...]
    body: list[ast.stmt]
    meaning: Callable[[str], Any]

    def fail(self, node: ast.AST, reason: str) -> CannotCompile:
        return CannotCompile(f"{self.file}:{getattr(node, 'lineno', '?')}: in {self.name}: {reason}")


def source_of_text(text: str, space: Mapping[str, Any]) -> FunctionSource:
    """Return the only function in a text."""
    (function,) = ast.parse(text).body
    return _source(function, "<kernel>", lambda name: space[name] if name in space else getattr(builtins, name))


def source_of(function: Any) -> FunctionSource:
    """Return the source of a module-level function, or of a nested function or lambda."""
    code: CodeType = function.__code__
    cells = dict(zip(code.co_freevars, function.__closure__ or ()))
    names = function.__globals__

    def meaning(name: str) -> Any:
        if name in cells:
            return cells[name].cell_contents
        return names[name] if name in names else getattr(builtins, name)

    return _source(_node(code, function), code.co_filename, meaning)


def _source(node: Any, file: str, meaning: Callable[[str], Any]) -> FunctionSource:
    arguments = node.args
    if arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.defaults:
        raise CannotCompile(f"{file}:{node.lineno}: parameters other than plain ones are not supported")
    parameters = tuple([each.arg for each in (*arguments.posonlyargs, *arguments.args)])
    if isinstance(node, ast.Lambda):
        returned = ast.copy_location(ast.Return(node.body), node.body)
        return FunctionSource("lambda", file, parameters, [returned], meaning)
    return FunctionSource(node.name, file, parameters, node.body, meaning)


def _node(code: CodeType, function: Any) -> Any:
    parameters = code.co_varnames[: code.co_argcount]
    found = [
        node
        for node in _functions(code.co_filename, function.__globals__).get(code.co_firstlineno, ())
        if tuple([each.arg for each in (*node.args.posonlyargs, *node.args.args)]) == parameters
        and getattr(node, "name", "<lambda>") == code.co_name
    ]
    if len(found) != 1:
        raise CannotCompile(f"{code.co_filename}:{code.co_firstlineno}: {len(found)} functions named {code.co_name}")
    return found[0]


_parsed: dict[str, dict[int, list[Any]]] = {}


def _functions(file: str, names: dict[str, Any]) -> dict[int, list[Any]]:
    """Return the functions of a file by first line, including decorators; `names` are the globals of its module."""
    if file not in _parsed:
        found: dict[int, list[Any]] = {}
        for node in ast.walk(ast.parse("".join(linecache.getlines(file, names)))):
            if isinstance(node, ast.FunctionDef):
                line = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                found.setdefault(line, []).append(node)
            elif isinstance(node, ast.Lambda):
                found.setdefault(node.lineno, []).append(node)
        _parsed[file] = found
    return _parsed[file]


# Numbers --------------------------------------------------------------------------------------------------------------

FLOATS = {ast.Add: "fadd", ast.Sub: "fsub", ast.Mult: "fmul", ast.Div: "fdiv"}
INTEGERS = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.BitAnd: "and_",
    ast.BitOr: "or_",
    ast.BitXor: "xor",
    ast.LShift: "shl",
}
COMPARISONS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}


def common(left: ScalarKind, right: ScalarKind) -> ScalarKind | None:
    """Return the common kind of two numbers, or None."""
    if left is right and left.family == "float":
        return left
    if "other" in (left.family, right.family):
        return None
    if "float" in (left.family, right.family):
        return FLOAT64
    if UINT64 in (left, right):
        return UINT64 if left is right or "bool" in (left.family, right.family) else None
    return INT64


def converted(builder: Any, value: Value, kind: ScalarKind) -> Value | None:
    """Convert a number to another kind; None if that is not possible."""
    at, source, to = value.ir, value.kind, kind
    if source is to:
        return value
    if "other" in (source.family, to.family):
        return None
    if to is BOOL:
        return truth(builder, value)
    if source.family == "float":
        if to.family == "float":
            made = builder.fpext(at, to.type) if to.bits > source.bits else builder.fptrunc(at, to.type)
        else:
            made = _truncated(builder, value, to) if to.family == "int" else builder.fptoui(at, to.type)
    elif to.family == "float":
        made = builder.sitofp(at, to.type) if source.family == "int" else builder.uitofp(at, to.type)
    elif to.bits == source.bits:
        made = at
    elif to.bits < source.bits:
        made = builder.trunc(at, to.type)
    else:
        made = builder.sext(at, to.type) if source.family == "int" else builder.zext(at, to.type)
    return Value(to, made)


def _truncated(builder: Any, value: Value, to: ScalarKind) -> Any:
    """Return a float rounded towards 0; the least integer for one beyond all integers and for nan, as NumPy does.

    LLVM's own result is undefined for these.
    """
    kind, limit = value.kind, 2.0 ** (to.bits - 1)
    magnitude = declared(builder, ir.FunctionType(kind.type, [kind.type]), f"llvm.fabs.f{kind.bits}")
    fits = builder.fcmp_ordered("<", builder.call(magnitude, [value.ir]), ir.Constant(kind.type, limit))
    return builder.select(fits, builder.fptosi(value.ir, to.type), ir.Constant(to.type, -int(limit)))


def truth(builder: Any, value: Value) -> Value | None:
    """Return whether a number is not 0."""
    kind = value.kind
    if kind is BOOL:
        return value
    if kind.family == "float":
        return Value(BOOL, builder.fcmp_unordered("!=", value.ir, ir.Constant(kind.type, 0.0)))
    if kind.whole:
        return Value(BOOL, builder.icmp_signed("!=", value.ir, ir.Constant(kind.type, 0)))
    return None


def binary(
    builder: Any, operation: type[ast.operator], left: Value, right: Value, flags: tuple[str, ...]
) -> Value | None:
    """Return `left operation right`; None if it is not supported."""
    kind = common(left.kind, right.kind)
    if kind is None:
        return None
    if operation is ast.Div and kind.whole:
        kind = FLOAT64
    x, y = converted(builder, left, kind), converted(builder, right, kind)
    assert x is not None and y is not None
    if kind.family == "float":
        if operation is ast.Pow:
            power = declared(builder, ir.FunctionType(kind.type, [kind.type] * 2), f"llvm.pow.f{kind.bits}")
            return Value(kind, builder.call(power, [x.ir, y.ir]))
        name = FLOATS.get(operation, "")
        return Value(kind, getattr(builder, name)(x.ir, y.ir, flags=flags)) if name else None
    if operation is ast.RShift:
        return Value(kind, (builder.ashr if kind.family == "int" else builder.lshr)(x.ir, y.ir))
    if operation in (ast.FloorDiv, ast.Mod):
        return Value(kind, _divided(builder, kind, x.ir, y.ir, operation is ast.Mod))
    name = INTEGERS.get(operation, "")
    return Value(kind, getattr(builder, name)(x.ir, y.ir)) if name else None


def _divided(builder: Any, kind: ScalarKind, x: Any, y: Any, remainder: bool) -> Any:
    """Return the quotient rounded down, or the remainder with the divisor's sign; 0 if the divisor is 0."""
    zero = ir.Constant(kind.type, 0)
    known = isinstance(y, ir.Constant) and y.constant > 0
    one, negative_one = ir.Constant(kind.type, 1), ir.Constant(kind.type, -1)
    # processors trap at a divisor of 0, and at -1 for the minimal integer, which has no negative
    special = opposite = None
    if not known:
        special = builder.icmp_signed("==", y, zero)
        if kind.family == "int":
            opposite = builder.icmp_signed("==", y, negative_one)
            special = builder.or_(special, opposite)
    divisor = y if special is None else builder.select(special, one, y)
    if kind.family == "uint":
        made = (builder.urem if remainder else builder.udiv)(x, divisor)
    else:
        rest = builder.srem(x, divisor)
        apart = builder.icmp_signed("<", builder.xor(rest, divisor), zero)
        down = builder.and_(builder.icmp_signed("!=", rest, zero), apart)
        if remainder:
            made = builder.select(down, builder.add(rest, divisor), rest)
        else:
            quotient = builder.sdiv(x, divisor)
            made = builder.select(down, builder.sub(quotient, one), quotient)
            if opposite is not None:
                made = builder.select(opposite, builder.neg(x), made)
    return made if known else builder.select(builder.icmp_signed("==", y, zero), zero, made)


def compared(builder: Any, operation: type[ast.cmpop], left: Value, right: Value) -> Value | None:
    """Return whether `left operation right`; with a nan only != is true."""
    kind, sign = common(left.kind, right.kind), COMPARISONS.get(operation)
    if kind is None or sign is None:
        return None
    x, y = converted(builder, left, kind), converted(builder, right, kind)
    assert x is not None and y is not None
    if kind.family == "float":
        compare = builder.fcmp_unordered if sign == "!=" else builder.fcmp_ordered
    else:
        compare = builder.icmp_signed if kind.family == "int" else builder.icmp_unsigned
    return Value(BOOL, compare(sign, x.ir, y.ir))


def negative(builder: Any, value: Value) -> Value | None:
    kind = value.kind
    if kind.family == "float":
        known = value.constant
        return Value(kind, ir.Constant(kind.type, -known) if known is not None else builder.fneg(value.ir))
    if kind.family == "int":
        known = value.constant
        if known is not None:
            return Value(INT64, ir.Constant(INT64.type, -known))
        wide = converted(builder, value, INT64)
        assert wide is not None
        return Value(INT64, builder.neg(wide.ir))
    return None


def magnitude(builder: Any, value: Value) -> Value | None:
    """Return |x| of an integer; the minimal one, which has no negative, is unchanged."""
    opposite = negative(builder, value)
    if opposite is None:
        return None
    wide = converted(builder, value, opposite.kind)
    assert wide is not None
    below = builder.icmp_signed("<", wide.ir, ir.Constant(wide.kind.type, 0))
    return Value(wide.kind, builder.select(below, opposite.ir, wide.ir))


def math_call(builder: Any, name: str, value: Value, *others: Value) -> Value | None:
    """Call a function of floats, all of the first one's kind: `llvm.sqrt`, or the C library's, with an f for
    float32."""
    kind = value.kind if value.kind in (FLOAT32, FLOAT64) else FLOAT64
    given = [converted(builder, each, kind) for each in (value, *others)]
    if None in given:
        return None
    full = f"{name}.f{kind.bits}" if name.startswith("llvm.") else name + ("f" if kind is FLOAT32 else "")
    function = declared(builder, ir.FunctionType(kind.type, [kind.type] * len(given)), full)
    return Value(kind, builder.call(function, [each.ir for each in given if each is not None]))


# Arrays ---------------------------------------------------------------------------------------------------------------

# An array is a tuple of its `Packed` description, its address and its sizes.


class Packed(NamedTuple):
    """An array in row-major order: its dtype's name, and the scope of its memory (see `native.access`)."""

    dtype: str
    scope: str


def is_array(value: Any) -> bool:
    return type(value) is tuple and bool(value) and isinstance(value[0], Packed)


def attribute(builder: Any, array: Any, name: str) -> Any:
    """Return `shape`, `size` or `dtype`; None for any other."""
    packed, _, *shape = array
    if name == "shape":
        return tuple(shape)
    if name == "size":
        size = shape[0]
        for extent in shape[1:]:
            size = Value(INT64, builder.mul(size.ir, extent.ir))
        return size
    return np.dtype(packed.dtype) if name == "dtype" else None


def place(builder: Any, array: Any, index: Any) -> Any:
    """Return the row-major position of the element at an index, an integer per axis; None for other indices."""
    _, _, *shape = array
    indices = index if type(index) is tuple else (index,)
    if len(indices) != len(shape) or not all(isinstance(i, Value) for i in indices):
        return None
    if not all(i.kind.whole for i in indices):
        return None
    first, *rest = [converted(builder, i, INT64).ir for i in indices]  # type: ignore[union-attr]
    for extent, i in zip(shape[1:], rest):
        first = builder.add(builder.mul(first, extent.ir), i)
    return first


def load(builder: Any, array: Any, at: Any) -> Value:
    packed, address, *_ = array
    read = access.load(packed.dtype, packed.scope)
    return Value(read.result, read.build(builder, address.ir, at))


def store(builder: Any, array: Any, at: Any, value: Any) -> bool:
    """Store a number; return False if it cannot be an element of the array."""
    packed, address, *_ = array
    write = access.store(packed.dtype, packed.scope)
    of = write.operands[-1]
    fits = isinstance(value, Value) and not (value.kind.family == "float" and of.whole)
    number = converted(builder, value, of) if fits else None
    if number is not None:
        write.build(builder, address.ir, at, number.ir)
    return number is not None
