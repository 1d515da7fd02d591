"""Dims on random cases: against Python's integers, by brute force over every allowed value, and against sympy."""

from __future__ import annotations

import re
from typing import Any

import pytest
import sympy
from hypothesis import strategies as st

from opstage.ops.dims import DimExpr, DimScope, UndecidedDimError, Verdict, equal, evaluate, witness
from opstage.ops.dims.relation import build_claim
from opstage.ops.errors import ShapeError, UsageError
from tests.dims.dim_cases import (
    NAMES,
    RELATIONS,
    World,
    boxes,
    compute,
    each,
    expressions,
    extrema,
    facts,
    holds,
    named,
    polynomials,
    relations,
    sized,
    values,
    verdict_on,
    write,
)

SYMBOLS = {name: sympy.Symbol(name, integer=True, positive=True) for name in NAMES}


def same(a: Any, b: Any) -> bool:
    return a is b or (type(a) is int and type(b) is int and a == b)


# ---------------------------------------------------------------------- expressions


@sized
def test_arithmetic_is_that_of_integers(count: int) -> None:
    def check(expression: Any, envs: list[dict[str, int]]) -> None:
        computed = compute(expression, named(DimScope()))
        read = DimScope().parse(write(expression))
        for env in envs:
            assert evaluate(computed, env) == evaluate(read, env) == compute(expression, env)

    each(count, check, expressions, st.lists(values, min_size=4, max_size=4))


@sized
def test_text_parses_back_to_the_same_object(count: int) -> None:
    def check(expression: Any) -> None:
        scope = DimScope()
        for dim in (compute(expression, named(scope)), scope.parse(write(expression))):
            assert len(str(dim)) > 2000 or same(scope.parse(str(dim)), dim)
        assert scope.conditions == []

    each(count, check, expressions)


@sized
def test_polynomials_are_identical_exactly_when_sympy_says_equal(count: int) -> None:
    def check(a: Any, b: Any) -> None:
        scope = DimScope()
        difference = sympy.expand(compute(a, SYMBOLS) - compute(b, SYMBOLS))
        ours, theirs = compute(a, named(scope)), compute(b, named(scope))
        assert same(ours, theirs) == (difference == 0)
        assert isinstance(ours - theirs, int) == bool(sympy.sympify(difference).is_Integer)
        assert same(scope.parse(str(sympy.expand(compute(a, SYMBOLS)))), ours)

    each(count // 4, check, polynomials, polynomials)


def in_sympy(expression: Any) -> Any:
    if isinstance(expression, tuple) and expression[0] in ("min", "max"):
        function = sympy.Min if expression[0] == "min" else sympy.Max
        return function(in_sympy(expression[1]), in_sympy(expression[2]))
    if isinstance(expression, tuple) and expression[0] in ("//", "%"):
        left, right = in_sympy(expression[1]), in_sympy(expression[2])
        quotient = sympy.floor(sympy.Rational(1) * left / right)
        return quotient if expression[0] == "//" else left - right * quotient
    if isinstance(expression, tuple):
        sides = {"left": in_sympy(expression[1]), "right": in_sympy(expression[2])}
        return compute((expression[0], "left", "right"), sides)
    return SYMBOLS[expression] if isinstance(expression, str) else sympy.Integer(expression)


@sized
def test_values_are_those_of_sympy(count: int) -> None:
    def check(expression: Any, env: dict[str, int]) -> None:
        at = {SYMBOLS[name]: value for name, value in env.items()}
        assert evaluate(compute(expression, named(DimScope())), env) == in_sympy(expression).subs(at)

    each(count // 10, check, expressions, values)


@sized
def test_extrema_that_sympy_finds_equal_are_proved_equal(count: int) -> None:
    def check(a: Any, b: Any) -> None:
        scope = DimScope()
        if sympy.expand(in_sympy(a) - in_sympy(b)) == 0:
            assert equal(compute(a, named(scope)), compute(b, named(scope))) is Verdict.proved
        # what sympy does by its own rules leaves the value as it was
        rewritten = sympy.expand(in_sympy(a))
        text = str(rewritten).replace("Min(", "min(").replace("Max(", "max(")
        assert equal(scope.parse(text), compute(a, named(scope))) is not Verdict.refuted

    each(count // 10, check, extrema, extrema)


@sized
def test_one_object_has_one_value(count: int) -> None:
    def check(a: Any, b: Any, env: dict[str, int]) -> None:
        scope = DimScope()
        if compute(a, named(scope)) is compute(b, named(scope)):
            assert compute(a, env) == compute(b, env)

    each(count // 2, check, expressions, expressions, values)


# ---------------------------------------------------------------------- laws of extrema

LAWS = [
    "min(a, b) == min(b, a)",
    "min(a, min(b, c)) == min(min(a, b), c)",
    "max(a, max(b, c)) == max(a, b, c)",
    "min(a, a) == a",
    "min(a, b) + max(a, b) == a + b",
    "min(a + c, b + c) == min(a, b) + c",
    "max(a, b) == -min(-a, -b)",
    "3*min(a, b) == min(3*a, 3*b)",
    "min(a, max(a, b)) == a",
    "max(a, min(a, b)) == a",
    "min(a, max(b, c)) == max(min(a, b), min(a, c))",
    "min(a, b)//3 == min(a//3, b//3)",
    "max(a, b)//2 == max(a//2, b//2)",
    "min(a, b) <= a",
    "max(a, b) >= b",
    "min(a, b) <= max(b, c)",
    "a - max(a - b, 0) == min(a, b)",
]


@pytest.mark.parametrize("law", LAWS)
@sized
def test_laws_of_extrema(law: str, count: int) -> None:
    # They hold for all integers, and so for all expressions. For names they are to be proved, and never refuted.
    left, sign, right = re.split(r" ([=<>]=) ", law)
    scope = DimScope()
    assert verdict_on(scope.parse(left), sign, scope.parse(right)) is Verdict.proved

    def check(a: Any, b: Any, c: Any) -> None:
        scope = DimScope()
        trees = {"a": write(a), "b": write(b), "c": write(c)}
        sides = [re.sub(r"\b[abc]\b", lambda found: trees[found[0]], side) for side in (left, right)]
        assert verdict_on(scope.parse(sides[0]), sign, scope.parse(sides[1])) is not Verdict.refuted

    each(count // 50, check, *[polynomials] * 3)


# ---------------------------------------------------------------------- verdicts


@sized
def test_verdicts_are_sound(count: int) -> None:
    def check(relation: Any, where: list[Any], box: dict[str, tuple[int, int]]) -> None:
        world = World(box, where)
        if world.contradicted is not None:
            assert not any(holds(world.contradicted, env) for env in world.allowed)
        try:
            left, right = compute(relation[0], world.names), compute(relation[2], world.names)
        except ShapeError:
            return  # a divisor that some allowed value makes 0
        truths = [truth for env in world.allowed if (truth := holds(relation, env)) is not None]

        found = verdict_on(left, relation[1], right)
        broken_at = witness(left, relation[1], right)
        assert (broken_at is not None) == (found is Verdict.refuted)
        if found is Verdict.proved:
            assert all(truths)
        if broken_at:
            assert any(env.items() >= broken_at.items() and holds(relation, env) is False for env in world.allowed) or (
                not world.allowed
            )
        if isinstance(left, DimExpr):
            try:
                assert set(truths) <= {RELATIONS[relation[1]](left, right)}
            except UndecidedDimError:
                assert found is not Verdict.proved

    each(count, check, relations, facts, boxes)


@sized
def test_extrema_under_facts_have_the_value_of_their_arguments(count: int) -> None:
    def check(expression: Any, where: list[Any], box: dict[str, tuple[int, int]]) -> None:
        world = World(box, where)
        dim = compute(expression, world.names)
        for env in world.allowed:
            assert evaluate(dim, env) == compute(expression, env)

    each(count // 4, check, extrema, facts, boxes)


@sized
def test_the_suggested_constraint_proves_the_claim(count: int) -> None:
    def check(relation: Any, where: list[Any], box: dict[str, tuple[int, int]]) -> None:
        world = World(box, where)
        scope = world.scope
        try:
            left, right = compute(relation[0], world.names), compute(relation[2], world.names)
        except ShapeError:
            return
        if not isinstance(left, DimExpr) or not isinstance(right, DimExpr):
            return
        claim = build_claim(left.polynomial, relation[1], right.polynomial)
        reason = None
        try:
            scope.require(claim, "the sizes differ")
        except ShapeError as error:
            reason, suggested = error.reason, error.constraint
            assert suggested == scope.find_constraint(claim)
            assert (suggested is not None) == ("add where=[" in reason)
        else:
            suggested = next((condition.relation for condition in scope.conditions if condition.claim is claim), None)
        if suggested is None:
            return
        assert reason is None or reason.endswith(f'add where=["{suggested}"]')
        told = world.again()
        told.declare(suggested)
        assert verdict_on(told.parse(str(left)), relation[1], told.parse(str(right))) is Verdict.proved
        if reason is not None and world.allowed:
            assert any(holds(relation, env) for env in world.allowed)  # some allowed values satisfy it

    # a proof was found or missed with the order of terms, which was another one once the constraint was declared
    quotient = ("//", ("//", "A", ("max", "B", 2)), 1)
    where = [("A", "==", ("+", "B", quotient)), (("%", "B", "C"), "==", ("+", "B", "B"))]
    check(("B", "==", ("%", ("max", "A", 2), 2)), where, {"A": (0, 4), "B": (0, 4), "C": (1, 4)})
    each(count // 2, check, relations, facts, boxes)


@sized
def test_conditions_say_all_that_was_required(count: int) -> None:
    def check(required: list[Any], box: dict[str, tuple[int, int]]) -> None:
        world = World(box, [(("*", "A", "A"), "<=", ("*", 6, "B"))])
        undecided = []
        for relation in required:
            try:
                left, right = compute(relation[0], world.names), compute(relation[2], world.names)
                if isinstance(left, DimExpr) and isinstance(right, DimExpr):
                    world.scope.require(build_claim(left.polynomial, relation[1], right.polynomial), "")
                    undecided.append(relation)
            except (ShapeError, UsageError):
                pass
        for env in world.allowed:
            if all(condition.holds(env) for condition in world.scope.conditions):
                assert all(holds(relation, env) is not False for relation in undecided)

    each(count // 4, check, st.lists(relations, min_size=1, max_size=5), boxes)


@sized
def test_facts_are_read_back_from_their_texts(count: int) -> None:
    def check(relation: Any, where: list[Any], box: dict[str, tuple[int, int]]) -> None:
        world = World(box, where)
        if all(len(fact.relation) < 2000 for fact in world.scope.facts):
            assert [fact.relation for fact in world.again().facts] == [fact.relation for fact in world.scope.facts]

    each(count // 4, check, relations, facts, boxes)
