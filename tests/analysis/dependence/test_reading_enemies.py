"""Programs made to break dependence: indices that wrap around or are rounded, sums of nothing, writes that collide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import opstage
from opstage import Spec, derived
from opstage.analysis.dependence import layout as layout
from opstage.analysis.dependence.cuts import EXACT_INDICES
from tests.analysis.dependence.oracle import FLOAT64, violations

Program = Callable[..., Any]


class Enemy(NamedTuple):
    """A program, and the arrays that it runs at."""

    program: Program
    arrays: list[Any]


def normal(*shape: int) -> Any:
    return np.random.default_rng(0).normal(size=shape)


def ints(*values: Any) -> Any:
    return np.array(values, np.int64)


def places(ops: Any, dtype: str, count: int = 8) -> Any:
    return ops.iota(shape=(count,), axis=0, dtype=dtype)


def where(test: Callable[[Any], Any]) -> Program:
    """x where a test of its places holds, else 0."""
    return lambda ops, x: ops.select(test(ops), x, ops.full(shape=x.shape, value=0.0))


def full(ops: Any, value: float, dtype: str) -> Any:
    return ops.full(shape=(8,), value=value, dtype=dtype)


def is_negative(ops: Any, p: Any) -> Any:
    """Whether the first of some numbers is below 0."""
    first = ops.reshape(ops.slice(p, axis=0, start=0, length=1), shape=())
    return ops.less(first, ops.full(shape=(), value=0.0))


COLLIDING = ints([1, 2], [1, 2], [0, 1])
SHIFTED = {
    "exclusive": {"exclusive": True},
    "in reverse": {"reverse": True},
    "exclusive in reverse": {"exclusive": True, "reverse": True},
}
ENEMIES: dict[str, Enemy] = {
    # Positions that their dtype does not hold
    "float32 rounds the places": Enemy(
        where(lambda ops: ops.equal(places(ops, "float32") + 1e8, full(ops, 1e8, "float32"))), [normal(8)]
    ),
    "float64 rounds the places": Enemy(
        where(lambda ops: ops.equal(places(ops, "float64") + 2.0**53, full(ops, 2.0**53, "float64"))), [normal(8)]
    ),
    "float32 rounds the number that they are compared with": Enemy(
        where(lambda ops: ops.less(places(ops, "float32"), full(ops, 2.0**24 + 1, "float32") - 2.0**24)), [normal(8)]
    ),
    "places that wrap around": Enemy(
        lambda ops, x: ops.gather_rows(x, places(ops, "int32", 4) * 2**30 * 4 + places(ops, "int32", 4)), [normal(8)]
    ),
    "a cast that wraps around": Enemy(
        where(lambda ops: ops.equal(ops.cast(places(ops, "int64") + 2**33, dtype="int32"), full(ops, 3, "int32"))),
        [normal(8)],
    ),
    "a number that float32 rounds": Enemy(
        lambda ops, x: [full(ops, 0.1, "float32"), ops.pad(ops.cast(x, dtype="float32"), padding=((1, 1),), value=0.1)],
        [normal(8)],
    ),
    # Rows read and written
    "rows in reverse": Enemy(lambda ops, x: ops.gather_rows(x, 7 - places(ops, "int64")), [normal(8)]),
    "rows that are not there": Enemy(
        lambda ops, x: ops.gather_rows(x, places(ops, "int64") - 3, mode="zero"), [normal(8)]
    ),
    "indices of two axes": Enemy(
        lambda ops, x: derived.gather_nd(
            ops, x, ops.stack([ops.iota(shape=(3, 4), axis=0), 3 - ops.iota(shape=(3, 4), axis=1)], axis=2)
        ),
        [normal(3, 4)],
    ),
    **{
        f"colliding writes, {how}": Enemy(
            lambda ops, x, v, how=how: derived.scatter_nd(ops, x, ops.const(COLLIDING), v, reduce=how),
            [normal(3, 4), normal(3)],
        )
        for how in ("set", "add", "mul", "max", "min")
    },
    "writes at given places": Enemy(
        lambda ops, x, at, v: derived.put_along_axis(ops, x, at, v, axis=0, reduce="set"),
        [normal(3), ints(1, 1, 1, 1), normal(4)],
    ),
    # Running sums, groups, statistics
    **{
        f"a running {name} {how}": Enemy(
            lambda ops, x, op=op, more=more: getattr(ops, op)(x, axis=0, **more), [normal(5)]
        )
        for how, more in SHIFTED.items()
        for name, op in (("sum", "cumsum"), ("product", "cumprod"))
    },
    "a running sum of one": Enemy(lambda ops, x: ops.cumsum(x, axis=0, exclusive=True), [normal(1)]),
    "a recurrence in reverse": Enemy(
        lambda ops, a, b: ops.linear_recurrence(a, b, axis=0, reverse=True), [normal(5), normal(5)]
    ),
    "a recurrence of nothing but factors": Enemy(
        lambda ops, a: ops.linear_recurrence(a, ops.full(shape=(5,), value=0.0), axis=0), [normal(5)]
    ),
    "products of groups": Enemy(
        lambda ops, x, w, ends: ops.grouped_matmul(x, w, ends), [normal(4, 3), normal(2, 3, 2), ints(2, 4)]
    ),
    "products of groups, one of which is empty": Enemy(
        lambda ops, x, w: ops.grouped_matmul(x, w, ops.const(ints(0, 4))), [normal(4, 3), normal(2, 3, 2)]
    ),
    "outer products of groups": Enemy(
        lambda ops, x, g, ends: ops.grouped_outer(x, g, ends), [normal(4, 3), normal(4, 2), ints(2, 4)]
    ),
    "statistics of a batch": Enemy(lambda ops, x: list(ops.batch_norm(x, None, None)), [normal(3, 2, 2)]),
    # Choices and loops
    "a choice by a number": Enemy(
        lambda ops, p, x: ops.cond(is_negative(ops, p), lambda ops, x: x, lambda ops, x: -x, x), [normal(3), normal(4)]
    ),
    "a choice of constants": Enemy(
        lambda ops, p, x: ops.cond(is_negative(ops, p), lambda ops, x: x * 0 + 1, lambda ops, x: x * 0, x),
        [normal(3), normal(4)],
    ),
    "a choice of draws": Enemy(
        lambda ops, p, x: ops.cond(
            is_negative(ops, p),
            lambda ops, x: ops.rand_uniform(shape=x.shape),
            lambda ops, x: ops.rand_normal(shape=x.shape),
            x,
        ),
        [normal(3), normal(4)],
    ),
    "a loop as long as its numbers are small": Enemy(
        lambda ops, x: ops.while_loop(
            lambda ops, c: ops.less(ops.reduce_sum(c, axis=0), ops.full(shape=(), value=100.0)),
            lambda ops, c: c * 2 + 1,
            ops.abs(x),
        ),
        [normal(4)],
    ),
    "carries that change places": Enemy(
        lambda ops, x: ops.scan(
            lambda ops, c, e: ((c[1], e), c[0]), (ops.full(shape=(), value=0.0), ops.full(shape=(), value=0.0)), x
        )[1],
        [normal(5)],
    ),
}


def found_wrong(program: Program, arrays: list[Any]) -> list[str]:
    report = opstage.check(program, *[Spec(a.shape, a.dtype) for a in arrays], options=FLOAT64)
    assert report.ok, report
    step = [np.asarray(3)] * (len(report.program.body.inputs) - len(arrays))
    return [
        each
        for operand, array in enumerate(arrays)
        for axis in range(array.ndim)
        for each in violations(report.program.body, [*arrays, *step], operand=operand, axis=axis)
    ]


@pytest.mark.parametrize("name", ENEMIES)
def test_an_enemy_reads_what_its_fact_says(name: str) -> None:
    assert found_wrong(*ENEMIES[name]) == []


def test_a_sum_of_no_nans_is_0() -> None:
    def program(ops: Any, x: Any) -> Any:
        return ops.reduce_sum(ops.full(shape=x.shape, value=float("nan")), axis=1)

    report = opstage.check(program, Spec("B T", where=("T >= 0",)), options=FLOAT64)
    symbolic = report.program.body
    dim = symbolic.types[symbolic.inputs[0]].shape[1]
    for at in ({"B": 2, "T": 0}, {"B": 2, "T": 3}):
        body, x = report.at(**at).program.body, normal(at["B"], at["T"])
        assert violations(body, [x], named=[(0, 1)], types=symbolic, sizes=at, dim=dim) == []


@pytest.mark.parametrize(
    ("dtype", "factor", "noted"), [("int64", 1, False), ("int64", 2**40, True), ("int32", 1, True)]
)
def test_positions_of_any_size_are_taken_for_exact_with_a_note(dtype: str, factor: int, noted: bool) -> None:
    def program(ops: Any, x: Any) -> Any:
        at = ops.iota(shape=(x.shape[0],), axis=0, dtype=dtype) * factor
        return ops.select(ops.less(at, ops.full(shape=at.shape, value=5, dtype=dtype)), x, 0 * x)

    (verdict,) = opstage.check(program, Spec("T"), options=FLOAT64, claims=["causal:T"]).claims
    assert verdict.state == "proved" and (EXACT_INDICES in verdict.assumptions) == noted
