"""Parse dims from text: `B*T + 1`, `N//3`, `min(T, 8)`, and constraints such as `1 <= B <= 64` or `N % 3 == 0`."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import NoReturn

from ..errors import ShapeError, UsageError
from ..untrusted import brief, depth_of
from .arithmetic import written_extremum
from .expression import Dim, DimExpr
from .polynomial import MOST_BITS

_RELATIONS: dict[type[ast.cmpop], str] = {ast.Eq: "==", ast.LtE: "<=", ast.Lt: "<", ast.GtE: ">=", ast.Gt: ">"}
LARGEST_SIZE = 2**63 - 1
"""The longest axis of any array."""

_MOST_CHARACTERS = 2000
_MOST_TERMS = 512
_MOST_DIGITS = 100
_LONGEST_REASON = 300
_LARGEST_POWER = 16
_DEEPEST = 50  # nesting of parentheses, calls and signs
_NUMBER = re.compile(r"(?<![\w.])\d\w*")
_FOREIGN = re.compile(r"[^\w\s+\-*/%(),<=>!.]")


def parse_expression(text: str, name: Callable[[str], Dim]) -> Dim:
    """Return the dim that `text` denotes; `name` returns the dim of a name. Raises `UsageError`."""
    reader = _DimReader(text, "dim expression", name)
    tree = reader.tree()
    if isinstance(tree, ast.Compare):
        reader.fail("a size is wanted here, not a comparison")
    size = reader.read(tree)
    if isinstance(size, int) and abs(size) > LARGEST_SIZE:
        reader.fail(f"the size is {brief(size)}, and the largest is {LARGEST_SIZE}")
    return size


def parse_relations(text: str, name: Callable[[str], Dim]) -> list[tuple[Dim, str, Dim]]:
    """Return the relations (left, operator, right) of a constraint; `1 <= B <= 64` has two. Raises `UsageError`."""
    reader = _DimReader(text, "constraint", name)
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
    """Split a text at separators outside parentheses: `B min(T, 8)` has two parts, split at blanks."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if character in separators and depth <= 0:
            parts.append(text[start:position])
            start = position + 1
    parts.append(text[start:])
    return [stripped for part in parts if (stripped := part.strip())]


_COMBINED = "only + - * // % combine sizes, and ** with a number on its right"
_ALLOWED = "write names, integers, + - * // %, min, max, parentheses"


class _DimReader:
    """Evaluates the syntax tree of one text."""

    def __init__(self, text: str, kind: str, name: Callable[[str], Dim]):
        self.text = text
        self.kind = kind
        self.name = name

    def fail(self, reason: str) -> NoReturn:
        raise UsageError(f"cannot read the {self.kind} {brief(self.text)}: {reason}")

    def tree(self) -> ast.expr:
        if len(self.text) > _MOST_CHARACTERS:
            self.fail(f"it is longer than {_MOST_CHARACTERS} characters")
        for number in _NUMBER.findall(self.text):
            if not number.isdecimal():
                self.fail(f"{brief(number)} is neither a number nor a name")
            if len(number) > _MOST_DIGITS:
                self.fail(f"a number in it has {len(number):,} digits, and at most {_MOST_DIGITS} are read")
        if _FOREIGN.search(self.text):
            self.fail(_ALLOWED)
        try:
            tree = ast.parse(" ".join(self.text.split()), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            self.fail(_ALLOWED)
        if depth_of(tree) > _DEEPEST:
            self.fail(f"it is nested deeper than {_DEEPEST} levels")
        return tree

    def read(self, node: ast.expr) -> Dim:
        try:
            return self._read(node)
        except ShapeError as error:
            self.fail(error.reason if len(error.reason) <= _LONGEST_REASON else f"{error.reason[:_LONGEST_REASON]}...")

    def _read(self, node: ast.expr) -> Dim:
        """Return the dim of a node. A sum of many terms is one level: its syntax tree is as deep as it is long."""
        following = []
        while isinstance(node, ast.BinOp) and not isinstance(node.op, ast.Pow):
            following.append((node.op, node.right))
            node = node.left
        result = self._operand(node)
        for operation, right in reversed(following):
            result = self.modest(self.combine(result, operation, self._read(right)))
        return result

    def modest(self, size: Dim) -> Dim:
        """Check the size of a combined number, since numbers only grow here; `polynomial` limits expressions."""
        if isinstance(size, DimExpr):
            if len(size.polynomial) > _MOST_TERMS:
                self.fail(f"it has more than {_MOST_TERMS} terms when it is multiplied out")
        elif size.bit_length() > MOST_BITS:
            self.fail("a number in it has hundreds of digits when it is worked out")
        return size

    def _operand(self, node: ast.expr) -> Dim:
        match node:
            case ast.Name(id=name):
                return self.name(name)
            case ast.Constant(value=int() as value) if not isinstance(value, bool):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self._read(operand)
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self._read(operand)
            case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int() as exponent)):
                if not 0 <= exponent <= _LARGEST_POWER:
                    self.fail(f"an exponent is an integer from 0 to {_LARGEST_POWER}")
                power: Dim = self._read(left) ** exponent
                return self.modest(power)
            case ast.BinOp(op=ast.Pow()):
                self.fail(_COMBINED)
            case ast.Call(func=ast.Name(id=("min" | "max") as function), args=[_, *_] as arguments, keywords=[]):
                least = written_extremum([self._read(argument) for argument in arguments], function == "max")
                return self.modest(least)
            case _:
                part = ast.get_source_segment(" ".join(self.text.split()), node) or self.text
                self.fail(f"{brief(part)} is neither a name, an integer, min, max nor one of + - * // %")

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
                return left // right if isinstance(operation, ast.FloorDiv) else left % right
            case _:
                self.fail(_COMBINED)
