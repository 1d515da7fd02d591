"""The notation of types, static parameters, regions and arrays in files and on screens, which is read back exactly.

Static parameters are written as in Python: 3, 0.1, True, "text", (1, 2). Values without a Python literal are:

    1/3             a Fraction, also 2/1          B*T + 1         a size
    real(1/(2*B))   an exact real in sizes        float("inf")    a float that is not a number or not finite
    body(0)         a closed body, by its position among those listed with the text
"""

from __future__ import annotations

import ast
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from ...ops.body import Body
from ...ops.dims import Dim, DimExpr, DimFloat, DimScope
from ...ops.dims import polynomial as poly
from ...ops.dims import radicals as algebra
from ...ops.dims.relation import build_claim
from ...ops.dims.scope import parse_relations, split_outside
from ...ops.dispatch import Region
from ...ops.errors import OpstageError, UsageError, a_type, brief, syntax_depth
from ...ops.types import EXACT, DType, TensorType, as_dtype, dtype_name, require_shape, show_shape

Array = npt.NDArray[Any]

MARKS = ("backward", "recomputed", "opened")
"""Words after a region in an equation's line; a region with such a name is quoted."""

_INLINE = 16
_PLAIN_SEGMENT = re.compile(r"[A-Za-z_][\w.\-]*", re.ASCII)
_LARGEST_POWER = 16
_MOST_BITS = 1000
_DEEPEST = 60  # levels of nested parentheses in a static parameter

MOST_LEVELS = 64
"""The limit of nested regions and of nested closed bodies, since traversals of graphs recurse."""


def quoted(text: str) -> str:
    """Quote a string in double quotes and escape #, which begins a comment."""
    return json.dumps(text, ensure_ascii=False).replace("#", "\\u0023")


# Types ----------------------------------------------------------------------------------------------------------------


def show_type(type_: TensorType) -> str:
    """`(B, 3) float32`"""
    return f"{show_shape(type_.shape)} {dtype_name(type_.dtype)}"


def read_type(text: str, scope: DimScope) -> TensorType:
    """Parse the text of `show_type`, its sizes in `scope`. Raises UsageError."""
    shape, _, dtype = text.rpartition(" ")
    if not (shape.startswith("(") and shape.endswith(")")):
        raise UsageError(f"{brief(text)} is not a type; one is written like (B, 3) float32")
    sizes = tuple([scope.parse(entry) for entry in split_outside(shape[1:-1], ",")])
    require_shape(sizes)
    return TensorType(sizes, as_dtype(dtype))


# Static parameters ----------------------------------------------------------------------------------------------------


def show_static(value: Any, bodies: list[Body]) -> str:
    """Return the text of a static parameter; closed bodies are appended to `bodies` and written as their position."""
    if type(value) is float and not math.isfinite(value):
        return f'float("{value}")'
    if value is None or type(value) in (bool, int, float):
        return repr(value)
    if type(value) is str:
        return quoted(value)
    if type(value) is tuple:
        entries = [show_static(entry, bodies) for entry in value]
        return f"({', '.join(entries)}{',' if len(entries) == 1 else ''})"
    if type(value) is Fraction:
        return f"{value.numerator}/{value.denominator}"
    if type(value) is DimExpr:
        return str(value)
    if isinstance(value, DimFloat):
        return f"real({value})"
    if type(value) is Body:
        bodies.append(value)
        return f"body({len(bodies) - 1})"
    raise UsageError(
        f"expected a number, string, size, closed body, tuple or None as a static parameter, got {brief(value)}, "
        f"{a_type(value)}"
    )


def read_statics(text: str, scope: DimScope, body: Callable[[int], Body]) -> dict[str, Any]:
    """Parse `name=value, name=value` into a dict; `body` returns the closed body at a position. Raises UsageError."""
    if not text:
        return {}
    call = _tree(f"static({text})", text)
    for node in ast.walk(call):
        if isinstance(node, ast.Constant) and type(node.value) is int and node.value.bit_length() > _MOST_BITS:
            raise UsageError(f"cannot read {brief(text)}: {brief(node.value)} is larger than any float")
    if not isinstance(call, ast.Call) or call.args:
        raise UsageError(f"{brief(text)} is not a list of static parameters, name=value, name=value")
    values = {}
    for keyword in call.keywords:
        if keyword.arg is None or keyword.arg in values:
            raise UsageError(f"{brief(text)}: expected a name for each static parameter, different from the others")
        try:
            values[keyword.arg] = _read(keyword.value, scope, body)
        except RecursionError:  # a sum of hundreds of terms, which syntax_depth counts as one level
            raise UsageError(f"cannot read {brief(text)}: it has too many terms") from None
    return values


def _tree(source: str, shown: str) -> ast.expr:
    try:
        tree = ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"cannot read {brief(shown)}: {type(error).__name__}") from None
    if syntax_depth(tree) > _DEEPEST:
        raise UsageError(f"cannot read {brief(shown)}: it is nested deeper than {_DEEPEST} levels")
    return tree


def _read(node: ast.expr, scope: DimScope, body: Callable[[int], Body]) -> Any:
    match node:
        case ast.Constant(value=str() as value):
            return read_text(value)
        case ast.Constant(value=None | bool() | int() | float() as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)) if (
            type(value) is not bool
        ):
            return -value
        case ast.Tuple(elts=entries):
            return tuple([_read(entry, scope, body) for entry in entries])
        case ast.BinOp(left=above, op=ast.Div(), right=ast.Constant(value=int() as below)) if below:
            numerator = _read(above, scope, body)
            if type(numerator) is not int:
                _unreadable(node)
            return Fraction(numerator, below)
        case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value=("inf" | "-inf" | "nan") as value)]):
            return float(value)
        case ast.Call(func=ast.Name(id="real"), args=[argument]):
            return scope.intern_real(_terms(argument, scope))
        case ast.Call(func=ast.Name(id="body"), args=[ast.Constant(value=int() as position)]):
            return body(position)
        case ast.Name() | ast.BinOp() | ast.UnaryOp() | ast.Call(func=ast.Name(id="min" | "max")):
            return scope.parse(ast.unparse(node))
        case _:
            _unreadable(node)


def _terms(node: ast.expr, scope: DimScope) -> algebra.Terms:
    """Return the terms of an exact real as written, without cancellation, so that the same terms are read back."""
    match node:
        case ast.Constant(value=int() | float() as number) if type(number) is not bool and math.isfinite(number):
            return algebra.of_number(number)
        case ast.Name(id=name):
            return algebra.of_polynomial(scope.dim(name).polynomial)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return algebra.add({}, _terms(operand, scope), -1)
        case ast.Call(func=ast.Name(id="sqrt"), args=[operand]):
            return algebra.power(scope, _terms(operand, scope), 1)
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int() as power)) if power <= _LARGEST_POWER:
            return algebra.power(scope, _terms(left, scope), 2 * power)
        case ast.BinOp(op=ast.FloorDiv() | ast.Mod()) | ast.Call(func=ast.Name(id="min" | "max")):
            return algebra.of_polynomial(_polynomial(scope.parse(ast.unparse(node))))
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as sign, right=right):
            factor = 1 if isinstance(sign, ast.Add) else -1
            return algebra.add(_terms(left, scope), _terms(right, scope), factor)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return algebra.multiply(_terms(left, scope), _terms(right, scope))
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            divisor = algebra.power(scope, _terms(right, scope), -2)
            return algebra.multiply(_terms(left, scope), divisor)
        case _:
            _unreadable(node)


def _unreadable(node: ast.expr) -> NoReturn:
    raise UsageError(f"{brief(ast.unparse(node))} is not a static parameter; see the notation of graphs")


def read_text(text: str) -> str:
    """Return the text unchanged. Raises UsageError for text with an unpaired surrogate, which a file cannot encode."""
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise UsageError(f"{brief(text)} is not text: it contains half of a character")
    return text


# Regions --------------------------------------------------------------------------------------------------------------


def show_region(region: Region) -> str:
    """Return `blocks.0/attention#1`: a slash between nested regions, # before an occurrence; empty for the root."""
    return "/".join(_segment(name) + (f"#{occurrence}" if occurrence else "") for name, occurrence in region.path)


def _segment(name: str) -> str:
    return name if _PLAIN_SEGMENT.fullmatch(name) and name not in MARKS else _escaped(name)


def _escaped(name: str) -> str:
    """Quote a name and escape blanks, # and /, which have a meaning in the notation."""
    return re.sub("[ #/]", lambda found: f"\\u{ord(found[0]):04x}", json.dumps(name))


def read_region(text: str) -> Region:
    """Parse the text of `show_region`. Raises UsageError."""
    path = []
    if text.count("/") >= MOST_LEVELS:
        raise UsageError(f"{brief(text)} is not a region: it has more than {MOST_LEVELS} levels")
    for segment in text.split("/") if text else ():
        name, _, occurrence = segment.partition("#")
        if occurrence and not re.fullmatch(r"\d{1,18}", occurrence, re.ASCII):
            raise UsageError(f"{brief(text)} is not a region: an occurrence is a number")
        if name.startswith('"'):
            try:
                name = json.loads(name)
            except ValueError:
                raise UsageError(f"{brief(text)} is not a region: its quotes do not close") from None
        path.append((read_text(str(name)), int(occurrence or 0)))
    return Region(tuple(path))


# Arrays ---------------------------------------------------------------------------------------------------------------


def digest(array: Array) -> str:
    """Return the name of an array by its content: SHA-256 of dtype, shape and bytes."""
    head = f"{dtype_name(array.dtype)} {array.shape} ".encode()
    return hashlib.sha256(head + np.ascontiguousarray(array).tobytes()).hexdigest()


def show_array(array: Array) -> str | None:
    """Return a small array as a list of its elements; None for one that is stored separately, named by its digest.

    Exact arrays, which tensor files cannot hold, are always written out.
    """
    if array.dtype == EXACT:
        return f"[{', '.join(f'{Fraction(v).numerator}/{Fraction(v).denominator}' for v in array.flat)}]"
    if array.size > _INLINE or array.dtype.name not in ("float32", "float64", "int32", "int64", "bool"):
        return None
    text = f"[{', '.join(show_static(number, []) for number in array.ravel().tolist())}]"
    # a NaN may have payload bits that the text loses
    return text if read_array(text, array.shape, array.dtype).tobytes() == array.tobytes() else None


def read_array(text: str, shape: tuple[int, ...], dtype: DType) -> Array:
    """Parse the text of `show_array`. Raises UsageError."""
    tree = _tree(text, text)
    if not isinstance(tree, ast.List):
        raise UsageError(f"{brief(text)} is not a list of numbers")
    numbers = [_read(entry, DimScope(), _no_body) for entry in tree.elts]
    try:
        if dtype == EXACT:
            array = np.empty(len(numbers), object)
            array[:] = [Fraction(number) for number in numbers]
        else:
            with np.errstate(over="raise"):  # a number beyond the dtype would become infinite
                array = np.array(numbers, dtype)
        array = array.reshape(shape)
    except (ValueError, TypeError, ArithmeticError) as error:
        raise UsageError(f"{brief(text)} does not fill {show_shape(shape)} {dtype_name(dtype)}: {error}") from None
    array.flags.writeable = False
    return array


def _no_body(position: int) -> Body:
    raise UsageError(f"expected a number, got body({position})")


# Sizes ----------------------------------------------------------------------------------------------------------------


class NamedSizes(NamedTuple):
    """The named sizes of a graph: names, declared constraints, and constraints assumed while recording."""

    names: tuple[str, ...]
    declared: tuple[str, ...]
    assumed: tuple[str, ...]

    @classmethod
    def of(cls, body: Body) -> NamedSizes | None:
        """Return the named sizes of a body's scope, or None if all sizes are numbers."""
        scope = next(_scopes(body), None)
        if scope is None:
            return None
        declared = dict.fromkeys(fact.relation for fact in scope.facts)
        return cls(scope.names, tuple(declared), tuple(dict.fromkeys(c.relation for c in scope.conditions)))

    def scope(self) -> DimScope:
        """Return a new scope with the same names and constraints. Raises UsageError."""
        scope = DimScope()
        for name in self.names:
            scope.dim(name)
        try:
            for relation in self.declared:
                scope.declare(relation)
            for relation in self.assumed:
                for left, operator, right in parse_relations(relation, scope.dim):
                    claim = build_claim(_polynomial(left), operator, _polynomial(right))
                    scope.require(claim, "assumed when the program was recorded")
        except UsageError:
            raise
        except OpstageError as error:
            raise UsageError(str(error)) from None
        return scope


def _polynomial(size: Dim) -> poly.Polynomial:
    return size.polynomial if isinstance(size, DimExpr) else poly.constant(size)


def _scopes(body: Body) -> Iterator[DimScope]:
    for type_ in body.types:
        yield from (d.scope for d in type_.shape if isinstance(d, DimExpr))
    for equation in body.equations:
        for value in equation.static.values():
            yield from _static_scopes(value)


def _static_scopes(value: Any) -> Iterator[DimScope]:
    if isinstance(value, (DimExpr, DimFloat)):
        yield value.scope
    elif isinstance(value, Body):
        yield from _scopes(value)
    elif isinstance(value, tuple):
        for entry in value:
            yield from _static_scopes(entry)
