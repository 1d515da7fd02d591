"""Translate expressions to LLVM instructions."""

from __future__ import annotations

import ast
import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from . import types as arrays
from .types import (
    BOOL,
    FLOAT64,
    INT64,
    OF_NUMPY,
    VOID,
    WORDS,
    FunctionSource,
    Intrinsic,
    ScalarKind,
    Value,
    binary,
    common,
    compared,
    constant,
    converted,
    magnitude,
    math_call,
    negative,
    truth,
)

MATHS = {
    math.sqrt: "llvm.sqrt",
    np.sqrt: "llvm.sqrt",
    np.sin: "llvm.sin",
    np.cos: "llvm.cos",
    np.floor: "llvm.floor",
    np.rint: "llvm.rint",
    np.log1p: "log1p",
    math.fmod: "fmod",
    np.log10: "log10",
    math.erf: "erf",
}
"""Functions of floats, with the name in LLVM or the C library."""


class Expressions(ABC):
    """The expressions of a function. `evaluate` returns a Value, a tuple, or an object known at compile time."""

    source: FunctionSource
    builder: Any
    kinds: dict[str, Any]
    flags: tuple[str, ...]

    @abstractmethod
    def read(self, name: str) -> Any: ...

    @abstractmethod
    def call_function(self, function: Any, key: Any, arguments: list[Any], flags: tuple[str, ...]) -> Any: ...

    def evaluate(self, node: ast.expr) -> Any:
        write = getattr(self, f"_{type(node).__name__.lower()}_", None)
        if write is None:
            raise self.source.fail(node, f"an expression {type(node).__name__} is not supported")
        return write(node)

    def number(self, value: Any, kind: ScalarKind, node: ast.AST) -> Value:
        """Convert to a number of that kind. A float becomes an integer only by a cast."""
        found = None
        if isinstance(value, Value) and not (value.kind.family == "float" and kind.whole):
            found = converted(self.builder, value, kind)
        if found is None:
            raise self.source.fail(node, f"expected a value of {kind}, got {value!r}")
        return found

    def value(self, node: ast.expr) -> Value:
        found = self.evaluate(node)
        if not isinstance(found, Value):
            raise self.source.fail(node, f"expected a number, got {found!r}")
        return found

    def condition(self, node: ast.expr) -> Value:
        """Return whether an expression is true."""
        found = truth(self.builder, self.value(node))
        if found is None:
            raise self.source.fail(node, "the condition is neither true nor false")
        return found

    def element(self, node: ast.Subscript, words: Any) -> Any:
        """Return the address of an element of words."""
        if not isinstance(words, Value) or words.kind is not WORDS:
            raise self.source.fail(node, f"an element of {words!r} is not supported")
        return self.builder.gep(words.ir, [self.number(self.evaluate(node.slice), INT64, node).ir])

    def place(self, node: ast.Subscript, array: Any) -> Any:
        """Return the position of an array's element."""
        found = arrays.place(self.builder, array, self.evaluate(node.slice))
        if found is None:
            raise self.source.fail(node, "an index other than an integer for each axis is not supported")
        return found

    # One method per kind of node -------------------------------------------------------------------------------------

    def _name_(self, node: ast.Name) -> Any:
        if node.id in self.kinds:
            return self.read(node.id)
        try:
            found = self.source.meaning(node.id)
        except AttributeError:
            raise self.source.fail(node, f"name {node.id} is not defined") from None
        return _known(found)

    def _constant_(self, node: ast.Constant) -> Any:
        return _known(node.value)

    def _tuple_(self, node: ast.Tuple) -> Any:
        return tuple([self.evaluate(each) for each in node.elts])

    def _attribute_(self, node: ast.Attribute) -> Any:
        owner = self.evaluate(node.value)
        if arrays.is_array(owner):
            found = arrays.attribute(self.builder, owner, node.attr)
            if found is not None:
                return found
        if isinstance(owner, Value) or not hasattr(owner, node.attr):
            raise self.source.fail(node, f"{owner!r} lacks the attribute {node.attr}")
        return _known(getattr(owner, node.attr))

    def _subscript_(self, node: ast.Subscript) -> Any:
        owner = self.evaluate(node.value)
        if arrays.is_array(owner):
            return arrays.load(self.builder, owner, self.place(node, owner))
        if isinstance(owner, Value):
            return Value(INT64, self.builder.load(self.element(node, owner)))
        index = self.value(node.slice).constant
        if not isinstance(owner, tuple) or index is None:
            raise self.source.fail(node, "the index of a tuple is not known when the kernel is compiled")
        return owner[index]

    def _binop_(self, node: ast.BinOp) -> Value:
        left, right = self.value(node.left), self.value(node.right)
        found = binary(self.builder, type(node.op), left, right, self.flags)
        if found is None:
            raise self.source.fail(node, f"{type(node.op).__name__} of {left.kind} and {right.kind} is not supported")
        return found

    def _unaryop_(self, node: ast.UnaryOp) -> Value:
        if isinstance(node.op, ast.Not):
            return Value(BOOL, self.builder.not_(self.condition(node.operand).ir))
        value = self.value(node.operand)
        found = negative(self.builder, value) if isinstance(node.op, ast.USub) else None
        if found is None and isinstance(node.op, ast.Invert) and value.kind.family == "int":
            found = Value(INT64, self.builder.not_(self.number(value, INT64, node).ir))
        if found is None:
            raise self.source.fail(node, f"{type(node.op).__name__} of {value.kind} is not supported")
        return found

    def _compare_(self, node: ast.Compare) -> Value:
        values = [self.value(each) for each in (node.left, *node.comparators)]
        holds: Value | None = None
        for sign, left, right in zip(node.ops, values, values[1:]):
            found = compared(self.builder, type(sign), left, right)
            if found is None:
                raise self.source.fail(node, f"{type(sign).__name__} of {left.kind} and {right.kind} is not supported")
            holds = found if holds is None else Value(BOOL, self.builder.and_(holds.ir, found.ir))
        assert holds is not None
        return holds

    def _boolop_(self, node: ast.BoolOp) -> Value:
        """Return a truth value, never an operand; later operands are computed only if the earlier ones do not
        decide."""
        builder, stops = self.builder, isinstance(node.op, ast.Or)
        after, arrivals = builder.append_basic_block("decided"), []
        for i, each in enumerate(node.values):
            condition = self.condition(each).ir
            arrivals.append((condition, builder.block))
            if i == len(node.values) - 1:
                builder.branch(after)
            else:
                following = builder.append_basic_block("undecided")
                builder.cbranch(condition, *((after, following) if stops else (following, after)))
                builder.position_at_end(following)
        builder.position_at_end(after)
        found = builder.phi(BOOL.type)
        for value, block in arrivals:
            found.add_incoming(value, block)
        return Value(BOOL, found)

    def _ifexp_(self, node: ast.IfExp) -> Any:
        condition = self.condition(node.test)
        if condition.constant is not None:
            return self.evaluate(node.body if condition.constant else node.orelse)
        builder = self.builder
        then, otherwise, after = [builder.append_basic_block(name) for name in ("then", "otherwise", "chosen")]
        builder.cbranch(condition.ir, then, otherwise)
        sides = []
        for block, each in ((then, node.body), (otherwise, node.orelse)):
            builder.position_at_end(block)
            sides.append((self.evaluate(each), builder.block))
        (left, left_block), (right, right_block) = sides
        return self._chosen(node, left, left_block, right, right_block, after)

    def _chosen(self, node: ast.IfExp, left: Any, left_block: Any, right: Any, right_block: Any, after: Any) -> Any:
        builder = self.builder
        several = isinstance(left, tuple) and isinstance(right, tuple) and len(left) == len(right)
        pairs = list(zip(left, right)) if several else [(left, right)]
        arrivals: list[tuple[ScalarKind, list[Any]]] = []
        kinds = []
        for x, y in pairs:
            if not isinstance(x, Value) or not isinstance(y, Value):
                raise self.source.fail(node, f"a choice between {x!r} and {y!r} is not supported")
            kind = x.kind if x.kind is y.kind else common(x.kind, y.kind)
            if kind is None:
                raise self.source.fail(node, f"a choice between {x.kind} and {y.kind} is not supported")
            kinds.append(kind)
            arrivals.append((kind, []))
        for side, block in ((0, left_block), (1, right_block)):
            builder.position_at_end(block)
            for pair, (kind, values) in zip(pairs, arrivals):
                values.append(self.number(pair[side], kind, node).ir)
            builder.branch(after)
        builder.position_at_end(after)
        found = []
        for kind, (x_ir, y_ir) in arrivals:
            phi = builder.phi(kind.type)
            phi.add_incoming(x_ir, left_block)
            phi.add_incoming(y_ir, right_block)
            found.append(Value(kind, phi))
        return tuple(found) if several else found[0]

    # Calls -----------------------------------------------------------------------------------------------------------

    def _call_(self, node: ast.Call) -> Any:
        if node.keywords:
            raise self.source.fail(node, "a keyword argument is not supported")
        if isinstance(node.func, ast.Attribute) and node.func.attr == "view":
            return self._view(node)
        function = self.evaluate(node.func)
        arguments: list[Any] = []
        for each in node.args:
            if isinstance(each, ast.Starred):
                arguments += self.evaluate(each.value)
            else:
                arguments.append(self.evaluate(each))
        return self._called(node, function, arguments)

    def _called(self, node: ast.Call, function: Any, arguments: list[Any]) -> Any:
        if isinstance(function, Intrinsic):
            return self._intrinsic(node, function, arguments)
        kind = OF_NUMPY.get(function) if isinstance(function, type) else None
        kind = {int: INT64, float: FLOAT64, bool: BOOL}.get(function, kind) if isinstance(function, type) else kind
        if kind is not None:
            cast = converted(self.builder, arguments[0], kind) if isinstance(arguments[0], Value) else None
            if cast is None:
                raise self.source.fail(node, f"expected a value of {kind}, got {arguments[0]!r}")
            return cast
        found: Value | None = None
        if function in (min, max):
            return self._extreme(node, "<" if function is min else ">", arguments)
        if function is abs and arguments[0].kind.family == "float":
            found = math_call(self.builder, "llvm.fabs", arguments[0])
        elif function is abs:
            found = magnitude(self.builder, arguments[0])
        elif isinstance(function, (np.ufunc, type(math.sqrt))) and function in MATHS:
            found = math_call(self.builder, MATHS[function], *arguments)
        elif hasattr(function, "formula_of"):
            first = arguments[0]
            dtype = first[0].dtype if arrays.is_array(first) else first.kind.name
            formula, fastmath = function.formula_of(dtype)
            return self.call_function(formula, (function, dtype), arguments, fastmath)
        elif hasattr(function, "__code__"):
            return self.call_function(function, function, arguments, ())
        if found is None:
            raise self.source.fail(node, f"a call of {function!r} is not supported")
        return found

    def _intrinsic(self, node: ast.Call, function: Intrinsic, arguments: list[Any]) -> Any:
        if len(arguments) != len(function.operands):
            count = len(function.operands)
            raise self.source.fail(node, f"{function.name}: expected {count} arguments, got {len(arguments)}")
        given = [self.number(each, kind, node).ir for each, kind in zip(arguments, function.operands)]
        found = function.build(self.builder, *given)
        return None if function.result is VOID else Value(function.result, found)

    def _extreme(self, node: ast.Call, sign: str, arguments: list[Any]) -> Value:
        """Return the least or greatest of some integers."""
        best, *others = [self.number(each, INT64, node) for each in arguments]
        for other in others:
            first = self.builder.icmp_signed(sign, other.ir, best.ir)
            best = Value(INT64, self.builder.select(first, other.ir, best.ir))
        return best

    def _view(self, node: ast.Call) -> Value:
        assert isinstance(node.func, ast.Attribute)
        value, kind = self.value(node.func.value), OF_NUMPY[self.evaluate(node.args[0])]
        if value.kind.bits != kind.bits:
            raise self.source.fail(node, f"a view of {value.kind} as {kind} is not supported")
        return Value(kind, self.builder.bitcast(value.ir, kind.type) if value.ir.type != kind.type else value.ir)


def _known(found: Any) -> Any:
    """Convert a number to a value, also within tuples; other objects are unchanged."""
    if type(found) is tuple:
        return tuple([_known(each) for each in found])
    value = constant(found)
    return found if value is None else value
