"""Dims: their canonical form, their text, what they refuse, and the functions on them."""

from __future__ import annotations

import bisect
import collections
import copy
import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from opstage.ops.dims import (
    UNKNOWN,
    DimScope,
    MissingSizeError,
    SymbolicDimError,
    UndecidedDimError,
    UnknownDimError,
    Verdict,
    at_most,
    equal,
    evaluate,
    exact_div,
    floor_div,
    is_one,
    is_zero,
    maximum,
    minimum,
    prod,
    require_at_most,
    require_divides,
    require_equal,
)
from opstage.ops.errors import ShapeError, UsageError
from opstage.ops.types import FLOAT32, TensorType
from tests.dims.dim_cases import dims

# ---------------------------------------------------------------------- canonical form


def test_divisible_parts_are_pulled_out() -> None:
    _, n, h, k, t = dims("N H K T")
    assert (2 * n + 3) // 2 is n + 1
    assert (n * h) // h is n
    assert (t + 1 - 1) // 1 is t
    assert (n * h + k) // h is n + k // h
    assert (n * h * k) // (h * k) is n
    assert (n * n - 1) // (n + 1) is n - 1
    assert (2 * n) // (2 * h) is n // h
    assert (n * h) // (k * h) is n // k
    assert (n - n) // h == 0
    assert type(n // n) is int and n // n == 1
    assert n % 1 == 0 and (6 * n) % 3 == 0 and (n * h) % h == 0


def test_nested_quotients_merge() -> None:
    _, n, h = dims("N H")
    assert (n // 2) // 3 is n // 6
    assert (n // 2 + h) // 3 is (n + 2 * h) // 6
    assert (n // h) // 2 is n // (2 * h)
    assert (n % 3) % 3 is n % 3
    assert (n % 6) % 3 is n % 3
    assert (n % 3) // 3 == 0


def test_convolution_sizes_read_well() -> None:
    _, h = dims("H")
    assert str((h + 2 * 1 - 3) // 1 + 1) == "H"
    assert str((h + 2 * 1 - 3) // 2 + 1) == "(H + 1)//2"
    assert str(((h - 2) // 2 + 1 - 2) // 2 + 1) == "H//4"


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("1 + T*B", "B*T + 1"),
        ("N//3*3", "3*(N//3)"),
        ("-N + 3", "3 - N"),
        ("N*N*2", "2*N**2"),
        ("N**2 - 2*N", "N**2 - 2*N"),
        ("-(N + 1)", "-N - 1"),
        ("N % 3", "N - 3*(N//3)"),
        ("(N + 1)//2//H", "(N + 1)//(2*H)"),
        ("N//(H*K)", "N//(H*K)"),
        ("2*3 + 4", "10"),
        ("+N", "N"),
    ],
)
def test_text(text: str, canonical: str) -> None:
    assert str(DimScope().parse(text)) == canonical


def test_expressions_are_interned_per_scope() -> None:
    scope, n = dims("N")
    assert n is scope.parse("2*N - N") and n - 1 is not n - 2 and -1 * n is not -2 * n
    assert n is not DimScope().dim("N")


LOOKUPS: dict[str, Callable[[Any], object]] = {
    "in a set": lambda t: t in {224, 256},
    "in a frozenset": lambda t: t in frozenset((224, 256)),
    "dict.get": lambda t: {1: "one"}.get(t),
    "in a dict": lambda t: t in {1: "one"},
    "a dict's key": lambda t: {t: "size"},
    "a shape in a set": lambda t: (t, 3) in {(224, 3)},
    "a type in a set": lambda t: TensorType((t,), FLOAT32) in {TensorType((224,), FLOAT32)},
    "a cache": functools.lru_cache(lambda t: t),
    "a Counter": lambda t: collections.Counter([t, 224]),
    "a set of sizes": lambda t: len({t, 224}),
    "a real in a set": lambda t: t / 2 in {112.0},
    "hash": hash,
    "a match on a mapping": lambda t: match_key({224: "found"}, t),
    "a dataclass in a set": lambda t: Sized(t) in {Sized(224)},
}
COMPARISONS: dict[str, Callable[[Any], object]] = {
    "in a tuple": lambda t: t in (224, 256),
    "in a list": lambda t: [224, 256].index(t),
    "in a range": lambda t: t in range(1, 9),
    "count": lambda t: (224, 256).count(t),
    "match": lambda t: match_value(t),
    "max": lambda t: max(t, 8),
    "min": lambda t: min(8, t),
    "sorted": lambda t: sorted([t, 8]),
    "bisect": lambda t: bisect.bisect([1, 8], t),
    "a float": lambda t: t == 224.0,
    "a Fraction": lambda t: t == Fraction(224),
    "a Fraction, reflected": lambda t: Fraction(224) == t,
    "float32": lambda t: np.float32(224) == t,
    "int64": lambda t: np.int64(224) == t,
    "a NumPy scalar": lambda t: t == np.array(224),
    "a tuple of sizes": lambda t: (t, 3) == (224, 3),
    "a half": lambda t: t / 2 == 112,
    "a half, unequal": lambda t: t / 2 != 112,
    "half of two": lambda t: t / 2 == 1 / t,
    "a half in a tuple": lambda t: t / 2 in (112.0, 128.0),
    "the truth of a difference": lambda t: bool(t - 1),
    "a remainder": lambda t: t % 2 == 0,
}


@dataclass(frozen=True)
class Sized:
    size: Any


def match_value(t: Any) -> bool:
    match t:
        case 224:
            return True
    return False


def match_key(mapping: dict[int, str], t: Any) -> bool:
    return mapping[t] == "found"


@pytest.mark.parametrize("lookup", LOOKUPS.values(), ids=list(LOOKUPS))
def test_looking_up_an_open_size_is_an_error(lookup: Callable[[Any], object]) -> None:
    with pytest.raises(UndecidedDimError, match=r"Compare it, as in `size in \(224, 256\)`"):
        lookup(DimScope().dim("T"))


@pytest.mark.parametrize("comparison", COMPARISONS.values(), ids=list(COMPARISONS))
def test_comparing_an_open_size_is_an_error(comparison: Callable[[Any], object]) -> None:
    with pytest.raises(UndecidedDimError, match="not decided"):
        comparison(DimScope().dim("T"))


def test_what_is_decided_of_a_declared_size() -> None:
    _, t = dims("T", "T == 224")
    assert t in (224, 256) and t not in (1, 2) and t == Fraction(224) and t == np.float32(224) and t != 224.5
    assert t not in (None, "224") and f"{t}" == "T" and divmod(t, 1) == (t, 0)
    with pytest.raises(UndecidedDimError):
        t in {224}  # noqa: B015


# ---------------------------------------------------------------------- what a dim is not


def test_scopes_do_not_mix() -> None:
    ours, theirs = DimScope().dim("M"), DimScope().dim("N")
    actions: list[Callable[[], object]] = [
        lambda: ours + theirs,
        lambda: theirs // ours,
        lambda: ours == theirs,
        lambda: ours < theirs,
        lambda: equal(ours, theirs),
        lambda: ours / theirs,
    ]
    for action in actions:
        with pytest.raises(UsageError, match="come from different scopes"):
            action()


@pytest.mark.parametrize("use", [operator.index, int, float, range, lambda t: [1, 2][t], lambda t: np.zeros((t, 2))])
def test_a_symbolic_dim_is_no_number(use: Callable[[Any], object]) -> None:
    with pytest.raises(TypeError):
        use(DimScope().dim("T"))
    if use is not float:
        with pytest.raises(SymbolicDimError, match="T is symbolic"):
            operator.index(DimScope().dim("T"))


def test_dims_are_immutable_and_copy_to_themselves() -> None:
    dim = DimScope().dim("T")
    with pytest.raises(AttributeError, match="immutable"):
        dim.scope = DimScope()
    assert copy.copy(dim) is dim and copy.deepcopy((dim, 3))[0] is dim


def test_other_operands_are_python_s_own_errors() -> None:
    dim = DimScope().dim("T")
    with pytest.raises(TypeError, match="unsupported operand"):
        dim + "1"
    with pytest.raises(TypeError, match="not supported between"):
        operator.lt(dim, "1")
    with pytest.raises(TypeError, match="unsupported operand"):
        dim // 2.0
    assert (dim == "T") is False and (dim == None) is False and dim != "T"  # noqa: E711  # the operator is under test
    assert (dim == 2.5) is False


def test_numpy_integers_are_ints() -> None:
    _, t = dims("T")
    assert np.int64(3) * t is 3 * t
    assert t + np.int64(3) is t + 3
    assert equal(np.int64(3), 3) is Verdict.proved
    require_equal(np.int64(3), 3, "unused")
    with pytest.raises(UsageError, match="a dim is an int or a symbolic expression, not 'B'"):
        equal("B", 3)


def test_division_by_zero() -> None:
    t = DimScope().dim("T")
    for divide in (lambda: t // 0, lambda: t % 0, lambda: floor_div(3, 0), lambda: 3 // (t - t)):
        with pytest.raises((ShapeError, ZeroDivisionError)):
            divide()
    with pytest.raises(ShapeError, match="T is divided by 0; a divisor of a size must be at least 1"):
        t // 0


def test_a_symbolic_divisor_must_be_positive() -> None:
    scope, t = dims("T")
    with pytest.raises(ShapeError, match=r'8 is divided by T - 5, which must be at least 1; .*where=\["T >= 6"\]'):
        8 // (t - 5)
    scope.declare("T >= 6")
    assert str(8 // (t - 5)) == "8//(T - 5)"
    assert evaluate(8 // (t - 5), {"T": 7}) == 4
    with pytest.raises(ShapeError, match=r"undefined at T=5: 8//\(T - 5\) divides by 0"):
        evaluate(8 // (t - 5), {"T": 5})


# ---------------------------------------------------------------------- functions of dims


def test_products_and_divisions() -> None:
    _, b, t, h = dims("B T H")
    assert prod(()) == 1 and prod((3, 4)) == 12 and prod((b, t, 2)) is 2 * b * t
    assert floor_div(7, 2) == 3 and floor_div(b, 1) is b
    assert exact_div(12, 4, "unused") == 3 and exact_div(6 * h, 3, "unused") is 2 * h
    with pytest.raises(ShapeError, match="no heads"):
        exact_div(12, 5, "no heads")
    with pytest.raises(ShapeError, match=r'no heads; fails at T=2; add where=\["T % 3 == 0"\]'):
        exact_div(t, 3, lambda: "no heads")
    assert divmod(t, 2) == (t // 2, t % 2) and 7 % t is 7 - t * (7 // t)


def test_extrema_of_what_is_decided() -> None:
    scope, t, b = dims("T B")
    assert maximum(2, 5) == 5 and minimum(2, 5) == 2
    assert maximum(t, t + 1) is t + 1 and minimum(t + 1, t) is t
    assert maximum(t, 0) is t and minimum(1, t) == 1
    assert maximum(UNKNOWN, t) is UNKNOWN and minimum(t, UNKNOWN) is UNKNOWN
    scope.declare("T <= B")
    assert maximum(t, b) is b and minimum(t, b, 1) == 1 and minimum(b, t, b + 1) is t
    with pytest.raises(UsageError, match="needs at least one dim"):
        maximum()


def test_one_and_zero_are_literal() -> None:
    _, t = dims("T", "T == 1")
    assert is_one(1) and not is_one(t) and not is_one(2)
    assert is_zero(0) and not is_zero(t - 1) and is_zero(t - t)


def test_evaluate_goes_into_tuples_and_leaves_the_rest() -> None:
    _, b, t = dims("B T")
    assert evaluate((b, (t + 1, 3)), {"B": 2, "T": 4}) == (2, (5, 3))
    assert evaluate("sum", {}) == "sum" and evaluate(None, {}) is None and evaluate(7, {}) == 7
    with pytest.raises(MissingSizeError, match="the value of dim T is missing; values were given for: B"):
        evaluate(b * t, {"B": 2})
    assert issubclass(MissingSizeError, KeyError) and issubclass(MissingSizeError, UsageError)


# ---------------------------------------------------------------------- the unknown dim


def test_unknown_absorbs_and_satisfies() -> None:
    scope, t = dims("T")
    for combined in (
        UNKNOWN + 1,
        1 - UNKNOWN,
        t * UNKNOWN,
        UNKNOWN * t,
        t // UNKNOWN,
        UNKNOWN % 3,
        -UNKNOWN,
        UNKNOWN**2,
    ):
        assert combined is UNKNOWN
    assert str(UNKNOWN) == "?" and prod((t, UNKNOWN)) is UNKNOWN
    assert equal(UNKNOWN, 3) is equal(t, UNKNOWN) is at_most(5, UNKNOWN) is Verdict.proved
    require_equal(UNKNOWN, 3, "unused")
    require_at_most(UNKNOWN, t, "unused")
    require_divides(3, UNKNOWN, "unused")
    assert exact_div(UNKNOWN, 3, "unused") is UNKNOWN
    assert UNKNOWN == 3 and t == UNKNOWN and UNKNOWN < 1 and UNKNOWN > 1 and bool(UNKNOWN)
    assert not operator.ne(UNKNOWN, t)
    assert not is_one(UNKNOWN) and scope.conditions == []
    for use in (lambda: evaluate((UNKNOWN,), {}), lambda: int(UNKNOWN), lambda: float(UNKNOWN), lambda: range(UNKNOWN)):
        with pytest.raises(UnknownDimError, match="an earlier error left the size unknown"):
            use()


# ---------------------------------------------------------------------- reading text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("N/3", "sizes divide with //"),
        ("N//0", "divides by 0"),
        ("N//(M - M)", "divides by 0"),
        ("N +", "write names, integers"),
        ("N == 3", "a size is wanted here, not a comparison"),
        ("N**-1", "combine sizes"),
        ("N**99", "an exponent is an integer from 0 to 16"),
        ("N**M", "combine sizes"),
        ("f(N)", "neither a name, an integer"),
        ("N.shape", "neither a name, an integer"),
        ("1.5*N", "neither a name, an integer"),
        ("True", "neither a name, an integer"),
        ("", "write names, integers"),
        ("(" * 500 + "N" + ")" * 500, "write names, integers"),
        ("N+" * 2000 + "N", "longer than"),
    ],
)
def test_bad_expressions_say_what_is_wrong(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match="cannot read the dim expression") as caught:
        DimScope().parse(text)
    assert reason in str(caught.value)


def test_names_are_identifiers() -> None:
    scope = DimScope()
    for name in ("", "2D", "a b", "for", "N'"):
        with pytest.raises(UsageError, match="cannot name a dim"):
            scope.dim(name)
    assert scope.dim("N") is scope.dim("N") and scope.parse("seq_len*N") is scope.dim("seq_len") * scope.dim("N")
    assert scope.names == ("N", "seq_len")
