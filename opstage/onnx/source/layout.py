"""Format Python expressions over lines, as formatters do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

WIDTH = 88


@final
@dataclass(frozen=True)
class Bracketed:
    """A bracketed expression `before(parts, …)after`: a call, tuple, list or dict; `comma` if a single part needs
    one."""

    before: str
    parts: tuple[Expression, ...]
    after: str
    comma: bool = False


@final
@dataclass(frozen=True)
class Prefixed:
    """A prefixed expression: `name=expression`, `lambda ops: expression`, `"key": expression`."""

    prefix: str
    inside: Expression


Expression: TypeAlias = "str | Bracketed | Prefixed"


def call(function: str, positional: Sequence[Expression], keywords: Sequence[tuple[str, Expression]] = ()) -> Bracketed:
    """Return a call of a function."""
    return Bracketed(f"{function}(", (*positional, *[Prefixed(f"{name}=", value) for name, value in keywords]), ")")


def tuple_of(parts: Sequence[Expression]) -> Bracketed:
    """Return a tuple."""
    return Bracketed("(", tuple(parts), ")", comma=len(parts) == 1)


def flat(expression: Expression) -> str:
    """Return the expression on one line."""
    if isinstance(expression, str):
        return expression
    if isinstance(expression, Prefixed):
        return f"{expression.prefix}{flat(expression.inside)}"
    comma = "," if expression.comma else ""
    return f"{expression.before}{', '.join(map(flat, expression.parts))}{comma}{expression.after}"


def lines(start: str, expression: Expression, indent: int, end: str = "") -> list[str]:
    """Return `start` and the expression, on one line if it fits."""
    margin = " " * indent
    whole = f"{margin}{start}{flat(expression)}{end}"
    if len(whole) <= WIDTH or isinstance(expression, str):
        return [whole]
    if isinstance(expression, Prefixed):
        return lines(f"{start}{expression.prefix}", expression.inside, indent, end)
    if not expression.parts:
        return [whole]
    head, tail = f"{margin}{start}{expression.before}", f"{margin}{expression.after}{end}"
    inside = ", ".join(map(flat, expression.parts))
    is_call = expression.before.endswith("(") and expression.before != "("
    if is_call and len(inside) + indent + 4 <= WIDTH:
        return [head, f"{margin}    {inside}", tail]
    broken = [line for part in expression.parts for line in lines("", part, indent + 4, ",")]
    return [head, *broken, tail]
