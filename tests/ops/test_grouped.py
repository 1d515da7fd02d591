"""Rows times the matrix of their group: against a loop over rows."""

from __future__ import annotations

import ctypes
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import derived, transform
from opstage.compiler.native import find_blas, one_thread
from opstage.interpreters.eager_cpu.loops.grouped import grouped_step
from opstage.ops.errors import DtypeError, ShapeError
from opstage.ops.host_arrays import address_of
from opstage.ops.matmul import GROUPED_MATMUL, GROUPED_OUTER
from opstage.ops.primitive import Primitive
from opstage.transforms.scan import SCAN
from tests.ops.functions import FLOAT64, Row, assert_row
from tests.samples.grouped import products_by_rows, sums_by_rows

INF, NAN = np.inf, np.nan


ENDS = {
    "each": [2, 5, 7], "none in one": [0, 4, 7], "none in any": [0, 0, 0], "rest": [1, 2, 5], "all in one": [0, 7, 7],
    "falling": [4, 2, 6], "last first": [9, 3, 1], "out of range": [-5, 3, 99],
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
def test_is_that_of_rows(name: str) -> None:
    ends = np.array(ENDS[name])
    call = lambda ops, x, w: derived.grouped_matmul(ops, x, w, ops.const(ends))  # noqa: E731
    assert_row(Row(name, ((7, 3), (3, 3, 2)), call, lambda x, w: products_by_rows(x, w, ends)))


@pytest.mark.parametrize("name", ENDS)
def test_outer_is_that_of_rows(name: str) -> None:
    ends = np.array(ENDS[name])
    call = lambda ops, x, g: ops.grouped_outer(x, g, ops.const(ends))  # noqa: E731
    assert_row(Row(name, ((7, 3), (7, 2)), call, lambda x, g: sums_by_rows(x, g, ends)))


LARGE = {
    "blocks of rows": [300, 310, 700], "a part of none": [10, 300, 400], "one": [0, 800, 800],
    "falling": [400, 100, 600], "beyond": [-3, 500, 10**12],
}  # fmt: skip


@pytest.mark.parametrize("backend", ["eager", "compiled"])
@pytest.mark.parametrize("name", LARGE)
def test_large_ones_and_transposed_matrices(backend: str, name: str) -> None:
    """More rows and columns than a task has; matrices that another axis order gave are read where they lie."""
    rng = np.random.default_rng(3)
    x, w, g = (rng.standard_normal(shape) for shape in ((800, 300), (3, 300, 40), (800, 40)))
    ends, options = np.array(LARGE[name]), FLOAT64.replace(backend=backend)

    def program(ops: Any, x: Any, w: Any, turned: Any, g: Any, ends: Any) -> Any:
        again = ops.grouped_matmul(x, ops.permute(turned, axes=(0, 2, 1)), ops.cast(ends, dtype="int64"))
        return ops.grouped_matmul(x, w, ends), again, ops.grouped_outer(x, g, ends)

    y, again, sums = opstage.run(program, x, w, np.ascontiguousarray(w.swapaxes(1, 2)), g, ends, options=options)
    np.testing.assert_allclose(y, products_by_rows(x, w, ends), rtol=1e-10, atol=1e-11)
    np.testing.assert_allclose(again, products_by_rows(x, w, ends), rtol=1e-10, atol=1e-11)
    np.testing.assert_allclose(sums, sums_by_rows(x, g, ends), rtol=1e-10, atol=1e-11)


@pytest.mark.skipif(find_blas() is None, reason="without a BLAS to call there are no kernels")
@pytest.mark.parametrize("primitive", [GROUPED_MATMUL, GROUPED_OUTER], ids=repr)
def test_bits_do_not_depend_on_how_workers_divide_the_tasks(primitive: Primitive) -> None:
    n, k, m, groups = 1000, 300, 40, 3
    rng = np.random.default_rng(4)
    shapes = ((n, k), (groups, k, m), (n, m)) if primitive is GROUPED_MATMUL else ((n, k), (n, m), (groups, k, m))
    x, other, out = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    ends = np.array([310, 290, 900])
    step = grouped_step(primitive, "float32", (n, k, m, groups), tuple(map(address_of, (x, other, ends, out))))
    word = ctypes.c_int64
    kernel = ctypes.CFUNCTYPE(None, word, word, word, word)(step.kernel.address)
    results = []
    for workers in (1, 2, 4, step.tasks):
        out.fill(NAN)
        bounds = [step.tasks * i // workers for i in range(workers + 1)]
        with one_thread:
            for worker, (lo, hi) in reversed([*enumerate(pairwise(bounds))]):
                kernel(lo, hi, worker, step.arguments.ctypes.data)
        results.append(out.tobytes())
    assert step.tasks >= 4 and len(set(results)) == 1 and not np.isnan(out).any()


@pytest.mark.parametrize("shapes", [((0, 3), (2, 3, 2)), ((4, 0), (2, 0, 2)), ((4, 3), (2, 3, 0))])
def test_empty_sizes(shapes: Any) -> None:
    ends = np.array([1, 3])
    call = lambda ops, x, w: derived.grouped_matmul(ops, x, w, ops.const(ends))  # noqa: E731
    assert_row(Row("empty", shapes, call, lambda x, w: products_by_rows(x, w, ends), gradient=False))


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_another_group_s_nan_does_not_reach_a_row(backend: str) -> None:
    x, w = np.ones((3, 2)), np.ones((3, 2, 2))
    w[1], w[2, 0, 0] = NAN, INF
    options = FLOAT64.replace(backend=backend)
    y = opstage.run(derived.grouped_matmul, x, w, np.array([2, 2, 3]), options=options)
    assert y.tolist() == [[2, 2], [2, 2], [INF, 2]]


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_rows_of_other_groups_and_of_none_add_nothing(backend: str, fast: bool) -> None:
    """Not a nan either, in whichever of the two operands."""
    x, g = np.ones((5, 2)), np.ones((5, 3))
    x[2], g[3], x[4], g[4] = NAN, INF, NAN, INF
    options = FLOAT64.replace(backend=backend, fast_kernels=fast)
    sums = opstage.run(
        lambda ops, x, g, ends: ops.grouped_outer(x, g, ends), x, g, np.array([2, 3, 4]), options=options
    )
    assert (sums[0] == 2).all() and np.isnan(sums[1]).all() and (sums[2] == INF).all()


def test_derivatives_stay_within_the_two_ops() -> None:
    """And so no derivative multiplies rows by the matrices of other groups."""

    def loss(ops: Any, w: Any, x: Any) -> Any:
        y = ops.grouped_matmul(x, w, ops.const(np.array([2, 5])))
        return ops.sum(ops.mul(y, y))

    def second(ops: Any, w: Any, x: Any) -> Any:
        return transform.jvp(ops, lambda inner, *refs: transform.grad(inner, loss, *refs), (w, x), (w, x))[1]

    specs = opstage.Spec("2 3 4", dtype="float64"), opstage.Spec("6 3", dtype="float64")
    graph = opstage.record(second, *specs, options=FLOAT64)
    used = {e.primitive for e in graph.body.equations}
    assert SCAN not in used and {GROUPED_MATMUL, GROUPED_OUTER} <= used


def test_sizes_may_be_named() -> None:
    specs = opstage.Spec("N K"), opstage.Spec("E K M"), opstage.Spec("E", dtype="int64")
    report = opstage.check(derived.grouped_matmul, *specs)
    assert report.ok and str(report.outputs.shape) == "(N, M)", report


BAD: dict[str, tuple[type[Exception], str, tuple[Any, ...]]] = {
    "rank of x": (ShapeError, "x", ((3,), (2, 3, 2), [1, 2])),
    "rank of w": (ShapeError, "w", ((4, 3), (3, 2), [1, 2])),
    "columns": (ShapeError, "a matrix has a row for each column of x", ((4, 2), (2, 3, 2), [1, 2])),
    "groups": (ShapeError, "every group has an end", ((4, 3), (2, 3, 2), [1, 2, 3])),
    "float ends": (DtypeError, "ends", ((4, 3), (2, 3, 2), [1.0, 2.0])),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_calls_say_so(name: str) -> None:
    kind, message, (x, w, ends) = BAD[name]
    with pytest.raises(kind, match=message):
        opstage.run(derived.grouped_matmul, np.ones(x), np.ones(w), np.array(ends), options=FLOAT64)
