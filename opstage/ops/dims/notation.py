"""Reading dims as text: `B*T + 1`, `N//3`, `min(T, 8)`, and constraints such as `1 <= B <= 64` or `N % 3 == 0`."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import NoReturn

from ..errors import ShapeError, UsageError
from .arithmetic import written_extremum
from .expression import Dim

_RELATIONS: dict[type[ast.cmpop], str] = {ast.Eq: "==", ast.LtE: "<=", ast.Lt: "<", ast.GtE: ">=", ast.Gt: ">"}
_MOST_CHARACTERS = 2000
_LARGEST_POWER = 16


def parse_expression(text: str, name: Callable[[str], Dim]) -> Dim:
    """The dim that `text` denotes; `name` gives the dim of a name. Raises `UsageError`."""
    reader = _Reader(text, "dim expression", name)
    tree = reader.tree()
    if isinstance(tree, ast.Compare):
        reader.fail("a size is wanted here, not a comparison")
    return reader.read(tree)


def parse_relations(text: str, name: Callable[[str], Dim]) -> list[tuple[Dim, str, Dim]]:
    """The relations (left, operator, right) of a constraint; `1 <= B <= 64` gives two. Raises `UsageError`."""
    reader = _Reader(text, "constraint", name)
    tree = reader.tree()
    if not isinstance(tree, ast.Compare):
        reader.fail("a relation is wanted, such as 'T <= 1024', 'D == H*K' or 'N % 3 == 0'")
    sides = [reader.read(side) for side in (tree.left, *tree.comparators)]
    operators = []
    for relation in tree.ops:
        if type(relation) not in _RELATIONS:
            reader.fail("only ==, <=, <, >= and > are understood between sizes")
        operators.append(_RELATIONS[type(relation)])
    return list(zip(sides, operators, sides[1:], strict=False))


def split_outside(text: str, separators: str) -> list[str]:
    """The parts of a text between separators that do not stand in parentheses: `B min(T, 8)` has two between blanks."""
    parts, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character in separators and depth <= 0:
            parts.append("")
        else:
            parts[-1] += character
    return [stripped for part in parts if (stripped := part.strip())]


class _Reader:
    """Walks the syntax tree of one text."""

    def __init__(self, text: str, kind: str, name: Callable[[str], Dim]):
        self.text = text
        self.kind = kind
        self.name = name

    def fail(self, reason: str) -> NoReturn:
        shown = self.text if len(self.text) <= 80 else f"{self.text[:77]}..."
        raise UsageError(f"cannot read the {self.kind} {shown!r}: {reason}")

    def tree(self) -> ast.expr:
        if len(self.text) > _MOST_CHARACTERS:
            self.fail(f"it is longer than {_MOST_CHARACTERS} characters")
        try:
            return ast.parse(self.text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            self.fail("write names, integers, + - * // %, min, max, parentheses")

    def read(self, node: ast.expr) -> Dim:
        match node:
            case ast.Name(id=name):
                return self.name(name)
            case ast.Constant(value=int() as value) if not isinstance(value, bool):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self.read(operand)
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self.read(operand)
            case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int() as exponent)):
                if not 0 <= exponent <= _LARGEST_POWER:
                    self.fail(f"an exponent is an integer from 0 to {_LARGEST_POWER}")
                power: Dim = self.read(left) ** exponent
                return power
            case ast.BinOp(left=left, op=operation, right=right):
                return self.combine(self.read(left), operation, self.read(right))
            case ast.Call(func=ast.Name(id=("min" | "max") as function), args=[_, *_] as arguments, keywords=[]):
                return written_extremum([self.read(argument) for argument in arguments], function == "max")
            case _:
                self.fail(f"{ast.unparse(node)!r} is neither a name, an integer, min, max nor one of + - * // %")

    def combine(self, left: Dim, operation: ast.operator, right: Dim) -> Dim:
        match operation:
            case ast.Add():
                return left + right
            case ast.Sub():
                return left - right
            case ast.Mult():
                return left * right
            case ast.Div():
                self.fail("sizes divide with // (rounding down), not with /")
            case ast.FloorDiv() | ast.Mod():
                if isinstance(right, int) and right == 0:
                    self.fail("it divides by 0")
                try:
                    return left // right if isinstance(operation, ast.FloorDiv) else left % right
                except ShapeError as error:
                    self.fail(error.reason)
            case _:
                self.fail("only + - * // % combine sizes")
