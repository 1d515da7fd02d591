"""Functions of matrices, Fourier transforms, and products of groups of rows."""

from __future__ import annotations

import ctypes
from itertools import pairwise
from typing import Any

import numpy as np
import optree
import pytest

import opstage
from opstage import derived, transform
from opstage.compiler.native import find_blas, one_thread
from opstage.interpreters.eager_cpu.loops.grouped import grouped_step
from opstage.ops.errors import DtypeError, ShapeError
from opstage.ops.host_arrays import address_of
from opstage.ops.matmul import GROUPED_MATMUL, GROUPED_OUTER
from opstage.ops.primitive import Primitive
from opstage.options import Options
from opstage.transforms.scan import SCAN
from tests.ops.functions import FLOAT64, Row, assert_row, of
from tests.samples.matmul import products_by_rows, sums_by_rows

REGULAR = np.array(
    [[[0.0, 2.0, 1.0], [1.0, -1.0, 0.5], [3.0, 0.5, 1.0]], [[2.0, 1.0, 0.0], [0.0, 1.0, 1.0], [1.0, 0.0, 4.0]]]
)

ROWS = [
    of("inverse", (REGULAR,), np.linalg.inv),
    of("inverse of one", (REGULAR[0],), np.linalg.inv),
    of("inverse of none", ((0, 2, 2),), lambda x: x, gradient=False),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_function(row: Row) -> None:
    assert_row(row)


def test_the_inverse_of_a_singular_matrix_is_nan_and_its_own_alone() -> None:
    stack = np.stack([np.ones((2, 2)), 2 * np.eye(2)])
    out: Any = opstage.run(lambda ops, x: derived.inverse(ops, x), stack, options=FLOAT64)
    assert np.isnan(out[0]).all()
    np.testing.assert_array_equal(out[1], np.eye(2) / 2)


def test_inverse_of_a_matrix_that_is_not_square() -> None:
    with pytest.raises(ShapeError, match=r"inverse.* 2 rows and 3 columns"):
        opstage.run(lambda ops, x: derived.inverse(ops, x), np.ones((2, 3)), options=FLOAT64)


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_gradient_of_a_determinant_at_every_rank(rank: int) -> None:
    """By minors; where the rank is less than n - 1 it is 0."""
    rng = np.random.default_rng(rank)
    x = rng.standard_normal((4, rank)) @ rng.standard_normal((rank, 4))
    expected = np.array(
        [[(-1) ** (i + j) * np.linalg.det(np.delete(np.delete(x, i, 0), j, 1)) for j in range(4)] for i in range(4)]
    )
    _, found = opstage.value_and_grad(lambda ops, p: ops.det(p["x"]), {"x": x}, options=FLOAT64)
    np.testing.assert_allclose(found["x"], expected, rtol=1e-9, atol=1e-12)
    assert (np.abs(expected) > 1e-3).any() == (rank == 3)


def test_determinants_of_named_sizes() -> None:
    report = opstage.check(lambda ops, x: (ops.det(x), ops.cofactor(x), *ops.slogdet(x)), opstage.Spec(("b", "n", "n")))
    assert report.ok, report


def test_eigenvectors_of_named_sizes() -> None:
    def program(ops: Any, p: Any) -> Any:
        values, vectors = ops.eigh(p["x"])
        return ops.add(ops.sum(ops.mul(values, values)), ops.sum(vectors))

    assert opstage.check(program, {"x": opstage.Spec(("b", "n", "n"))}).ok


@pytest.mark.parametrize("shape", [("b", "m", "n"), ("n + 1", "n"), ("n", "n + 1"), ("n", "n")])
def test_factors_of_named_sizes(shape: tuple[str, ...]) -> None:
    def program(ops: Any, p: Any) -> Any:
        q, r = ops.qr(p["x"])
        u, s, vh = ops.svd(ops.sub(ops.bmm(q, r), p["x"]))
        return ops.add(ops.add(ops.sum(u), ops.sum(vh)), ops.sum(s))

    assert opstage.check(program, {"x": opstage.Spec(shape)}).ok


def test_gradient_of_equal_eigenvalues() -> None:
    """Of the values alone it is right: that of the sum of their squares is 2x. Of vectors it is none."""
    point = {"x": np.diag([2.0, 2.0, 1.0])}
    _, found = opstage.value_and_grad(lambda ops, p: ops.sum(ops.square(ops.eigh(p["x"])[0])), point, options=FLOAT64)
    np.testing.assert_allclose(found["x"], 2 * point["x"], atol=1e-12)
    _, found = opstage.value_and_grad(lambda ops, p: ops.sum(ops.eigh(p["x"])[1]), point, options=FLOAT64)
    assert not np.isfinite(found["x"]).all()


@pytest.mark.parametrize("size", [-3.0, 2.0])
def test_factors_of_one_number(size: float) -> None:
    one, sign = np.ones((1, 1)), np.sign(size) * np.ones((1, 1))
    found: Any = opstage.run(lambda ops, x: (ops.eigh(x), ops.qr(x), ops.svd(x)), np.array([[size]]), options=FLOAT64)
    expected = (size * one[0], one), (sign, abs(size) * one), (one, abs(size) * one[0], sign)
    assert optree.tree_all(optree.tree_map(np.array_equal, found, expected))


def test_a_matrix_that_does_not_converge_is_nan_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = np.linalg.svd

    def svd(x: Any, full_matrices: bool) -> Any:
        if (x == 7).any():
            raise np.linalg.LinAlgError("no convergence")
        return whole(x, full_matrices=full_matrices)

    monkeypatch.setattr(np.linalg, "svd", svd)
    stack = np.stack([np.diag([3.0, 7.0]), np.diag([2.0, 1.0])])
    for out in opstage.run(lambda ops, x: ops.svd(x), stack, options=FLOAT64):
        assert np.isnan(out[0]).all() and np.isfinite(out[1]).all()


@pytest.mark.parametrize("x", [np.eye(3), np.zeros((3, 3)), np.ones((4, 4)), np.diag([1e-20, 1.0, 1e20])])
def test_eigenvectors_of_equal_values_are_orthonormal(x: Any) -> None:
    values, vectors = opstage.run(lambda ops, x: ops.eigh(x), x, options=FLOAT64)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(len(x)), atol=1e-12)
    np.testing.assert_allclose(vectors * values @ vectors.T, x, atol=1e-12 * np.abs(x).max())


# Fourier transforms: of named sizes, in float32, and beside NumPy's along two axes ------------------------------------


def _there_and_back(ops: Any, x: Any) -> Any:
    return ops.irfft(ops.rfft(x, axis=1), n=x.shape[1], axis=1)


@pytest.mark.parametrize("n", [1, 2, 7, 8, 127])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_there_and_back(n: int, dtype: str) -> None:
    x = np.random.default_rng(n).standard_normal((2, n, 3)).astype(dtype)
    out: Any = opstage.run(_there_and_back, x, options=Options(dtype=dtype))
    assert out.dtype == dtype
    np.testing.assert_allclose(out, x, rtol=1e-5, atol=1e-6 if dtype == "float32" else 1e-14)


def test_named_sizes() -> None:
    report = opstage.check(lambda ops, x: (ops.rfft(x), ops.fft(ops.rfft(x))), opstage.Spec(("b", "n")))
    assert report.ok, report
    first: Any = report.outputs[0]
    assert str(first.shape[1]) == "n//2 + 1" and first.shape[2] == 2
    assert opstage.check(_there_and_back, opstage.Spec(("b", "n", 3))).ok


def test_two_axes_are_one_after_the_other() -> None:
    x = np.random.default_rng(0).standard_normal((4, 6))
    out: Any = opstage.run(lambda ops, x: ops.fft(ops.rfft(x), axis=0), x, options=Options(dtype="float64"))
    np.testing.assert_allclose(out[..., 0] + 1j * out[..., 1], np.fft.rfft2(x), rtol=1e-12, atol=1e-12)


# Rows times the matrix of their group: against a loop over rows -------------------------------------------------------

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
