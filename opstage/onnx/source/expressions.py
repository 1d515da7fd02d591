"""Static parameters, sizes and constants as Python expressions."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from ...ops.dims import DimExpr, DimFloat
from ...ops.errors import UnsupportedError
from ...ops.types import dtype_name
from .layout import Bracketed, Expression, call, tuple_of


class SourceExpressions:
    """The expressions of one program.

    dims    the name of each size in the source, by its name in the file
    used    names of `opstage.ops.dims` and modules that the source must import
    """

    def __init__(self, dims: Mapping[str, str]):
        self.dims = dims
        self.used: set[str] = set()
        self.sizes: set[str] = set()

    def static(self, value: Any) -> Expression:
        """Format a static parameter."""
        if isinstance(value, (DimExpr, DimFloat)):
            return self.size(value)
        if type(value) is float:
            return self.number(value)
        if type(value) in (bool, int, str):
            return repr(value) if type(value) is not str else _quoted(value)
        if type(value) is Fraction:
            self.used.add("ratio")
            return f"ratio({value.numerator}, {value.denominator})"
        if type(value) is tuple:
            return tuple_of([self.static(entry) for entry in value])
        raise UnsupportedError(f"a static parameter of type {type(value).__name__} has no text in Python")

    def number(self, value: float) -> str:
        """Format any float, including nan and infinity."""
        if math.isfinite(value):
            return repr(value)
        self.used.add("math")
        return "math.nan" if math.isnan(value) else "math.inf" if value > 0 else "-math.inf"

    def size(self, value: DimExpr | DimFloat) -> str:
        """Format an expression in sizes; a real one is rounded only once, for any sizes."""
        tree = ast.parse(str(value), mode="eval").body
        made = _Sizes(self, real=isinstance(value, DimFloat)).visit(tree)
        return ast.unparse(made)

    def constant(self, array: npt.NDArray[Any]) -> Expression:
        """Format a small array as `ops.const(…)`."""
        entries = self._entries(array.tolist())
        keywords = [("dtype", _quoted(dtype_name(array.dtype)))] if array.dtype.kind in "iu" else []
        return call("ops.const", [entries], keywords if array.dtype != np.int64 or not array.size else [])

    def _entries(self, value: Any) -> Expression:
        if isinstance(value, list):
            return Bracketed("[", tuple(self._entries(entry) for entry in value), "]")
        return self.number(value) if type(value) is float else repr(value)


class _Sizes(ast.NodeTransformer):
    """Converts size expressions to Python that is valid for numbers and for symbolic sizes."""

    def __init__(self, around: SourceExpressions, real: bool):
        self.around = around
        self.real = real

    def visit_Name(self, node: ast.Name) -> ast.AST:
        name = self.around.dims[node.id]
        self.around.sizes.add(name)
        if not self.real:
            return ast.Name(name)
        self.around.used.add("ratio")
        return ast.Call(ast.Name("ratio"), [ast.Name(name), ast.Constant(1)], [])

    def visit_Call(self, node: ast.Call) -> ast.AST:
        function = node.func.id if isinstance(node.func, ast.Name) else ""
        if function in ("min", "max"):
            name = {"min": "minimum", "max": "maximum"}[function]
            self.around.used.add(name)
            inner = _Sizes(self.around, real=False)
            found: ast.expr = ast.Call(ast.Name(name), [inner.visit(arg) for arg in node.args], [])
            return self._as_real(found)
        if function == "sqrt":
            return ast.BinOp(self.visit(node.args[0]), ast.Pow(), ast.Constant(0.5))
        raise UnsupportedError(f"the size {ast.unparse(node)} has no text in Python")

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        match node:
            case ast.BinOp(ast.Constant(value=1), ast.Div(), ast.Call(func=ast.Name(id="sqrt"), args=[inside])):
                self.around.used.add("rsqrt")
                return ast.Call(ast.Name("rsqrt"), [_Sizes(self.around, real=False).visit(inside)], [])
        if isinstance(node.op, (ast.FloorDiv, ast.Mod)):
            inner = _Sizes(self.around, real=False)
            return self._as_real(ast.BinOp(inner.visit(node.left), node.op, inner.visit(node.right)))
        left, right = self.visit(node.left), self.visit_power(node)
        if self.real and isinstance(node.op, ast.Div) and not any(isinstance(n, ast.Name) for n in ast.walk(node)):
            left = self._as_real(left)  # integers, whose quotient would be rounded
        return ast.BinOp(left, node.op, right)

    def visit_power(self, node: ast.BinOp) -> Any:
        """Return the right operand; an exponent stays a plain number."""
        return node.right if isinstance(node.op, ast.Pow) else self.visit(node.right)

    def _as_real(self, node: ast.expr) -> ast.expr:
        if not self.real:
            return node
        self.around.used.add("ratio")
        return ast.Call(ast.Name("ratio"), [node, ast.Constant(1)], [])


def _quoted(text: str) -> str:
    """Return a string literal in double quotes."""
    quoted = repr(text)
    if quoted.startswith("'") and '"' not in quoted:
        return f'"{quoted[1:-1]}"'
    return quoted


quoted = _quoted
