"""Every algebraic identity: what it leaves, bit for bit on zeros of either sign, infinities and nan.

The programs are run as they were recorded and as they are simplified; NumPy's kernels are the oracle.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from opstage.interpreters.graph.passes.identities import simplify
from opstage.interpreters.graph.passes.pipeline import dead_code
from opstage.ops.dims import DimScope
from opstage.ops.types import INT32, INT64, TensorType
from tests.graph.passes_common import assert_same, graph_of, names, passed

VALUES = np.array([[0.0, -0.0, 1.0, -1.0], [np.inf, -np.inf, np.nan, 0.5], [1e-38, -1e-45, 3e38, -2.75]], np.float32)
OTHERS = VALUES.reshape(-1)[::-1].reshape(VALUES.shape).copy()
Program = Callable[..., Any]


def full(ops: Any, x: Any, value: Any) -> Any:
    return ops.full(shape=x.shape, value=value, dtype=x.dtype)


def mask(ops: Any, x: Any, value: bool) -> Any:
    return ops.full(shape=x.shape, value=value, dtype="bool")


def simplified(program: Program, count: int = 1) -> list[str]:
    """The ops that are left; the values are compared bit for bit."""
    graph = graph_of(program, *[VALUES.shape] * count)
    after = passed(lambda body: dead_code(simplify(body)), graph)
    assert_same(graph, after, [VALUES, OTHERS][:count])
    assert_same(graph, after, [OTHERS, VALUES][:count])
    return names(after)


def permuted_twice(ops: Any, x: Any) -> Any:
    cube = ops.reshape(x, shape=(3, 2, 2))
    return ops.permute(ops.transpose3d_first_to_last(cube), axes=(2, 1, 0))


def split_and_joined(ops: Any, x: Any) -> Any:
    return ops.concat(ops.split(x, sizes=(1, 2, 1), axis=1), axis=1)


ONE: list[tuple[str, Program, list[str]]] = [
    ("x · 1", lambda o, x: o.mul(x, full(o, x, 1.0)), []),
    ("1 · x", lambda o, x: o.mul(full(o, x, 1.0), x), []),
    ("x · -1", lambda o, x: o.mul(x, full(o, x, -1.0)), ["neg"]),
    ("x · 0.3", lambda o, x: o.mul(x, full(o, x, 0.3)), ["scale"]),
    ("x · 0", lambda o, x: o.mul(x, full(o, x, -0.0)), ["scale"]),
    ("x · broadcast 1", lambda o, x: o.mul(x, o.broadcast_to(o.const(1.0), shape=x.shape)), []),
    ("x + -0", lambda o, x: o.add(x, full(o, x, -0.0)), []),
    ("-0 + x", lambda o, x: o.add(full(o, x, -0.0), x), []),
    ("x + 0", lambda o, x: o.add(x, full(o, x, 0.0)), ["full", "add"]),
    ("x - 0", lambda o, x: o.sub(x, full(o, x, 0.0)), []),
    ("x - -0", lambda o, x: o.sub(x, full(o, x, -0.0)), ["full", "sub"]),
    ("-0 - x", lambda o, x: o.sub(full(o, x, -0.0), x), ["neg"]),
    ("0 - x", lambda o, x: o.sub(full(o, x, 0.0), x), ["full", "sub"]),
    ("x - x", lambda o, x: o.sub(x, x), ["sub"]),
    ("x / 1", lambda o, x: o.div(x, full(o, x, 1.0)), []),
    ("x / -1", lambda o, x: o.div(x, full(o, x, -1.0)), ["neg"]),
    ("x / 4", lambda o, x: o.div(x, full(o, x, 4.0)), ["scale"]),
    ("x / 2^127", lambda o, x: o.div(x, full(o, x, 2.0**127)), ["full", "div"]),
    ("x / 2^-126", lambda o, x: o.div(x, full(o, x, 2.0**-126)), ["scale"]),
    ("x / 3", lambda o, x: o.div(x, full(o, x, 3.0)), ["full", "div"]),
    ("1 / x", lambda o, x: o.div(full(o, x, 1.0), x), ["inv"]),
    ("--x", lambda o, x: o.neg(o.neg(x)), []),
    ("-(c · x)", lambda o, x: o.neg(o.scale(x, c=Fraction(1, 3))), ["scale"]),
    ("-(0 · x)", lambda o, x: o.neg(o.scale(x, c=0)), ["scale"]),
    ("c · -x", lambda o, x: o.scale(o.neg(x), c=0.3), ["scale"]),
    ("-(x - x)", lambda o, x: o.neg(o.sub(x, x)), ["sub", "neg"]),
    ("scale by 1", lambda o, x: o.scale(x, c=1), []),
    ("scale by what rounds to 1", lambda o, x: o.scale(x, c=1 + 1e-12), []),
    ("scale by -1", lambda o, x: o.scale(x, c=-1.0), ["neg"]),
    ("scale twice", lambda o, x: o.scale(o.scale(x, c=0.5), c=2.0), ["scale", "scale"]),
    ("x^0", lambda o, x: o.pow(x, exponent=0), ["full"]),
    ("x^1", lambda o, x: o.pow(x, exponent=Fraction(1)), []),
    ("x^2", lambda o, x: o.pow(x, exponent=2), ["mul"]),
    ("x^-1", lambda o, x: o.pow(x, exponent=-1), ["inv"]),
    ("x^½", lambda o, x: o.pow(x, exponent=0.5), ["sqrt"]),
    ("x^-½", lambda o, x: o.pow(x, exponent=-0.5), ["sqrt", "inv"]),
    ("x^3", lambda o, x: o.pow(x, exponent=3), ["pow"]),
    ("||x||", lambda o, x: o.abs(o.abs(x)), ["abs"]),
    ("|-x|", lambda o, x: o.abs(o.neg(x)), ["abs"]),
    ("relu relu", lambda o, x: o.relu(o.relu(x)), ["relu"]),
    ("max(x, x)", lambda o, x: o.maximum(x, x), []),
    ("min(x, x)", lambda o, x: o.minimum(x, x), []),
    ("1 / (1 / x)", lambda o, x: o.inv(o.inv(x)), ["inv", "inv"]),
    ("x < x", lambda o, x: o.less(x, x), ["full"]),
    ("x = x", lambda o, x: o.equal(x, x), ["equal"]),
    ("x <= x", lambda o, x: o.less_equal(x, x), ["less_equal"]),
    ("same dtype", lambda o, x: o.cast(x, dtype="float32"), []),
    ("wider and back", lambda o, x: o.cast(o.cast(x, dtype="float64"), dtype="float32"), []),
    ("wider and on", lambda o, x: o.cast(o.cast(x, dtype="float64"), dtype="bool"), ["cast"]),
    ("mask and number", lambda o, x: o.cast(o.cast(o.equal(x, x), dtype="int64"), dtype="bool"), ["equal"]),
    ("narrower and back", lambda o, x: o.cast(o.cast(x, dtype="bool"), dtype="float32"), ["cast", "cast"]),
    ("detach", lambda o, x: o.detach(x), []),
    ("sum of one", lambda o, x: o.reduce_sum(o.unsqueeze(o.exp(x), axis=1), axis=1), ["exp"]),
    ("mean of one", lambda o, x: o.reduce_mean(o.unsqueeze(o.exp(x), axis=1), axis=1), ["exp"]),
    ("maximum of one", lambda o, x: o.reduce_max(o.unsqueeze(x, axis=1), axis=1), []),
    ("sum over no axis", lambda o, x: o.reduce_sum(o.exp(x), axis=()), ["exp"]),
    ("sum of all", lambda o, x: o.sum(x), ["reduce_sum"]),
    ("reshape to itself", lambda o, x: o.reshape(x, shape=(3, -1)), []),
    ("reshape twice", lambda o, x: o.reshape(o.flatten(x), shape=(2, 6)), ["reshape"]),
    ("reshape and back", lambda o, x: o.squeeze(o.unsqueeze(x, axis=1), axis=1), []),
    ("reshape with -1", lambda o, x: o.reshape(x, shape=(-1, 6)), ["reshape"]),
    ("transpose twice", lambda o, x: o.transpose2d(o.transpose2d(x)), []),
    ("permute twice", permuted_twice, ["reshape", "permute"]),
    ("permute as it is", lambda o, x: o.permute(x, axes=(0, 1)), []),
    ("swap of 1", lambda o, x: o.swap_adjacent_at_depth(o.unsqueeze(x, axis=1), depth=0), ["reshape"]),
    ("broadcast to itself", lambda o, x: o.broadcast_to(x, shape=x.shape), []),
    ("broadcast in front", lambda o, x: o.broadcast_to(x, shape=(1, *x.shape)), ["reshape"]),
    (
        "broadcast twice",
        lambda o, x: o.broadcast_to(o.broadcast_to(x, shape=(2, *x.shape)), shape=(5, 2, *x.shape)),
        ["broadcast_to"],
    ),
    (
        "broadcast of reshape",
        lambda o, x: o.broadcast_to(o.unsqueeze(x, axis=0), shape=(2, *x.shape)),
        ["broadcast_to"],
    ),
    (
        "broadcast of another reshape",
        lambda o, x: o.broadcast_to(o.unsqueeze(x, axis=1), shape=(3, 2, 4)),
        ["reshape", "broadcast_to"],
    ),
    ("concat of one", lambda o, x: o.concat([x], axis=1), []),
    ("concat of concat", lambda o, x: o.concat([x, o.concat([x, x])]), ["concat"]),
    (
        "concat along two axes",
        lambda o, x: o.concat([o.concat([x, x], axis=1), o.concat([x, x], axis=1)]),
        ["concat", "concat", "concat"],
    ),
    ("concat with nothing", lambda o, x: o.concat([x, o.slice(x, axis=0, start=1, length=0)]), []),
    ("split and joined", split_and_joined, []),
    ("joined in another order", lambda o, x: o.concat(o.split(x, sizes=(1, 2), axis=0)[::-1]), None),
    ("slice of the whole", lambda o, x: o.slice(x, axis=1, start=0, length=4), []),
    (
        "slice of slice",
        lambda o, x: o.slice(o.slice(x, axis=1, start=1, length=3), axis=1, start=0, length=2, step=2),
        ["slice"],
    ),
    (
        "slice of a part",
        lambda o, x: o.slice(o.concat([x, o.exp(x)], axis=1), axis=1, start=5, length=2),
        ["exp", "slice"],
    ),
    (
        "slice of two parts",
        lambda o, x: o.slice(o.concat([x, x], axis=1), axis=1, start=3, length=2),
        ["concat", "slice"],
    ),
    (
        "slice of a broadcast",
        lambda o, x: o.slice(o.broadcast_to(x, shape=(5, *x.shape)), axis=0, start=3, length=2),
        ["broadcast_to"],
    ),
    (
        "slice of what is inside the padding",
        lambda o, x: o.slice(o.pad(x, padding=((0, 0), (2, 1))), axis=1, start=2, length=4),
        [],
    ),
    (
        "slice with some of the padding",
        lambda o, x: o.slice(o.pad(x, padding=((0, 0), (2, 1))), axis=1, start=1, length=4),
        ["pad", "slice"],
    ),
    ("pad with nothing", lambda o, x: o.pad(x, padding=((0, 0), (0, 0)), value=3.0), []),
]


@pytest.mark.parametrize(("program", "left"), [case[1:] for case in ONE], ids=[case[0] for case in ONE])
def test_one_operand(program: Program, left: list[str] | None) -> None:
    found = simplified(program)
    if left is not None:
        assert found == left


TWO: list[tuple[str, Program, list[str]]] = [
    ("x + -y", lambda o, x, y: o.add(x, o.neg(y)), ["sub"]),
    ("-x + y", lambda o, x, y: o.add(o.neg(x), y), ["sub"]),
    ("x - -y", lambda o, x, y: o.sub(x, o.neg(y)), ["add"]),
    ("-x · -y", lambda o, x, y: o.mul(o.neg(x), o.neg(y)), ["mul"]),
    ("select of the same", lambda o, x, y: o.select(o.less(x, y), x, x), []),
    ("select not", lambda o, x, y: o.select(o.logical_not(o.less(x, y)), x, y), ["less", "select"]),
    ("select always", lambda o, x, y: o.select(mask(o, x, True), x, y), []),
    ("select never", lambda o, x, y: o.select(mask(o, x, False), x, y), []),
    ("not not", lambda o, x, y: o.logical_not(o.logical_not(o.less(x, y))), ["less"]),
    ("m and m", lambda o, x, y: o.logical_and(o.less(x, y), o.less(x, y)), ["less", "less", "logical_and"]),
    ("m and true", lambda o, x, y: o.logical_and(mask(o, x, True), o.less(x, y)), ["less"]),
    ("m and false", lambda o, x, y: o.logical_and(o.less(x, y), mask(o, x, False)), ["full"]),
]


@pytest.mark.parametrize(("program", "left"), [case[1:] for case in TWO], ids=[case[0] for case in TWO])
def test_two_operands(program: Program, left: list[str]) -> None:
    assert simplified(program, 2) == left


def test_integers_have_one_zero_and_no_nan() -> None:
    def program(ops: Any, i: Any) -> Any:
        zero = ops.full(shape=i.shape, value=0, dtype="int32")
        sums = ops.add(i, zero), ops.sub(zero, i), ops.mul(i, ops.full(shape=i.shape, value=1, dtype="int32"))
        wide = ops.cast(ops.cast(i, dtype="int64"), dtype="int32")
        return *sums, wide, ops.equal(i, i), ops.less_equal(i, i), ops.reduce_sum(ops.unsqueeze(i, axis=0), axis=0)

    graph = graph_of(program, TensorType((3,), INT32))
    after = passed(lambda body: dead_code(simplify(body)), graph)
    assert names(after) == ["neg", "full", "full", "reshape", "reduce_sum"]
    assert_same(graph, after, [np.array([0, -7, 2**31 - 1], np.int32)])


def test_a_float_that_does_not_hold_every_integer_is_no_way_there_and_back() -> None:
    graph = graph_of(lambda ops, i: ops.cast(ops.cast(i, dtype="float64"), dtype="int64"), TensorType((1,), INT64))
    assert simplify(graph.body) is graph.body


def test_fractions_are_divided_exactly() -> None:
    graph = graph_of(lambda ops, x: ops.div(x, full(ops, x, 3)), (2,), dtype="exact")
    assert names(dead_code(simplify(graph.body))) == ["scale"]


def test_sizes_that_are_names_are_compared_by_proof() -> None:
    scope = DimScope()
    b, t = scope.dim("B"), scope.dim("T")

    def program(ops: Any, x: Any) -> Any:
        rows = ops.reshape(x, shape=(b * t, 3))
        same = ops.reshape(rows, shape=(b, t, 3))
        other = ops.reshape(x, shape=(t, b, 3))
        return ops.exp(same), other, ops.slice(x, axis=0, start=0, length=b), ops.reduce_sum(x, axis=0)

    graph = graph_of(program, (b, t, 3))
    after = passed(lambda body: dead_code(simplify(body)), graph)
    assert names(after) == ["reshape", "exp", "reduce_sum"]


REAL: list[tuple[str, Program, list[str]]] = [
    ("x + 0", lambda o, x: o.add(full(o, x, 0.0), x), []),
    ("0 - x", lambda o, x: o.sub(full(o, x, 0.0), x), ["neg"]),
    ("x - -0", lambda o, x: o.sub(x, full(o, x, -0.0)), []),
    ("x - x", lambda o, x: o.sub(x, x), ["full"]),
    ("x · 0", lambda o, x: o.mul(full(o, x, 0.0), x), ["full"]),
    ("x / x", lambda o, x: o.div(x, x), ["full"]),
    ("x / 3", lambda o, x: o.div(x, full(o, x, 3.0)), ["scale"]),
    ("-(x - y)", lambda o, x: o.neg(o.sub(x, o.exp(x))), ["exp", "sub"]),
    ("scale twice", lambda o, x: o.scale(o.scale(x, c=3.0), c=Fraction(1, 7)), ["scale"]),
    ("1 / (1 / x)", lambda o, x: o.inv(o.inv(x)), []),
    ("log exp", lambda o, x: o.log(o.exp(x)), []),
    ("sum of sums", lambda o, x: o.reduce_sum(o.reduce_sum(x, axis=0), axis=0), ["reduce_sum"]),
    (
        "sum of copies",
        lambda o, x: o.reduce_sum(o.broadcast_to(o.reshape(x, shape=(3, 1, 4)), shape=(2, 3, 5, 4)), axis=(0, 2)),
        ["scale"],
    ),
]


@pytest.mark.parametrize(("program", "left"), [case[1:] for case in REAL], ids=[case[0] for case in REAL])
def test_identities_of_real_numbers_are_not_applied(program: Program, left: list[str]) -> None:
    assert simplified(program) != left


def test_a_long_chain_of_joins_is_opened_up_to_a_number_of_parts() -> None:
    def program(ops: Any, x: Any) -> Any:
        joined = x
        for _ in range(200):
            joined = ops.concat([joined, ops.exp(x)])
        return joined

    graph = graph_of(program, (1,))
    after = passed(lambda body: dead_code(simplify(body)), graph)
    joins = [e for e in after.body.equations if e.primitive.name == "concat"]
    assert len(joins) == 4 and max(len(e.inputs) for e in joins) <= 66
    assert_same(graph, after, [np.ones(1, np.float32)])
