"""Random expressions in dims, relations and facts, as trees, and what they mean by Python's own integers."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opstage.ops.dims import DimExpr, DimScope, Verdict, at_most, equal, maximum, minimum
from opstage.ops.errors import UsageError
from tests.searches import MARKS, share

NAMES = ("A", "B", "C")
OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "min": lambda a, b: minimum(a, b) if isinstance(a, DimExpr) or isinstance(b, DimExpr) else min(a, b),
    "max": lambda a, b: maximum(a, b) if isinstance(a, DimExpr) or isinstance(b, DimExpr) else max(a, b),
}
RELATIONS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "<=": operator.le,
    "<": operator.lt,
    ">=": operator.ge,
    ">": operator.gt,
}


def dims(names: str, *facts: str) -> tuple[Any, ...]:
    """A new scope, and its dims of these names, of which the facts hold."""
    scope = DimScope()
    found = [scope.dim(name) for name in names.split()]
    for fact in facts:
        scope.declare(fact)
    return scope, *found


# An expression is a name, an int, or (operation, left, right); divisors are nonzero ints or positive expressions.
leaves = st.sampled_from(NAMES) | st.integers(-4, 9)
divisors = st.sampled_from(
    (1, 2, 3, 4, 6, 12, -2, -3, *NAMES, ("+", "A", "B"), ("+", "C", 2), ("*", "A", 2), ("min", "A", 3), ("max", "B", 2))
)
polynomials = st.recursive(leaves, lambda inner: st.tuples(st.sampled_from("+-*"), inner, inner), max_leaves=8)
_EXTREMA = ("min", "max")
extrema = st.recursive(
    leaves, lambda inner: st.tuples(st.sampled_from(("+", "-", "*", *_EXTREMA, *_EXTREMA)), inner, inner), max_leaves=6
)
expressions = st.recursive(
    leaves,
    lambda inner: (
        st.tuples(st.sampled_from(("+", "-", "*", *_EXTREMA)), inner, inner)
        | st.tuples(st.sampled_from(("//", "%")), inner, divisors)
    ),
    max_leaves=8,
)
values = st.fixed_dictionaries({name: st.integers(1, 40) for name in NAMES})

relations = st.tuples(expressions, st.sampled_from(list(RELATIONS)), expressions)
congruences = st.tuples(
    st.tuples(st.just("%"), st.sampled_from((*NAMES, ("+", "A", "B"))), st.sampled_from((2, 3, 4, "C"))),
    st.just("=="),
    st.integers(0, 1),
)
_RIGHT_SIDES = (("*", "B", "C"), ("+", "B", "C"), ("*", 2, "B"), ("min", "B", "C"), ("max", "C", 4), ("*", 2, "C"))
products = st.tuples(st.sampled_from(NAMES[:2]), st.just("=="), st.sampled_from(_RIGHT_SIDES))
facts = st.lists(relations | congruences | products, max_size=2)
boxes = st.fixed_dictionaries(dict.fromkeys(NAMES, st.tuples(st.integers(0, 2), st.integers(4, 6))))
"""For each name a low and a high end."""

sized = pytest.mark.parametrize("count", [80, pytest.param(share(10_000), marks=MARKS)])
"""Some cases by default, and thousands of the same kind where there is time."""


def each(count: int, property_: Callable[..., None], *strategies: Any) -> None:
    """Hold a property against `count` cases, the same ones in every run."""
    settings(derandomize=True, deadline=None, database=None, max_examples=count)(given(*strategies)(property_))()


def compute(expression: Any, env: dict[str, Any]) -> Any:
    """The value of an expression tree by Python's operators on whatever `env` holds."""
    if isinstance(expression, str):
        return env[expression]
    if isinstance(expression, int):
        return expression
    operation, left, right = expression
    return OPERATIONS[operation](compute(left, env), compute(right, env))


def named(scope: DimScope) -> dict[str, Any]:
    return {name: scope.dim(name) for name in NAMES}


def write(expression: Any) -> str:
    """An expression tree as text, every operation in parentheses."""
    if not isinstance(expression, tuple):
        return f"({expression})"
    operation, left, right = expression
    if operation in _EXTREMA:
        return f"{operation}({write(left)}, {write(right)})"
    return f"({write(left)} {operation} {write(right)})"


def is_defined(expression: Any, env: dict[str, int]) -> bool:
    """Whether no symbolic divisor in the tree is below 1."""
    if not isinstance(expression, tuple):
        return True
    operation, left, right = expression
    if not (is_defined(left, env) and is_defined(right, env)):
        return False
    return operation not in ("//", "%") or isinstance(right, int) or compute(right, env) >= 1


def holds(relation: Any, env: dict[str, int]) -> bool | None:
    """The truth of a relation by Python's integers; None where it is undefined."""
    left, sign, right = relation
    if not (is_defined(left, env) and is_defined(right, env)):
        return None
    return RELATIONS[sign](compute(left, env), compute(right, env))


def verdict_on(left: Any, sign: str, right: Any) -> Verdict:
    strict = 1 if sign in ("<", ">") else 0
    if sign == "==":
        return equal(left, right)
    return at_most(left + strict, right) if sign in ("<=", "<") else at_most(right + strict, left)


class World:
    """A scope whose names have small ranges and about which some facts were declared, beside every allowed value."""

    def __init__(self, box: dict[str, tuple[int, int]], where: Iterable[Any]):
        self.scope = DimScope()
        self.names = named(self.scope)
        self.constraints: list[str] = []
        self.contradicted: Any = None
        ranges = [range(low, high + 1) for low, high in box.values()]
        self.allowed = [dict(zip(box, point, strict=True)) for point in itertools.product(*ranges)]
        for name, (low, high) in box.items():
            self._declare(f"{low} <= {name} <= {high}")
        for fact in where:
            try:
                self._declare(f"{write(fact[0])} {fact[1]} {write(fact[2])}")
            except UsageError as error:
                if "cannot be satisfied" in str(error) or "never holds" in str(error):
                    self.contradicted = fact
                else:
                    assert "always holds" in str(error) or "cannot read" in str(error)
            else:
                self.allowed = [env for env in self.allowed if holds(fact, env)]

    def _declare(self, constraint: str) -> None:
        self.scope.declare(constraint)
        self.constraints.append(constraint)

    def again(self) -> DimScope:
        """Another scope of the same names and facts, read from their texts."""
        scope = DimScope()
        named(scope)
        for fact in self.scope.facts:
            scope.declare(fact.relation)
        return scope
